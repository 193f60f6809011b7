"""SIGTERM came during a long validation and was looked at after it: the job was killed first, and nothing was saved.

Right: it is looked at between validation batches too; the checkpoint is written, the exit code asks for another go, and the next run
continues as if nothing had happened.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperion_lite.trainers.training_loop import REQUEUE_EXIT_CODE
from tests.trainers.small_training import Batches, assert_same_state, make_trainer


class SignalledBatches(Batches):
    """The process gets SIGTERM with the second batch, and counts how many are still asked for."""

    asked = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for self.asked, batch in enumerate(super().__iter__(), 1):
            if self.asked == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch


def test_a_checkpoint_is_written_at_once(tmp_path: Path) -> None:
    val_data = SignalledBatches(400, seed=1)
    first = make_trainer(tmp_path / "cut", val_steps=3)
    with pytest.raises(SystemExit) as end:
        first.fit(Batches(), val_data)
    assert end.value.code == REQUEUE_EXIT_CODE
    assert val_data.asked <= 4
    assert first.find_last_checkpoint_dir() is not None

    again = make_trainer(tmp_path / "cut", val_steps=3, seed=5)
    again.load_last_checkpoint()
    assert again.global_step == 3
    again.fit(Batches(), Batches(400, seed=1))
    whole = make_trainer(tmp_path / "whole", val_steps=3)
    whole.fit(Batches(), Batches(400, seed=1))
    assert_same_state(again.module.state_dict(), whole.module.state_dict())
