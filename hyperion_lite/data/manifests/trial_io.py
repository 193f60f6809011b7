"""Trial lists in files: tables, and Kaldi's lines without a header."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.kaldi_io import text_lines
from hyperion_lite.data.manifests.arrow_tools import as_chunked, to_text
from hyperion_lite.data.manifests.table_io import read_table, table_format, write_table

MODEL_NAMES = ("modelid", "model_id", "model", "enroll", "enrollment", "enroll_id", "enrollid", "id1")
SEGMENT_NAMES = ("segmentid", "segment_id", "segment", "test", "test_id", "testid", "utt_id", "id2", "id")
LABEL_NAMES = ("targettype", "target_type", "target", "label", "key")
_TRUE = frozenset({"target", "tgt", "tar", "true", "1", "1.0"})
_FALSE = frozenset({"nontarget", "non-target", "imposter", "impostor", "non", "false", "0", "0.0"})


class TrialColumns(NamedTuple):
    """A trial list by column: text columns, and bool labels (num_trials,) or ``None``."""

    models: pa.Array | pa.ChunkedArray
    segments: pa.Array | pa.ChunkedArray
    target: np.ndarray | None


Faults = list[tuple[int, str]]
"""Malformed rows (from 1) and what is wrong with them."""


def fault(path: Path, row: int, message: str, faults: Faults | None) -> None:
    """Note that row ``row`` (from 1) is malformed.

    Raises:
        ManifestError: there is no list to note it in.
    """
    if faults is None:
        raise ManifestError(f"{path}: row {row}: {message}")
    faults.append((row, message))


def id_column(table: pa.Table, name: str, path: Path, faults: Faults | None) -> pa.ChunkedArray:
    """The ids of a column as text; empty ones are faults and become ``""``."""
    column = to_text(table.column(name))
    for row in np.flatnonzero(column.is_null().to_numpy()).tolist():
        fault(path, row + 1, f"{name!r} is empty", faults)
    return column.fill_null("")


def find_column(names: list[str], accepted: tuple[str, ...]) -> str | None:
    """The first of ``accepted`` that is among ``names``."""
    return next((name for name in accepted if name in names), None)


def read_trials(path: Path, sep: str | None = None, faults: Faults | None = None) -> TrialColumns:
    """Read a trial list.

    Args:
        path: its file.
        sep: separator of a table.
        faults: if given, malformed rows are added to it. They stay in the list, so that rows keep their numbers: with ids ``""`` where
            they have none, and as nontargets where they have no label.

    Raises:
        FileNotFoundError: no such file.
        ManifestError: malformed; names file and row.
    """
    if table_format(path) == "text" and sep is None and not _has_header(path):
        return _read_lines(path, faults)
    table = read_table(path, sep)
    table = table.rename_columns([name.strip() for name in table.column_names])
    model, segment = find_column(table.column_names, MODEL_NAMES), find_column(table.column_names, SEGMENT_NAMES)
    if model is None or segment is None:
        raise ManifestError(f"{path}: a trial list needs columns modelid and segmentid; it has {table.column_names}")
    models, segments = (id_column(table, name, path, faults) for name in (model, segment))
    label = find_column(table.column_names, LABEL_NAMES)
    target = None if label is None else _to_labels(table.column(label), path, faults)
    return TrialColumns(models, segments, target)


def _has_header(path: Path) -> bool:
    first = first_line(path, "a trial list")
    names = first.replace("\t", ",").split(",")
    return len(names) > 1 and (find_column(names, MODEL_NAMES) is not None or "," in first)


def first_line(path: Path, what: str) -> str:
    """First line of a text file that is not empty; ``what`` the file should be is for messages.

    Raises:
        ManifestError: there is none, or it is no UTF-8.
    """
    for _, line in text_lines(path):
        return line
    raise ManifestError(f"{path}: is empty, {what} was expected")


def names_columns(fields: list[str]) -> bool:
    """Whether the first line of a list, split at white space, is a header rather than an entry."""
    return fields[0] in MODEL_NAMES and fields[1:2] != [] and fields[1] in SEGMENT_NAMES


def _read_lines(path: Path, faults: Faults | None) -> TrialColumns:
    rows: list[list[str]] = []
    for number, line in text_lines(path):
        fields = line.split()
        if len(fields) not in (2, 3) or (rows and len(fields) != len(rows[0])):
            message = f"expected `model segment [target|nontarget]`, found {line[:80]!r}"
            if faults is None or not rows:
                raise ManifestError(f"{path}:{number}: {message}")
            faults.append((len(rows) + (not names_columns(rows[0])), message))
            fields = [""] * len(rows[0])
        rows.append(fields)
    if names_columns(rows[0]):
        header, *rows = rows
        if not rows:
            raise ManifestError(f"{path}: holds no trial after its header {' '.join(header)!r}")
    if len(rows[0]) == 2:
        return TrialColumns(pa.array([r[0] for r in rows]), pa.array([r[1] for r in rows]), None)
    # some lists put the label first: `1 model segment`
    label_first = all(r[0] in ("0", "1", "") for r in rows) and rows[0][2].lower() not in _TRUE | _FALSE
    model, segment, label = (1, 2, 0) if label_first else (0, 1, 2)
    labels = _to_labels(pa.array([r[label] or "nontarget" for r in rows]), path, faults)
    return TrialColumns(pa.array([r[model] for r in rows]), pa.array([r[segment] for r in rows]), labels)


def _to_labels(column: pa.Array | pa.ChunkedArray, path: Path, faults: Faults | None) -> np.ndarray:
    text = pc.utf8_lower(pc.utf8_trim_whitespace(to_text(as_chunked(column)))).fill_null("")
    true = pc.is_in(text, value_set=pa.array(sorted(_TRUE))).to_numpy().astype(bool)
    false = pc.is_in(text, value_set=pa.array(sorted(_FALSE))).to_numpy().astype(bool)
    for row in np.flatnonzero(~(true | false)).tolist():
        fault(path, row + 1, f"label {column[row].as_py()!r}, expected target or nontarget", faults)
    return true


def write_trials(columns: TrialColumns, path: Path) -> None:
    """Write a table, or Kaldi's lines where the suffix is ``.txt`` or missing."""
    labels = None if columns.target is None else np.where(columns.target, "target", "nontarget").tolist()
    if path.suffix.lower() in (".txt", ""):
        fields = [columns.models.to_pylist(), columns.segments.to_pylist(), *([labels] if labels is not None else [])]
        with atomic_file(path) as temporary:
            temporary.write_text("".join(" ".join(row) + "\n" for row in zip(*fields, strict=True)), encoding="utf-8")
        return
    table = {"modelid": columns.models, "segmentid": columns.segments}
    if labels is not None:
        table["targettype"] = pa.array(labels, pa.string())
    write_table(pa.table(table), path)
