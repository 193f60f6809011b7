"""Two ranks train as one process does, whatever splits the model, and one may continue what the other began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.trainers.distribution import full_tensor
from tests.trainers.runs import complete_run, last_checkpoint
from tests.trainers.small_training import Batches, SmallClassifier, SmallTrainer, adam, make_trainer, sgd
from tests.two_ranks import in_two_ranks

TRAINER: dict[str, Any] = {
    "num_epochs": 2,
    "grad_acc_steps": 2,
    "grad_clip": 0.5,
    "ema_decay": 0.9,
    "optim": {"opt_type": "adam", "lr": 0.02, "weight_decay": 0.01},
    "lrsched": {
        "lrsch_type": "exp_lr",
        "decay_rate": 0.5,
        "decay_steps": 4,
        "hold_steps": 1,
        "update_lr_on_opt_step": True,
    },
}
# in the middle of the first epoch
HALFWAY = 3


def spec_of(kind: str, **trainer: Any) -> dict[str, Any]:
    options = {**TRAINER, **trainer}
    if kind != "single":
        options["ddp_type"] = kind
    # 40 items in batches of 6: the last batch of 4 is shared too, and one of 5 steps an epoch is a remainder
    return {
        "world_size": 1 if kind == "single" else 2,
        "dtype": "float64",
        "model": {"dropout_rate": 0.0},
        "data": {"num_items": 52, "batch_size": 6},
        "trainer": options,
    }


def weights(checkpoint: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model" / f"{name}.safetensors")


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return complete_run(tmp_path_factory.mktemp("single") / "exp", spec_of("single"))


@pytest.mark.parametrize("kind", ["ddp", "oss_ddp", "fsdp"])
def test_two_ranks_equal_one_process_on_the_same_global_batches(single: Path, tmp_path: Path, kind: str) -> None:
    checkpoint = complete_run(tmp_path / "exp", spec_of(kind))
    assert checkpoint.name == single.name
    assert_close(weights(checkpoint), weights(single))
    assert_close(weights(checkpoint, "ema_model"), weights(single, "ema_model"))
    logs, expected = (json.loads((c / "trainer_state.json").read_text())["logs"] for c in (checkpoint, single))
    assert logs == pytest.approx(expected, abs=1e-8)
    assert type(HyperTorchModel.auto_load(tmp_path / "exp")).__name__ == "SmallClassifier"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ddp", "single"),
        ("single", "fsdp"),
        ("fsdp", "ddp"),
        pytest.param("oss_ddp", "fsdp", marks=pytest.mark.slow),
        pytest.param("fsdp", "fsdp", marks=pytest.mark.slow),
    ],
)
def test_a_run_continues_under_another_distribution(single: Path, tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "exp"
    complete_run(path, spec_of(before, max_steps=HALFWAY))
    assert json.loads((last_checkpoint(path) / "trainer_state.json").read_text())["step"] == HALFWAY
    checkpoint = complete_run(path, spec_of(after))
    assert checkpoint.name == single.name
    assert_close(weights(checkpoint), weights(single))
    assert_close(weights(checkpoint, "ema_model"), weights(single, "ema_model"))


def uneven(rank: int, path: Path) -> dict[str, Any]:
    results = {}
    for kind in ("ddp", "fsdp"):
        trainer = make_trainer(path / kind, num_epochs=1, ddp_type=kind)
        # rank 1 has one training batch and two validation batches more
        data = Batches(num_items=8 + 4 * rank)
        logs = trainer.fit(data, Batches(num_items=4 + 8 * rank))
        results[kind] = [trainer.global_step, logs["val_acc"] * 16 % 1.0]
    return results


def bad_on_one_rank(rank: int, path: Path) -> dict[str, Any]:
    trainer = make_trainer(path / "exp", num_epochs=1)
    data = Batches(num_items=12)
    data.x[4 * rank] = float("nan") if rank else 0.0
    logs = trainer.fit(data)
    tensors = trainer.module.state_dict()
    return {
        "bad": logs["bad_steps"],
        "steps": trainer.global_step,
        "finite": all(bool(t.isfinite().all()) for t in tensors.values()),
        "weight": float(tensors["out.weight"].sum()),
    }


def unreached(rank: int, path: Path) -> str:
    class Longer(SmallClassifier):
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Linear(2, 2)

    trainer = SmallTrainer(Longer(), exp_path=str(path / "exp"), optim=adam, num_epochs=1, device="cpu")
    try:
        trainer.fit(Batches())
    except ConfigError as error:
        return str(error)
    return ""


def test_uneven_data_does_not_hang(tmp_path: Path) -> None:
    results = in_two_ranks(uneven, tmp_path)
    # two updates on both; all 4 + 12 validation items count
    assert results == [{"ddp": [2, 0.0], "fsdp": [2, 0.0]}] * 2


def test_a_bad_batch_on_one_rank_is_skipped_by_all(tmp_path: Path) -> None:
    results = in_two_ranks(bad_on_one_rank, tmp_path)
    assert results[0] == results[1]
    assert results[0]["bad"] == 1 and results[0]["steps"] == 2 and results[0]["finite"]


def test_parameters_that_no_gradient_reaches_are_named(tmp_path: Path) -> None:
    for text in in_two_ranks(unreached, tmp_path):
        assert "unused.weight, unused.bias" in text and "freeze" in text


def seeded_by_rank(rank: int, path: Path) -> list[float]:
    sums = []
    for kind in ("ddp", "fsdp"):
        trainer = make_trainer(
            path / kind, seed=rank, num_epochs=1, ddp_type=kind, optim=sgd, model={"dropout_rate": 0.0}
        )
        trainer.fit(Batches())
        sums.append(sum(float(full_tensor(p.detach()).double().sum()) for p in trainer.module.parameters()))
    return sums


def test_all_ranks_begin_with_the_weights_of_rank_0(tmp_path: Path) -> None:
    first, second = in_two_ranks(seeded_by_rank, tmp_path)
    assert first == second
    assert first[0] == pytest.approx(first[1], abs=1e-5)
