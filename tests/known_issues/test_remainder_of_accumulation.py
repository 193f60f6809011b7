"""The last, incomplete group of accumulated batches was dropped, leaked into the next epoch, or was scaled as if it were complete.

Right: it is an update of its own, averaged over its own items; nothing of it is left in the next epoch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainers.small_training import Batches, make_trainer, sgd


def weights_after(path: Path, batch_size: int, grad_acc_steps: int) -> tuple[dict[str, torch.Tensor], int]:
    trainer = make_trainer(
        path,
        dtype=torch.float64,
        optim=sgd,
        grad_acc_steps=grad_acc_steps,
        model={"use_norm": False, "dropout_rate": 0.0},
    )
    trainer.fit(Batches(22, batch_size, dtype=torch.float64))
    return trainer.module.state_dict(), trainer.global_step


@pytest.mark.parametrize(("batch_size", "grad_acc_steps"), [(4, 2), (2, 4), (1, 8)])
def test_it_is_an_update_of_its_own_items(tmp_path: Path, batch_size: int, grad_acc_steps: int) -> None:
    expected, steps = weights_after(tmp_path / "whole", 8, 1)
    found, accumulated = weights_after(tmp_path / "accumulated", batch_size, grad_acc_steps)
    assert steps == accumulated == 6
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-12)
