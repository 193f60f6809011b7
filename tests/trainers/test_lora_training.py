"""Adapters in the trainer: a run that is resumed ends as one that was not, and its checkpoints and averages are models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.trainers.torch_trainer_base import TorchTrainerBase
from tests.models.wav2xvectors.hf_learning_models import make_batch, make_model
from tests.trainers.small_training import RecordingLogger, assert_same_state

NAMES = ("x", "lengths", "y")
BATCHES = [dict(zip(NAMES, make_batch(seed), strict=True)) for seed in range(3)]


class WaveTrainer(TorchTrainerBase):
    """Padded waveforms ``x`` with ``lengths`` to classes ``y``."""

    def compute_loss(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        return functional.cross_entropy(self.model(batch["x"], batch["lengths"], batch["y"]), batch["y"]), {}


def run(path: Path, num_epochs: int, **options: Any) -> WaveTrainer:
    torch.manual_seed(0)
    model = make_model("wavlm", trained=False)
    defaults: dict[str, Any] = {"train_mode": "hf-lora", "optim": {"opt_type": "adam", "lr": 0.01}, "ema_decay": 0.5}
    trainer = WaveTrainer(
        model,
        exp_path=str(path),
        num_epochs=num_epochs,
        device="cpu",
        input_key="x",
        loggers=RecordingLogger(),
        **{**defaults, **options},
    )
    trainer.load_last_checkpoint()
    trainer.fit(BATCHES)
    return trainer


@pytest.mark.parametrize(
    "options", [{}, {"gradient_checkpointing": True}, {"use_amp": True, "amp_dtype": "bfloat16"}], ids=str
)
def test_a_resumed_run_ends_with_the_same_adapters(tmp_path, options):
    whole = run(tmp_path / "whole", 2, **options)
    run(tmp_path / "parts", 1, **options)
    resumed = run(tmp_path / "parts", 2, **options)
    assert_same_state(resumed.module.state_dict(), whole.module.state_dict())
    start = make_model("wavlm", trained=False).state_dict()
    moved = {
        n for n, t in whole.module.state_dict().items() if n.startswith("hf_feats.") and not torch.equal(t, start[n])
    }
    assert moved == {n for n in start if ".lora_" in n}


def test_checkpoints_and_averages_are_models(tmp_path):
    trainer = run(tmp_path / "exp", 1)
    last = HyperTorchModel.auto_load(tmp_path / "exp")
    assert_same_state(last.state_dict(), trainer.module.state_dict())
    average = HyperTorchModel.auto_load(tmp_path / "exp", model_name="ema_model")
    assert average.state_dict().keys() == last.state_dict().keys()
    assert any(not torch.equal(t, last.state_dict()[n]) for n, t in average.state_dict().items() if ".lora_" in n)
    x, lengths, _ = make_batch()
    embedding = average.extract_embed(x, lengths)
    torch.testing.assert_close(average.merge_lora().extract_embed(x, lengths), embedding, rtol=1e-4, atol=1e-5)


def test_phases_go_from_frozen_to_adapters_to_everything(tmp_path):
    phases = [
        {"train_mode": "hf-feats-frozen"},
        {"start_epoch": 1, "train_mode": "hf-lora"},
        {"start_epoch": 2, "train_mode": "full", "optim": {"lr": 0.001}},
    ]
    options = {"train_mode": None, "phases": phases}
    whole = run(tmp_path / "whole", 3, **options)
    for epochs in (1, 2, 3):
        parts = run(tmp_path / "parts", epochs, **options)
    assert_same_state(parts.module.state_dict(), whole.module.state_dict())
    assert whole.module.train_mode == "full"
    plain = make_model("wavlm", trained=False, use_lora=False)
    with pytest.raises((ConfigError, ValueError), match="hf-lora"):
        WaveTrainer(
            plain, exp_path=str(tmp_path / "plain"), optim={"lr": 0.1}, num_epochs=3, device="cpu", phases=phases
        )
