from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hyperion_lite.core.errors import ConfigError, MissingDependencyError
from hyperion_lite.loggers import TensorBoardLogger, WAndBLogger


class FakeRun:
    """What the service's client gives: remembers what it was told."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.id = settings["id"] or "new-id"
        self.rows: list[dict[str, Any]] = []
        self.step_metric: tuple[str, str] | None = None
        self.finished = False

    def define_metric(self, name: str, step_metric: str) -> None:
        self.step_metric = (name, step_metric)

    def log(self, values: dict[str, Any]) -> None:
        self.rows.append(values)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    made: list[FakeRun] = []
    client = ModuleType("wandb")
    client.init = lambda **settings: made.append(FakeRun(**settings)) or made[-1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", client)
    return made


def test_wandb_run(runs: list[FakeRun], tmp_path: Path) -> None:
    one = WAndBLogger(tmp_path / "exp", project="speakers", mode="offline", interval=2, config={"lr": 0.1})
    one.on_train_begin({"epoch": 0, "step": 0})
    for step in (1, 2, 3):
        one.on_batch_end({"epoch": 0, "step": step, "train_loss": 0.5 * step})
    one.on_epoch_end({"epoch": 0, "step": 3, "val_eer": 0.1})
    one.on_train_end({})
    (run,) = runs
    assert run.rows == [{"running/train_loss": 1.0, "epoch": 0, "step": 2}, {"val_eer": 0.1, "epoch": 0, "step": 3}]
    assert (
        run.settings["project"] == "speakers"
        and run.settings["mode"] == "offline"
        and run.settings["config"] == {"lr": 0.1}
    )
    assert run.settings["id"] is None and run.settings["resume"] is None
    assert run.step_metric == ("*", "step") and run.finished


def test_wandb_resumes_its_run(runs: list[FakeRun], tmp_path: Path) -> None:
    WAndBLogger(tmp_path).on_train_begin({"step": 0})
    WAndBLogger(tmp_path).on_train_begin({"step": 50})
    assert runs[1].settings["id"] == runs[0].id == "new-id" and runs[1].settings["resume"] == "allow"


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingDependencyError, match=r"hyperion-lite\[wandb\]"):
        WAndBLogger(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"hyperion-lite\[tensorboard\]"):
        TensorBoardLogger(tmp_path)


def test_wrong_intervals(runs: list[FakeRun], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for cls in (WAndBLogger, TensorBoardLogger):
        with pytest.raises(ConfigError, match="interval"):
            cls(tmp_path, interval=-1)


def test_tensorboard_forgets_what_lies_beyond_the_resumed_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, stop, factor in ((0, 8, 1.0), (4, 10, 2.0)):
        one = TensorBoardLogger(tmp_path, interval=2)
        one.on_train_begin({"epoch": 0, "step": start})
        for step in range(start + 1, stop + 1):
            one.on_batch_end({"step": step, "train_loss": step * factor})
        one.on_epoch_end({"epoch": 0, "step": stop, "val_eer": 0.5})
        one.on_train_end({})
    seen = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in seen.Scalars("running/train_loss")] == [
        (2, 2),
        (4, 4),
        (6, 12),
        (8, 16),
        (10, 20),
    ]
    assert [e.step for e in seen.Scalars("val_eer")] == [10]
