from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from hyperion_lite.loggers import CSVLogger, Logger, LoggerList

EVENTS = ("on_train_begin", "on_epoch_begin", "on_batch_end", "on_validation_end", "on_epoch_end", "on_train_end")


class Recorder(Logger):
    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def on_train_begin(self, logs: Any) -> None:
        self.heard.append(("on_train_begin", logs))

    def on_epoch_end(self, logs: Any) -> None:
        self.heard.append(("on_epoch_end", logs))


class FullDisk(Logger):
    def on_batch_end(self, logs: Any) -> None:
        if logs["step"] < 3:
            raise OSError(28, "No space left on device")


class Careless(Logger):
    def on_epoch_end(self, logs: Any) -> None:
        logs.clear()


@pytest.fixture
def other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)


def test_all_are_told_in_order() -> None:
    first, second = Recorder(), Recorder()
    both = LoggerList([first])
    both.append(second)
    for event in EVENTS:
        getattr(both, event)({"loss": 1.0})
    assert first.heard == second.heard == [("on_train_begin", {"loss": 1.0}), ("on_epoch_end", {"loss": 1.0})]
    assert list(both) == [first, second] and len(both) == 2


def test_position_is_remembered_between_events() -> None:
    recorder = Recorder()
    both = LoggerList([recorder])
    both.on_train_begin(epochs=5, epoch=2, step=10)
    both.on_epoch_begin(3, batches=4)
    both.on_epoch_end({"loss": 1.0}, step=14)
    assert recorder.heard[-1][1] == {"num_epochs": 5, "num_batches": 4, "epoch": 3, "step": 14, "loss": 1.0}


def test_loggers_cannot_disturb_each_other_or_the_caller() -> None:
    recorder, logs = Recorder(), {"loss": 1.0}
    LoggerList([Careless(), recorder]).on_epoch_end(logs)
    assert recorder.heard[0][1] == logs == {"loss": 1.0}


def test_a_logger_that_cannot_write_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    both = LoggerList([FullDisk()])
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3, 2):
            both.on_batch_end({"step": step})
    assert [r.message for r in caplog.records].count(
        "FullDisk cannot write ([Errno 28] No space left on device); training goes on"
    ) == 2


def test_other_ranks_are_silent(other_rank: None, tmp_path) -> None:
    recorder = Recorder()
    table = CSVLogger(tmp_path / "log.csv")
    both = LoggerList([recorder, table])
    for one in (both, recorder, table):
        for event in EVENTS:
            getattr(one, event)({"step": 1, "loss": 1.0})
    assert recorder.heard == [] and list(tmp_path.iterdir()) == []


def test_without_loggers_nothing_happens() -> None:
    none = LoggerList()
    for event in EVENTS:
        getattr(none, event)()
