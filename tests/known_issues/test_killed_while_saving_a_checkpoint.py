"""A training run was killed while it saved: the newest checkpoint was cut off and resuming crashed; temporaries piled up.

And one failed write to a network disk ended a week of training. Right: a checkpoint is complete or absent; where the newest one is
damaged anyway, the one before is used, with a word; left-over temporaries are removed; a failed write is tried again and reported,
and training goes on.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.core.atomic import TEMPORARY_MARK, is_temporary
from tests.trainers.small_training import Batches, SmallTrainer, assert_same_state, make_trainer


def trained(path: Path, **options: Any) -> SmallTrainer:
    """After two epochs of five updates with a checkpoint after each."""
    trainer = make_trainer(path, **options)
    trainer.fit(Batches())
    return trainer


@pytest.mark.parametrize(
    "name", ["trainer_state.json", "model/model.safetensors", "model/optimizer.pt", "rng_state.pth"]
)
def test_the_one_before_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    last = trained(tmp_path).find_last_checkpoint_dir()
    os.truncate(last / name, os.path.getsize(last / name) // 2)
    again = make_trainer(tmp_path, seed=7)
    again.load_last_checkpoint()
    assert (again.cur_epoch, again.global_step) == (1, 5)
    assert last.name in caplog.text
    again.fit(Batches())
    assert_same_state(again.module.state_dict(), trained(tmp_path / "undisturbed").module.state_dict())


def test_temporaries_are_no_checkpoints_and_go_away(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    left = tmp_path / f"checkpoint_ep0009_step0000000099{TEMPORARY_MARK}abc"
    (left / "model").mkdir(parents=True)
    (left / "trainer_state.json").write_text("{")
    assert_same_state(HyperTorchModel.auto_load(tmp_path).state_dict(), trainer.module.state_dict())
    again = make_trainer(tmp_path, num_epochs=3)
    again.load_last_checkpoint()
    assert again.cur_epoch == 2
    again.fit(Batches())
    assert not any(is_temporary(path) for path in tmp_path.iterdir())


def test_a_failed_write_is_tried_again_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save, failures = torch.save, iter([True, True])

    def flaky(*arguments: Any, **options: Any) -> None:
        if next(failures, False):
            raise OSError(5, "Input/output error")
        save(*arguments, **options)

    monkeypatch.setattr(torch, "save", flaky)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with caplog.at_level(logging.WARNING):
        trainer = trained(tmp_path)
    assert trainer.global_step == 10
    assert "Input/output error" in caplog.text
    assert {p.name for p in tmp_path.glob("checkpoint_*")} == {
        "checkpoint_ep0001_step0000000005",
        "checkpoint_ep0002_step0000000010",
    }
