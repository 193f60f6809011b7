"""Each rank looked at its own clock to decide whether to save: one went to write a checkpoint, the others to the next batch, for ever.

Right: rank 0 decides for all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hyperion_lite.trainers.events import Schedule
from tests.trainers.small_training import Batches, make_trainer
from tests.two_ranks import in_two_ranks


def train_with_a_clock(rank: int, path: Path) -> dict[str, Any]:
    """Both schedules go by a clock: that of rank 1 says "now" at each look, that of rank 0 after the third update."""
    trainer = make_trainer(path / "exp", num_epochs=1)
    now = [0.0]

    def clock() -> float:
        now[0] += 10_000.0 * rank
        return now[0] + 10_000.0 * (trainer.global_step >= 3)

    trainer._save_schedule = Schedule(None, 1.0, "save", clock)
    trainer._val_schedule = Schedule(None, 1.0, "val", clock)
    trainer.fit(Batches(24), Batches(8))
    saved = sorted(p.name for p in (path / "exp").glob("checkpoint_*"))
    return {
        "steps": trainer.global_step,
        "saved": saved,
        "validations": len(trainer.loggers.named("on_validation_end")),
    }


def test_rank_0_decides(tmp_path: Path) -> None:
    first, second = in_two_ranks(train_with_a_clock, tmp_path)
    assert first["steps"] == second["steps"] == 6
    assert first["validations"] == second["validations"] == 1
    assert first["saved"] == ["checkpoint_ep0000_step0000000004", "checkpoint_ep0001_step0000000006"]
