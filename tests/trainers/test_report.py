"""The report of a run, with and without matplotlib, and after a resume."""

import logging
import sys

import pytest
import torch

from hyperion_lite.trainers.report import CURVES_FILE, REPORT_FILE, ReportLogger, draw_curves, report_text

HISTORY = [
    {"epoch": 0, "seconds": 30.0, "step": 10, "train_loss": 2.5, "val_eer": 0.3, "lr": 1e-3},
    {"epoch": 1, "seconds": 60.0, "step": 20, "train_loss": 1.5, "val_eer": 0.1, "lr": 5e-4},
    {"epoch": 2, "seconds": 90.0, "step": 30, "train_loss": 1.25, "val_eer": 0.2, "lr": 1e-5},
]
OPTIONS = {"best_metric": "val_eer", "best_mode": "min"}


def test_report_says_what_was_trained_and_which_epoch_was_best():
    text = report_text(HISTORY, torch.nn.Linear(3, 4), OPTIONS, has_picture=True)
    assert "Linear, 16 parameters" in text and "Epochs: 3, 1.5 minutes" in text
    assert "Best val_eer: 0.1 after epoch 1." in text and f"]({CURVES_FILE})" in text
    assert "| 2 | 30 | 1.25 | 0.2 | 1e-05 |" in text.replace("  ", " ")
    assert CURVES_FILE not in report_text(HISTORY, torch.nn.Linear(3, 4), OPTIONS, has_picture=False)


def test_without_the_metric_there_is_no_best_epoch():
    assert "Best" not in report_text(HISTORY, torch.nn.Linear(1, 1), {"best_metric": "val_acc"}, has_picture=False)


def test_curves_are_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    assert draw_curves(HISTORY, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not draw_curves([{"epoch": 0, "seconds": 1.0}], tmp_path / "none.png")


def test_without_matplotlib_the_report_has_no_picture_and_the_log_says_how_to_get_one(tmp_path, monkeypatch, caplog):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = ReportLogger(tmp_path, torch.nn.Linear(1, 1), OPTIONS)
    with caplog.at_level(logging.INFO, "hyperion_lite"):
        report.on_train_begin({"step": 0})
        report.on_epoch_end({"epoch": 0, "step": 3, "train_loss": 1.0})
        report.on_train_end({})
    assert 'pip install "hyperion-lite[plots]"' in caplog.text
    assert "1" in (tmp_path / REPORT_FILE).read_text() and not (tmp_path / CURVES_FILE).exists()


def test_a_resumed_run_continues_its_report(tmp_path):
    model = torch.nn.Linear(1, 1)
    first = ReportLogger(tmp_path, model, OPTIONS)
    first.on_train_begin({"step": 0})
    for epoch in range(3):
        first.on_epoch_end({"epoch": epoch, "step": 10 * (epoch + 1), "train_loss": 3.0 - epoch})
    # the checkpoint of the third epoch was not complete
    second = ReportLogger(tmp_path, model, OPTIONS)
    second.on_train_begin({"step": 20})
    second.on_epoch_end({"epoch": 2, "step": 30, "train_loss": 0.5})
    rows = [
        line
        for line in (tmp_path / REPORT_FILE).read_text().splitlines()
        if line.startswith("| ") and line[2].isdigit()
    ]
    assert [row.split(" | ")[0] for row in rows] == ["| 0", "| 1", "| 2"]
    assert "0.5" in rows[2] and " 1 |" not in rows[2]


def test_a_damaged_history_does_not_stop_training(tmp_path, caplog):
    (tmp_path / "report_history.json").write_text("{nonsense")
    report = ReportLogger(tmp_path, torch.nn.Linear(1, 1), OPTIONS)
    report.on_train_begin({"step": 0})
    report.on_epoch_end({"epoch": 0, "step": 1, "train_loss": 1.0})
    assert "begins anew" in caplog.text and (tmp_path / REPORT_FILE).is_file()
