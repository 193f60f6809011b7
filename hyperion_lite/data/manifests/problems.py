"""Faults of manifests as a list, and reading manifests that have them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests.columns import BadValue, normalise
from hyperion_lite.data.manifests.info_table import InfoTable
from hyperion_lite.data.manifests.table_io import open_parquet, read_arrow, read_text, table_format

_T = TypeVar("_T", bound=InfoTable)


@dataclass(frozen=True)
class Problem:
    """One fault.

    Attributes:
        kind: short name, the same for all faults of a kind.
        file: manifest, or the name of one held in memory.
        row: data row from 1 (in CSV, line 2 of the file is row 1); ``None`` where the fault is not in one row.
        id: what the row is about.
        message: what is wrong.
    """

    kind: str
    file: str
    row: int | None
    id: str | None
    message: str

    def __str__(self) -> str:
        where = f"{self.file}: " + (f"row {self.row}: " if self.row is not None else "")
        return f"{where}{self.kind}: " + (f"{self.id!r}: " if self.id else "") + self.message

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self)


@dataclass
class LooseTable:
    """A manifest read in spite of its faults.

    Attributes:
        table: the rows that could be read.
        name: its file, for messages.
        row_numbers: number of each row in the file, from 1.
    """

    table: Any
    name: str
    row_numbers: np.ndarray

    def problem(self, kind: str, row: int | np.integer, message: str) -> Problem:
        """A fault of row ``row`` (from 0) of :attr:`table`."""
        return Problem(kind, self.name, int(self.row_numbers[row]), self.table.ids[int(row)], message)


def read_loosely(kind: type[_T], source: Any, name: str, problems: list[Problem]) -> LooseTable | None:
    """Read a manifest, adding what is wrong with it to ``problems``; ``None`` where nothing could be read.

    Args:
        kind: class of the manifest.
        source: its file, or the manifest itself.
        name: of the manifest in the data set, for messages where it has no file.
        problems: faults are added to it.
    """
    if not isinstance(source, (str, os.PathLike)):
        return LooseTable(source, source.file or name, np.arange(1, len(source) + 1))
    path = Path(source)
    bad_rows: list[tuple[int, str]] = []
    bad_values: list[BadValue] = []
    try:
        raw, is_text = _read(path, bad_rows)
        table = normalise(raw, kind.rules, None, bad_values, infer=is_text)
    except FileNotFoundError:
        problems.append(Problem("missing file", str(path), None, None, "no such file"))
        return None
    except (ManifestError, pa.ArrowException) as error:
        message = str(error).removeprefix(f"{path}: ")
        problems.append(Problem("malformed file", str(path), None, None, message))
        return None
    skipped = [row for row, _ in bad_rows]
    numbers = np.setdiff1d(np.arange(1, len(table) + len(skipped) + 1), skipped)
    for row, message in bad_rows:
        problems.append(Problem("malformed row", str(path), row, None, message))
    loose = LooseTable(kind._wrap(table, str(path)), str(path), numbers)
    for bad in bad_values:
        what = f"{bad.column} {bad.value!r} is not a number" if bad.value else f"{bad.column} is empty"
        problems.append(loose.problem("bad value", bad.row, what))
    return loose


def _read(path: Path, bad_rows: list[tuple[int, str]]) -> tuple[pa.Table, bool]:
    format_ = table_format(path)
    if format_ == "parquet":
        return open_parquet(path).read(), False
    if format_ == "arrow":
        return read_arrow(path), False
    return read_text(path, on_bad_row=lambda row, message: bad_rows.append((row, message))), True


def duplicate_problems(loose: LooseTable) -> Iterable[Problem]:
    """One problem for each row whose id stands in an earlier row."""
    for row, first in loose.table.id_index.duplicates(loose.table.table.column("id")):
        if loose.table.ids[row]:
            yield loose.problem("duplicate id", row, f"is the id of row {loose.row_numbers[first]} too")
