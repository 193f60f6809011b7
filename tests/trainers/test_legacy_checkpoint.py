"""Checkpoints of the original toolkit become directories from which training goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from hyperion_lite.cli.main import main
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.trainers.legacy_checkpoint import convert_legacy_checkpoints
from hyperion_lite.trainers.torch_trainer_base import TorchTrainerBase
from tests.helpers import shared_path
from tests.models.small_hf_models import HF_MODELS
from tests.trainers.small_training import RecordingLogger, SmallClassifier, assert_same_state

STORED = {
    "trainer_ep0001": "checkpoint_ep0001_step0000000003",
    "trainer_ep0001_step0000000004": "checkpoint_ep0001_step0000000004",
    "trainer_ddp_ep0003": "checkpoint_ep0003_step0000000009",
}
OPTIM = {"opt_type": "adam", "lr": 0.01, "amsgrad": True, "weight_decay": 1e-5}
LRSCHED: dict[str, Any] = {
    "lrsch_type": "exp_lr",
    "decay_rate": 0.5,
    "decay_steps": 4,
    "hold_steps": 2,
    "warmup_steps": 2,
    "min_lr": 1e-6,
    "update_lr_on_opt_step": True,
}


class WaveTrainer(TorchTrainerBase):
    """Waveforms ``audio`` (batch, samples) to classes ``speaker``."""

    def compute_loss(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        return functional.cross_entropy(self.model(batch["audio"], y=batch["speaker"]), batch["speaker"]), {}


def trainer_for(path: Path, model_from: Path, **options: Any) -> WaveTrainer:
    model = HyperTorchModel.auto_load(model_from)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    return WaveTrainer(
        model, optim=OPTIM, lrsched=LRSCHED, exp_path=str(path), loggers=RecordingLogger(), device="cpu", **options
    )


def batches() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [{"audio": torch.randn(4, 8000, generator=generator) * 0.1, "speaker": torch.arange(4)} for _ in range(3)]


@pytest.mark.parametrize("name", STORED)
def test_training_goes_on_from_a_converted_checkpoint(tmp_path: Path, name: str) -> None:
    source = shared_path(f"fixtures/hyperion/{name}.pth")
    stored = json.loads(shared_path(f"fixtures/hyperion/{name}.json").read_text())
    target = tmp_path / STORED[name]
    assert main(["convert", str(source), str(target), "--trainer-state"]) == 0
    expected = HyperTorchModel.auto_load(source)
    assert_same_state(HyperTorchModel.auto_load(target).state_dict(), expected.state_dict())

    swa = {"swa_start": 6, "swa_lr": 1e-3, "swa_anneal_steps": 2, "swa_update_steps": 1} if "ddp" in name else {}
    trainer = trainer_for(tmp_path, source, num_epochs=stored["epoch"] + 1, **swa)
    logs = trainer.load_last_checkpoint()
    assert logs == (stored["logs"] or {})
    assert (trainer.cur_epoch, trainer.cur_batch, trainer.global_step) == (
        stored["epoch"],
        stored["batch"],
        stored["global_step"],
    )
    assert_same_state(trainer.module.state_dict(), expected.state_dict())
    assert len(trainer.optimizer.state) == stored["optimizer_state"]["num_state"]
    for name_, parameter in trainer.module.named_parameters():
        if parameter.requires_grad:
            state = trainer.optimizer.state[parameter]
            assert state["exp_avg"].shape == parameter.shape, name_
            assert int(state["step"]) == stored["global_step"]
    assert {k: trainer.lr_scheduler.state_dict()[k] for k in stored["lr_scheduler"]} == stored["lr_scheduler"]
    if swa:
        assert trainer._averages["swa_model"].num_averaged >= 1
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    trainer.fit(batches())
    assert trainer.cur_epoch == stored["epoch"] + 1
    assert trainer.global_step == stored["global_step"] + 3 - stored["batch"]


def test_a_checkpoint_directory_of_the_original_toolkit_resumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shared_path("fixtures/hyperion/modern_ckpt/checkpoint_ep0003_step0000000009")
    target = tmp_path / folder.name
    shutil.copytree(folder, target, copy_function=shutil.copyfile)
    for path in (target, target / "model"):
        path.chmod(0o755)
    trainer = trainer_for(tmp_path, folder, num_epochs=4)
    assert trainer.load_last_checkpoint()["val_acc"] == 0.25
    assert trainer.global_step == 9
    assert_same_state(trainer.module.state_dict(), HyperTorchModel.auto_load(folder).state_dict())
    # it numbers the parameters in an order of its own, so no guess is made
    assert not trainer.optimizer.state
    assert "numbers its parameters" in caplog.text
    assert trainer.optimizer.param_groups[0]["initial_lr"] == 0.01
    trainer.fit(batches())
    assert trainer.global_step == 12


def legacy_file(path: Path, **changes: Any) -> Path:
    """A trainer checkpoint as the original toolkit would write one, of a small model after one step."""
    torch.manual_seed(1)
    model = SmallClassifier()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 6, 5)).sum().backward()
    optimizer.step()
    state = {"module." + k: v for k, v in model.state_dict().items()}
    content = {
        "epoch": 1,
        "batch": 0,
        "global_step": 7,
        "rng_state": torch.get_rng_state(),
        "model_cfg": model.get_config(),
        "model_state_dict": state,
        "optimizer_state_dict": optimizer.state_dict(),
        "loss_state_dict": None,
        "logs": {"train_loss": 1.5},
        **changes,
    }
    torch.save(content, path)
    return path


def test_every_parameter_gets_its_own_state(tmp_path: Path) -> None:
    source = legacy_file(tmp_path / "model_ep0001.pth")
    raw = torch.load(source, weights_only=True)["optimizer_state_dict"]["state"]
    convert_legacy_checkpoints([source], tmp_path / "new", ["model"], True)
    named = torch.load(tmp_path / "new" / "model" / "optimizer.pt", weights_only=True)["state"]
    names = [name for name, _ in SmallClassifier().named_parameters()]
    assert list(named) == names
    for index, name in enumerate(names):
        assert torch.equal(named[name]["exp_avg"], raw[index]["exp_avg"])


def test_an_unknown_schedule_is_reported_and_rebuilt(tmp_path: Path) -> None:
    source = legacy_file(tmp_path / "model_ep0001.pth", lr_scheduler_state_dict={"odd": 1, "step": 7})
    notes = convert_legacy_checkpoints([source], tmp_path / "exp" / "checkpoint_ep0001_step0000000007", ["model"], True)
    assert any("lr_scheduler" in note for note in notes)
    options: dict[str, Any] = {"optim": {"opt_type": "adam"}, "lrsched": LRSCHED, "loggers": RecordingLogger()}
    trainer = WaveTrainer(SmallClassifier(), exp_path=str(tmp_path / "exp"), device="cpu", **options)
    trainer.load_last_checkpoint()
    assert trainer.lr_scheduler.step == 7


def test_models_of_one_checkpoint_need_the_same_progress(tmp_path: Path) -> None:
    first, second = legacy_file(tmp_path / "a.pth"), legacy_file(tmp_path / "b.pth", global_step=8)
    target = tmp_path / "new"
    with pytest.raises(ValueError, match="same progress"):
        convert_legacy_checkpoints([first, second], target, ["model", "teacher_model"], True)
    assert not target.exists()
    convert_legacy_checkpoints([first], target, ["model"], True)
    before = sorted(str(p) for p in target.rglob("*"))
    with pytest.raises(ValueError, match="nothing was written"):
        convert_legacy_checkpoints([second], target, ["teacher_model"], True)
    assert sorted(str(p) for p in target.rglob("*")) == before
    assert main(["convert", str(second), str(target), "--model-name", "teacher_model", "--trainer-state"]) == 2
    third = legacy_file(tmp_path / "c.pth")
    convert_legacy_checkpoints([third], target, ["teacher_model"], True)
    assert (target / "teacher_model" / "optimizer.pt").is_file() and (target / "model" / "optimizer.pt").is_file()


def test_wrong_requests(tmp_path: Path) -> None:
    source = legacy_file(tmp_path / "a.pth")
    with pytest.raises(ValueError, match="name of a model directory"):
        convert_legacy_checkpoints([source], tmp_path / "new", ["../model"])
    with pytest.raises(FileNotFoundError):
        convert_legacy_checkpoints([tmp_path / "none.pth"], tmp_path / "new")
    assert main(["convert", str(source), str(tmp_path / "new")]) == 0
    assert sorted(p.name for p in (tmp_path / "new").rglob("*")) == ["config.json", "model", "model.safetensors"]
    with pytest.raises(FileExistsError):
        convert_legacy_checkpoints([source], tmp_path / "new")


@pytest.mark.parametrize("with_masks", [True, False])
def test_parameters_without_gradient_count_in_the_optimizer_of_the_original(tmp_path: Path, with_masks: bool) -> None:
    class_name, config = HF_MODELS["hf-wavlm-group"]
    options = {**config, "hf_feats": {**config["hf_feats"], "apply_spec_augment": with_masks}}
    model: Any = find_model_class(class_name).from_config(options)
    model.save(tmp_path / "plain.pth")
    content = torch.load(tmp_path / "plain.pth", weights_only=True)
    # the original freezes nothing in this mode, and torch leaves out what has no gradient
    parameters = {name: torch.nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(parameters.values())
    for name, p in parameters.items():
        p.grad = None if name.endswith("masked_spec_embed") else torch.full_like(p, 0.5)
    optimizer.step()
    progress = {"epoch": 1, "batch": 0, "global_step": 7, "rng_state": torch.get_rng_state(), "logs": {}}
    torch.save({**content, **progress, "optimizer_state_dict": optimizer.state_dict()}, tmp_path / "model_ep0001.pth")
    convert_legacy_checkpoints([tmp_path / "model_ep0001.pth"], tmp_path / "new", ["model"], True)
    named = torch.load(tmp_path / "new" / "model" / "optimizer.pt", weights_only=True)["state"]
    assert list(named) == [name for name in parameters if not name.endswith("masked_spec_embed")]
    assert all(named[name]["exp_avg"].shape == parameters[name].shape for name in named)
