"""The learning rate advanced on steps that the loss scaler had skipped: warm-up over before the first real update.

Right: schedules and counters move after a real update only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.trainers.small_training import Batches, SmallTrainer, make_trainer


class Overflowing(SmallTrainer):
    """The gradient of the first batches is infinite in half precision."""

    overflows = 3

    def compute_loss(self, batch: Any) -> Any:
        loss, metrics = super().compute_loss(batch)
        if self.module.training and self.overflows:
            self.overflows -= 1
            loss = loss + Blow.apply(self.module.out.weight).sum()
        return loss, metrics


class Blow(torch.autograd.Function):
    """Zero, with an infinite gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.full_like(grad, torch.inf)


def test_nothing_moves_on_a_skipped_step(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        cls=Overflowing,
        num_epochs=1,
        use_amp=True,
        amp_dtype="float16",
        lrsched={"lrsch_type": "exp_lr", "warmup_steps": 100, "update_lr_on_opt_step": True},
    )
    before = trainer.module.out.weight.detach().clone()
    trainer.fit(Batches())
    assert trainer.overflows == 0
    assert trainer.global_step == 2
    assert trainer.lr_scheduler.step == 2
    assert torch.isfinite(trainer.module.out.weight).all()
    assert not torch.equal(trainer.module.out.weight, before)
