"""Weight averages: formulas, statistics, and their place in a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.trainers.averaging import WeightAverage
from tests.trainers.small_training import Batches, SmallClassifier, assert_same_state, make_trainer, sgd


def states(decay: float | None, count: int = 4) -> tuple[WeightAverage, list[dict[str, torch.Tensor]]]:
    model, seen = SmallClassifier(), []
    average = WeightAverage(model, decay)
    for seed in range(count):
        torch.manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn_like(p))
        average.update()
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
    return average, seen


def test_plain_average_weighs_all_updates_the_same() -> None:
    average, seen = states(None)
    result = average.state_dict()
    assert int(result["n_averaged"]) == 4
    for name in ("out.weight", "body.0.bias", "norm.weight"):
        torch.testing.assert_close(result[f"module.{name}"], torch.stack([s[name] for s in seen]).mean(0))


def test_exponential_average_follows_its_formula() -> None:
    average, seen = states(0.8)
    expected = seen[0]["out.weight"]
    for state in seen[1:]:
        expected = 0.8 * expected + 0.2 * state["out.weight"]
    torch.testing.assert_close(average.state_dict()["module.out.weight"], expected)


def test_the_model_gets_its_own_weights_back() -> None:
    average, seen = states(None)
    with average.applied() as model:
        torch.testing.assert_close(model.out.weight.detach(), torch.stack([s["out.weight"] for s in seen]).mean(0))
        model.norm.running_mean.fill_(7.0)
    assert_same_state(model.state_dict(), seen[-1])
    assert average.state_dict()["module.norm.running_mean"].eq(7.0).all()


def test_an_average_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no weights"), WeightAverage(SmallClassifier()).applied():
        pass


def test_statistics_of_the_average_equal_a_direct_computation(tmp_path: Path) -> None:
    options = {
        "optim": sgd,
        "num_epochs": 2,
        "swa_start": 4,
        "swa_update_steps": 2,
        "swa_lr": 0.1,
        "swa_anneal_steps": 2,
    }
    trainer = make_trainer(tmp_path, **options)
    trainer.fit(Batches())
    assert trainer._averages["swa_model"].num_averaged == 4  # steps 4, 6, 8, 10
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    averaged = HyperTorchModel.auto_load(tmp_path, model_name="swa_model")
    inputs, data = [], Batches()
    data.set_epoch(2)
    averaged.norm.register_forward_hook(lambda module, args, output: inputs.append(args[0].detach()))
    for batch in data:
        averaged(batch["x"])
    torch.testing.assert_close(averaged.norm.running_mean, torch.stack([h.mean(0) for h in inputs]).mean(0))
    torch.testing.assert_close(averaged.norm.running_var, torch.stack([h.var(0) for h in inputs]).mean(0))
    assert_same_state(HyperTorchModel.auto_load(tmp_path / "swa_model").state_dict(), averaged.state_dict())


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    options = {"num_epochs": 1, "ema_decay": 0.9}
    logs = make_trainer(tmp_path, **options).fit(Batches())
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    again = make_trainer(tmp_path, **options)
    assert again.load_last_checkpoint() == logs
    assert again.fit(Batches()) == logs
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == files
