"""Metrics in a CSV file that a killed and resumed run continues as if nothing had happened."""

from __future__ import annotations

import csv
import io
import logging
import os
from pathlib import Path
from typing import Literal

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.loggers.logger import Logger, Logs, metrics_of, position_of

logger = logging.getLogger(__name__)

_LEADING = ["epoch", "step"]


class CSVLogger(Logger):
    """One row for each epoch, and for each validation in between; or one for every ``interval`` updates.

    The columns are ``epoch``, ``step`` and the metrics in the order of their first appearance. A metric that appears later gets a
    column at the end, empty in earlier rows. Numbers are written so that reading them gives the same bits.

    When training begins at a position, rows beyond its ``step`` (of a run that was killed after them) are removed, as is a last line
    that was not completely written. A row for the epoch and step of the last one replaces it.

    Args:
        file_path: the file; its folder is made.
        append: keep the rows of an earlier run up to the position that training begins at; ``False`` starts an empty file.
        event: ``epoch`` for rows at the ends of epochs and validations, ``batch`` for rows inside epochs.
        interval: updates between rows of ``batch``.
        sep: between the columns.

    Raises:
        ConfigError: an ``interval`` below 1, or a ``sep`` that is not one character.
    """

    def __init__(
        self,
        file_path: str | os.PathLike[str],
        append: bool = True,
        event: Literal["epoch", "batch"] = "epoch",
        interval: int = 1,
        sep: str = ",",
    ) -> None:
        if interval < 1:
            raise ConfigError(f"interval must be at least 1, got {interval}")
        if len(sep) != 1:
            raise ConfigError(f"sep must be one character, got {sep!r}")
        self.file_path = Path(file_path)
        self.append = append
        self.event = event
        self.interval = interval
        self.sep = sep
        self._columns: list[str] = list(_LEADING)
        self._last_position: tuple[str, str] | None = None
        self._is_open = False

    def on_train_begin(self, logs: Logs) -> None:  # type: ignore[override]
        """Make the file, or remove what lies beyond the position in ``logs``. Without a ``step`` there, all rows stay."""
        self.file_path.parent.mkdir(parents=True, exist_ok=True)
        step = position_of(logs, "step")
        columns, rows = self._read() if self.append else (list(_LEADING), [])
        kept = [row for row in rows if step is None or _step_of(row) <= step]
        if len(kept) < len(rows):
            logger.info("%s: removed %d rows beyond step %s", self.file_path, len(rows) - len(kept), step)
        self._write_all(columns, kept)

    def on_batch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        step = position_of(logs, "step")
        if self.event == "batch" and step and step % self.interval == 0:
            self._add(logs)

    def on_validation_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        if self.event == "epoch":
            self._add(logs)

    def on_epoch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        if self.event == "epoch":
            self._add(logs)

    def _add(self, logs: Logs) -> None:
        if not self._is_open:
            self.on_train_begin({})
        row = {key: _text(position_of(logs, key)) for key in _LEADING}
        row.update({key: _text(value) for key, value in metrics_of(logs).items()})
        new = [key for key in row if key not in self._columns]
        if new or (row["epoch"], row["step"]) == self._last_position:
            columns, rows = self._read()
            if rows and (rows[-1]["epoch"], rows[-1]["step"]) == (row["epoch"], row["step"]):
                row = {**rows.pop(), **row}
            self._write_all([*columns, *new], [*rows, row])
            return
        with open(self.file_path, "a", encoding="utf-8", newline="") as file:
            file.write(self._line([row.get(key, "") for key in self._columns]))
            file.flush()
            os.fsync(file.fileno())
        self._last_position = (row["epoch"], row["step"])

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """Columns and complete rows of the file."""
        if not self.file_path.is_file():
            return list(_LEADING), []
        with open(self.file_path, encoding="utf-8", newline="") as file:
            text = file.read()
        complete = text[: text.rfind("\n") + 1]
        lines = list(csv.reader(io.StringIO(complete, newline=""), delimiter=self.sep))
        if not lines:
            return list(_LEADING), []
        columns = lines[0]
        if columns[: len(_LEADING)] != _LEADING:
            raise ConfigError(
                f"{self.file_path} has the columns {', '.join(columns)}, so it is no log of this kind; move it away or choose another file"
            )
        rows = [dict(zip(columns, line, strict=True)) for line in lines[1:] if len(line) == len(columns)]
        if len(rows) < len(lines) - 1 or complete != text:
            logger.warning("%s: an incomplete line was removed", self.file_path)
        return columns, rows

    def _write_all(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        with atomic_file(self.file_path) as temporary:
            lines = [columns, *([row.get(key, "") for key in columns] for row in rows)]
            temporary.write_text("".join(map(self._line, lines)), encoding="utf-8", newline="")
        self._columns = columns
        self._last_position = (rows[-1]["epoch"], rows[-1]["step"]) if rows else None
        self._is_open = True

    def _line(self, values: list[str]) -> str:
        buffer = io.StringIO(newline="")
        csv.writer(buffer, delimiter=self.sep, lineterminator="\n").writerow(values)
        return buffer.getvalue()


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)


def _step_of(row: dict[str, str]) -> float:
    try:
        return float(row["step"])
    except ValueError:
        # a row that was written without a step belongs to no position, so it stays
        return 0.0
