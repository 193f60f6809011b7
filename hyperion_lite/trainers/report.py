"""``report.md`` of an experiment: what was trained, how it went, and curves."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import MissingDependencyError
from hyperion_lite.core.extras import require
from hyperion_lite.loggers.logger import Logger, Logs, metrics_of, position_of

logger = logging.getLogger(__name__)

REPORT_FILE = "report.md"
CURVES_FILE = "report_curves.png"
HISTORY_FILE = "report_history.json"
_MOST_ROWS = 200
_SECONDS_BETWEEN_PICTURES = 60.0
_PANELS = (
    ("loss", ("train_loss", "val_loss")),
    ("accuracy", ("train_acc", "val_acc")),
    ("equal error rate", ("val_eer",)),
    ("learning rate", ("lr",)),
)


class ReportLogger(Logger):
    """Writes the report after every epoch, so that a killed run has one too. A resumed run continues it.

    Args:
        folder: the experiment.
        model: for its class and size.
        options: of the trainer: ``best_metric`` and ``best_mode``.
        notes: sentences about the run.
    """

    def __init__(self, folder: Path, model: Any, options: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
        self._notes = list(notes)
        self.folder = Path(folder)
        self._model = model
        self._options = options
        self._history: list[dict[str, float]] = []
        self._begun = self._drawn = -math.inf
        self._seconds_before = 0.0

    def on_train_begin(self, logs: Logs) -> None:  # type: ignore[override]
        """Take the epochs of the interrupted run up to where this one begins."""
        self._begun = time.monotonic()
        step = position_of(logs, "step") or 0
        self._history = [row for row in _read_history(self.folder / HISTORY_FILE) if row.get("step", 0) <= step]
        self._seconds_before = self._history[-1].get("seconds", 0.0) if self._history else 0.0

    def on_epoch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """Add the epoch and write the report."""
        seconds = self._seconds_before + time.monotonic() - self._begun
        row = {"epoch": position_of(logs, "epoch") or 0, "seconds": seconds, **metrics_of(logs)}
        step = position_of(logs, "step")
        if step is not None:
            row["step"] = step
        self._history = [earlier for earlier in self._history if earlier["epoch"] < row["epoch"]] + [row]
        due = time.monotonic() - self._drawn > _SECONDS_BETWEEN_PICTURES
        self._write(with_picture=due)

    def on_train_end(self, logs: Logs) -> None:  # type: ignore[override]
        """Write the final report."""
        if self._history:
            self._write(with_picture=True)

    def _write(self, with_picture: bool) -> None:
        with atomic_file(self.folder / HISTORY_FILE) as temporary:
            temporary.write_text(json.dumps(self._history), encoding="utf-8")
        if with_picture:
            draw_curves(self._history, self.folder / CURVES_FILE)
            self._drawn = time.monotonic()
        has_picture = (self.folder / CURVES_FILE).is_file()
        text = report_text(self._history, self._model, self._options, has_picture, self._notes)
        with atomic_file(self.folder / REPORT_FILE) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _read_history(path: Path) -> list[dict[str, float]]:
    if not path.is_file():
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [{str(key): float(value) for key, value in row.items()} for row in rows]
    except (ValueError, AttributeError, TypeError) as error:
        logger.warning("%s cannot be read, the report begins anew: %s", path, error)
        return []


def report_text(
    history: Sequence[Mapping[str, float]],
    model: Any,
    options: Mapping[str, Any],
    has_picture: bool,
    notes: Sequence[str] = (),
) -> str:
    """The report as Markdown.

    Args:
        history: one row of metrics an epoch, with ``epoch`` and ``seconds``.
        model: for its class and size.
        options: of the trainer: ``best_metric`` and ``best_mode``.
        has_picture: whether the curves are there to be shown.
        notes: sentences about the run.
    """
    last = history[-1]
    lines = ["# Training report", ""]
    lines += [f"* Model: {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters."]
    lines += [f"* Epochs: {int(last['epoch']) + 1}, {last['seconds'] / 60:.1f} minutes. Configuration: `config.yaml`."]
    lines += [f"* {note}." for note in notes]
    best = _best_row(history, options.get("best_metric"), options.get("best_mode", "min"))
    if best is not None:
        name = options["best_metric"]
        lines.append(f"* Best {name}: {best[name]:.4g} after epoch {int(best['epoch'])}.")
    if has_picture:
        lines += ["", f"![Curves of the training]({CURVES_FILE})"]
    lines += ["", *_table(history)]
    return "\n".join(lines) + "\n"


def _best_row(history: Sequence[Mapping[str, float]], name: str | None, mode: str) -> Mapping[str, float] | None:
    rows = [row for row in history if name is not None and math.isfinite(row.get(name, math.nan))]
    if not rows or name is None:
        return None
    return (min if mode == "min" else max)(rows, key=lambda row: row[name])


def _table(history: Sequence[Mapping[str, float]]) -> list[str]:
    names = list(dict.fromkeys(key for row in history for key in row if key != "seconds"))
    names = ["epoch", *(name for name in names if name != "epoch")]
    shown = history[-_MOST_ROWS:]
    lines = [f"The last {len(shown)} epochs:" if len(shown) < len(history) else "All epochs:", ""]
    lines += ["| " + " | ".join(names) + " |", "|" + " ---: |" * len(names)]
    for row in shown:
        lines.append("| " + " | ".join(_number(row.get(name)) for name in names) + " |")
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def draw_curves(history: Sequence[Mapping[str, float]], path: Path) -> bool:
    """Draw loss, accuracy, error rate and learning rate by epoch into a PNG; without matplotlib say so in the log and draw nothing.

    Returns:
        Whether there is a picture.
    """
    try:
        figure_module = require("matplotlib.figure", extra="plots", purpose="the curves of the training report")
    except MissingDependencyError as error:
        logger.info("the report has no curves: %s", error)
        return False
    names = {key for row in history for key in row}
    panels = [(title, [key for key in keys if key in names]) for title, keys in _PANELS]
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        return False
    figure = figure_module.Figure(figsize=(4.2 * len(panels), 3.2), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for key in keys:
            points = [(row["epoch"], row[key]) for row in history if key in row]
            axes.plot(*zip(*points, strict=True), marker=".", label=key)
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        if len(keys) > 1:
            axes.legend()
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=100)
    return True
