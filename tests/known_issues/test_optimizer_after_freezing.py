"""Resuming with another part of the model frozen: "loaded state dict contains a parameter group that doesn't match".

Or, worse, it loaded, and each parameter got the moments of another. Right: the state is kept by the parameter's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.trainers.small_training import Batches, make_trainer


def moments(trainer: Any) -> dict[str, torch.Tensor]:
    state = trainer.optimizer.state
    return {n: state[p]["exp_avg"].clone() for n, p in trainer.module.named_parameters() if p in state}


def test_each_parameter_gets_its_own_moments(tmp_path: Path) -> None:
    first = make_trainer(tmp_path, num_epochs=1, save_steps=2)
    first.fit(Batches())
    before = moments(first)
    assert len(before) == 8

    frozen = make_trainer(tmp_path, num_epochs=2, train_mode="ft-out")
    frozen.load_last_checkpoint()
    kept = moments(frozen)
    assert set(kept) == {"out.weight", "out.bias"}
    assert all(torch.equal(kept[name], before[name]) for name in kept)
    frozen.fit(Batches())

    thawed = make_trainer(tmp_path, num_epochs=3)
    thawed.load_last_checkpoint()
    after = moments(thawed)
    assert all(torch.equal(after[name], moments(frozen)[name]) for name in kept)
    assert not torch.equal(after["out.weight"], before["out.weight"])
    thawed.fit(Batches())
    assert set(moments(thawed)) == set(before)
