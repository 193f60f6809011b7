from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.loggers import CSVLogger


def rows_of(path: Path, sep: str = ",") -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=sep))


def epoch_logs(epoch: int) -> dict[str, object]:
    return {"epoch": epoch, "step": (epoch + 1) * 4, "train_loss": 1.0 / (epoch + 3), "val_eer": 0.1 * epoch}


def run(path: Path, first_epoch: int, last_epoch: int) -> None:
    one = CSVLogger(path)
    one.on_train_begin({"epoch": first_epoch, "step": first_epoch * 4})
    for epoch in range(first_epoch, last_epoch):
        one.on_epoch_begin({"epoch": epoch})
        one.on_batch_end({"step": epoch * 4 + 1, "train_loss": 5.0})
        one.on_epoch_end(epoch_logs(epoch))
    # no on_train_end: the process was killed


def test_rows_hold_the_bits_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "train.csv"
    one = CSVLogger(path)
    one.on_train_begin({})
    values = {
        "a": 1 / 3,
        "b": np.float32(0.1),
        "c": torch.tensor(0.1),
        "d": float("nan"),
        "e": 7,
        "text": "no number",
        "f": None,
    }
    one.on_epoch_end({"epoch": 0, "step": 3, "num_epochs": 9, **values})
    (row,) = rows_of(path)
    assert list(row) == ["epoch", "step", "a", "b", "c", "d", "e"]
    assert float(row["a"]) == 1 / 3 and float(row["b"]) == float(np.float32(0.1)) == float(row["c"])
    assert (row["d"], row["e"]) == ("nan", "7")


@settings(max_examples=25, deadline=None)
@given(killed=st.integers(0, 6), saved=st.integers(0, 6), cut=st.integers(0, 30))
def test_a_killed_and_resumed_run_leaves_the_file_of_a_straight_one(
    tmp_path_factory: pytest.TempPathFactory, killed: int, saved: int, cut: int
) -> None:
    """It was killed while it wrote a row of epoch ``killed``, and resumes from the checkpoint after epoch ``saved``."""
    folder = tmp_path_factory.mktemp("csv")
    run(folder / "straight.csv", 0, 6)
    run(folder / "killed.csv", 0, killed)
    with open(folder / "killed.csv", "a") as file:
        file.write("6,28,0.123456789,0.123456789,0.12"[:cut])
    run(folder / "killed.csv", min(saved, killed), 6)
    assert (folder / "killed.csv").read_bytes() == (folder / "straight.csv").read_bytes()


def test_a_row_of_the_same_position_replaces_the_last(tmp_path: Path) -> None:
    """The checkpoint lies between the last update and the row of the epoch, or that of a validation at the same step."""
    run(tmp_path / "log.csv", 0, 2)
    one = CSVLogger(tmp_path / "log.csv")
    one.on_train_begin({"epoch": 1, "step": 8})
    one.on_validation_end({"epoch": 1, "step": 8, "val_loss": 3.0})
    one.on_epoch_end(epoch_logs(1))
    rows = rows_of(tmp_path / "log.csv")
    assert [row["step"] for row in rows] == ["4", "8"]
    assert rows[1]["val_loss"] == "3.0" and float(rows[1]["train_loss"]) == 0.25


def test_a_new_metric_gets_a_column_at_the_end(tmp_path: Path) -> None:
    run(tmp_path / "log.csv", 0, 1)
    one = CSVLogger(tmp_path / "log.csv")
    one.on_train_begin({"step": 4})
    one.on_epoch_end({"epoch": 1, "step": 8, "margin": 0.2, "train_loss": 0.5})
    one.on_epoch_end({"epoch": 2, "step": 12, "train_loss": 0.25})
    rows = rows_of(tmp_path / "log.csv")
    assert list(rows[0]) == ["epoch", "step", "train_loss", "val_eer", "margin"]
    assert [row["margin"] for row in rows] == ["", "0.2", ""]
    assert [row["val_eer"] for row in rows] == ["0.0", "", ""]


def test_without_append_the_file_starts_empty(tmp_path: Path) -> None:
    run(tmp_path / "log.csv", 0, 2)
    CSVLogger(tmp_path / "log.csv", append=False).on_train_begin({"step": 8})
    assert rows_of(tmp_path / "log.csv") == []
    assert (tmp_path / "log.csv").read_text() == "epoch,step\n"


def test_without_a_step_all_rows_stay(tmp_path: Path) -> None:
    run(tmp_path / "log.csv", 0, 2)
    CSVLogger(tmp_path / "log.csv").on_train_begin({})
    assert len(rows_of(tmp_path / "log.csv")) == 2


def test_epoch_is_remembered_and_may_come_as_argument(tmp_path: Path) -> None:
    one = CSVLogger(tmp_path / "log.csv")
    one.on_train_begin(epochs=3, epoch=0, step=0)
    one.on_epoch_begin(2, batches=7)
    one.on_epoch_end({"loss": 1.0}, step=21)
    assert rows_of(tmp_path / "log.csv") == [{"epoch": "2", "step": "21", "loss": "1.0"}]


def test_rows_inside_epochs(tmp_path: Path) -> None:
    one = CSVLogger(tmp_path / "steps.csv", event="batch", interval=3, sep="\t")
    one.on_train_begin({"step": 0})
    for step in range(1, 8):
        one.on_batch_end({"epoch": 0, "step": step, "loss": step * 0.5})
    one.on_epoch_end({"epoch": 0, "step": 7, "loss": 9.0})
    assert [row["step"] for row in rows_of(tmp_path / "steps.csv", "\t")] == ["3", "6"]


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "trials.csv").write_text("enrolment,trial\na,b\n")
    with pytest.raises(ConfigError, match="enrolment, trial"):
        CSVLogger(tmp_path / "trials.csv").on_train_begin({})
    assert (tmp_path / "trials.csv").read_text() == "enrolment,trial\na,b\n"


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="interval"):
        CSVLogger(tmp_path / "log.csv", interval=0)
    with pytest.raises(ConfigError, match="sep"):
        CSVLogger(tmp_path / "log.csv", sep="")
