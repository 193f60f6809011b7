"""Signals: a complete checkpoint, a code to requeue on, and the same result in the end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hyperion_lite.trainers.events import Schedule, SignalListener
from hyperion_lite.trainers.training_loop import REQUEUE_EXIT_CODE
from tests.trainers.runs import Run, complete_run, last_checkpoint
from tests.trainers.small_training import Batches, SmallTrainer, assert_same_state, make_trainer


class Interrupted(SmallTrainer):
    """Sends itself a signal in a training or validation batch."""

    at: tuple[str, int] = ("", 0)
    seen: dict[str, int]

    def compute_loss(self, batch: Any) -> Any:
        kind = "train" if self.module.training else "validation"
        self.seen = {**getattr(self, "seen", {}), kind: getattr(self, "seen", {}).get(kind, 0) + 1}
        if (kind, self.seen[kind]) == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().compute_loss(batch)


@pytest.mark.parametrize("at", [("train", 1), ("train", 4), ("train", 5), ("validation", 2), ("validation", 8)])
def test_a_signal_ends_with_a_checkpoint_that_continues_exactly(tmp_path: Path, at: tuple[str, int]) -> None:
    options = {"num_epochs": 2, "grad_acc_steps": 2, "val_steps": 2}
    whole = make_trainer(tmp_path / "whole", **options)
    expected = whole.fit(Batches(), Batches(seed=1))
    first = make_trainer(tmp_path / "cut", cls=Interrupted, **options)
    first.at = at
    with pytest.raises(SystemExit) as end:
        first.fit(Batches(), Batches(seed=1))
    assert end.value.code == REQUEUE_EXIT_CODE
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert first.find_last_checkpoint_dir() is not None
    again = make_trainer(tmp_path / "cut", **options)
    assert again.load_last_checkpoint() is not None
    assert again.fit(Batches(), Batches(seed=1)) == expected
    assert_same_state(again.module.state_dict(), whole.module.state_dict())


def test_sigterm_to_a_process_of_two_ranks_saves_within_seconds(tmp_path: Path) -> None:
    spec = {"world_size": 2, "trainer": {"num_epochs": 500}, "data": {"seconds_per_item": 0.002}}
    run = Run(tmp_path, spec)
    while not any(tmp_path.glob("checkpoint_ep0001_*")):
        time.sleep(0.02)
        assert all(p.exitcode is None for p in run.processes)
    # one rank hears of it, all of them stop
    begin = time.monotonic()
    run.processes[1].terminate()
    for process in run.processes:
        process.join(25)
    assert [p.exitcode for p in run.processes] == [REQUEUE_EXIT_CODE] * 2
    assert time.monotonic() - begin < 25
    step = int(last_checkpoint(tmp_path).name[-10:])
    checkpoint = complete_run(tmp_path, {**spec, "trainer": {"num_epochs": 500, "max_steps": step + 1}})
    assert int(checkpoint.name[-10:]) == step + 1


def test_a_second_interrupt_is_immediate() -> None:
    with SignalListener() as listener:
        os.kill(os.getpid(), signal.SIGINT)
        assert listener.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_schedules() -> None:
    now = [0.0]
    schedule = Schedule(10, 0.5, "save", clock=lambda: now[0])
    assert [s for s in range(31) if schedule.due_by_steps(s)] == [10, 20, 30]
    schedule.done(20)
    assert not schedule.due_by_steps(20)
    assert not schedule.due_by_clock()
    now[0] = 1800.0
    assert schedule.due_by_clock()
    schedule.done(21)
    assert not schedule.due_by_clock()
    never = Schedule(None, 0, "val", clock=lambda: 1e9)
    assert not never.due_by_clock() and not never.due_by_steps(10)
