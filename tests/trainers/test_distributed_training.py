"""Two ranks train as one process does, whatever splits the model, and one may continue what the other began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from tests.trainers.runs import Run, complete_run, last_checkpoint

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
HALFWAY = 5


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
    ("before", "after"), [("ddp", "single"), ("single", "fsdp"), ("fsdp", "ddp"), ("oss_ddp", "fsdp"), ("fsdp", "fsdp")]
)
def test_a_run_continues_under_another_distribution(single: Path, tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "exp"
    complete_run(path, spec_of(before, max_steps=HALFWAY))
    assert json.loads((last_checkpoint(path) / "trainer_state.json").read_text())["step"] == HALFWAY
    checkpoint = complete_run(path, spec_of(after))
    assert checkpoint.name == single.name
    assert_close(weights(checkpoint), weights(single))
    assert_close(weights(checkpoint, "ema_model"), weights(single, "ema_model"))
