"""The last, incomplete group of accumulated batches was dropped, leaked into the next epoch, or was scaled as if it were complete. And
the ranks exchanged their gradients at every batch, where once an update is enough.

Right: it is an update of its own, averaged over its own items; nothing of it is left in the next epoch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from tests.trainers.small_training import Batches, make_trainer, sgd
from tests.two_ranks import in_two_ranks


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


def count_exchanges(rank: int, path: Path) -> list[int]:
    """Updates, and exchanges of gradients between the ranks."""
    trainer = make_trainer(path / "exp", num_epochs=2, grad_acc_steps=4)
    buckets: list[int] = []

    # without annotations: torch compares them with classes, and here they would be text
    def counting(state, bucket):  # type: ignore[no-untyped-def]
        buckets.append(bucket.index())
        return allreduce_hook(state, bucket)

    trainer.model.register_comm_hook(None, counting)
    trainer.fit(Batches(22, 2))
    return [trainer.global_step, len(buckets)]


def test_gradients_are_exchanged_once_an_update(tmp_path: Path) -> None:
    assert in_two_ranks(count_exchanges, tmp_path) == [[6, 6], [6, 6]]
