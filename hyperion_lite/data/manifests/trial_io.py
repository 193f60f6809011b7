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


def find_column(names: list[str], accepted: tuple[str, ...]) -> str | None:
    """The first of ``accepted`` that is among ``names``."""
    return next((name for name in accepted if name in names), None)


def read_trials(path: Path, sep: str | None = None) -> TrialColumns:
    """Read a trial list.

    Raises:
        FileNotFoundError: no such file.
        ManifestError: malformed; names file and row.
    """
    if table_format(path) == "text" and sep is None and not _has_header(path):
        return _read_lines(path)
    table = read_table(path, sep)
    table = table.rename_columns([name.strip() for name in table.column_names])
    model, segment = find_column(table.column_names, MODEL_NAMES), find_column(table.column_names, SEGMENT_NAMES)
    if model is None or segment is None:
        raise ManifestError(f"{path}: a trial list needs columns modelid and segmentid; it has {table.column_names}")
    for name in (model, segment):
        if table.column(name).null_count:
            row = int(np.flatnonzero(table.column(name).is_null().to_numpy())[0])
            raise ManifestError(f"{path}: row {row + 1}: {name!r} is empty")
    label = find_column(table.column_names, LABEL_NAMES)
    target = None if label is None else _to_labels(table.column(label), path)
    return TrialColumns(to_text(table.column(model)), to_text(table.column(segment)), target)


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


def _read_lines(path: Path) -> TrialColumns:
    rows: list[list[str]] = []
    for number, line in text_lines(path):
        fields = line.split()
        if len(fields) not in (2, 3) or (rows and len(fields) != len(rows[0])):
            raise ManifestError(f"{path}:{number}: expected `model segment [target|nontarget]`, found {line[:80]!r}")
        rows.append(fields)
    if names_columns(rows[0]):
        header, *rows = rows
        if not rows:
            raise ManifestError(f"{path}: holds no trial after its header {' '.join(header)!r}")
    if len(rows[0]) == 2:
        return TrialColumns(pa.array([r[0] for r in rows]), pa.array([r[1] for r in rows]), None)
    # some lists put the label first: `1 model segment`
    label_first = all(r[0] in ("0", "1") for r in rows) and rows[0][2].lower() not in _TRUE | _FALSE
    model, segment, label = (1, 2, 0) if label_first else (0, 1, 2)
    labels = _to_labels(pa.array([r[label] for r in rows]), path)
    return TrialColumns(pa.array([r[model] for r in rows]), pa.array([r[segment] for r in rows]), labels)


def _to_labels(column: pa.Array | pa.ChunkedArray, path: Path) -> np.ndarray:
    text = pc.utf8_lower(pc.utf8_trim_whitespace(to_text(as_chunked(column)))).fill_null("")
    true = pc.is_in(text, value_set=pa.array(sorted(_TRUE))).to_numpy().astype(bool)
    false = pc.is_in(text, value_set=pa.array(sorted(_FALSE))).to_numpy().astype(bool)
    wrong = np.flatnonzero(~(true | false))
    if len(wrong):
        value = column[int(wrong[0])].as_py()
        raise ManifestError(f"{path}: row {wrong[0] + 1}: label {value!r}, expected target or nontarget")
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
