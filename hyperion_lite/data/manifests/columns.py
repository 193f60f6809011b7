"""Which columns a manifest has, under which other names they are accepted, and what types they get."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hyperion_lite.core.config import nearest
from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests.arrow_tools import as_chunked, is_text, to_text

_PANDAS_INDEX = re.compile(r"^(__index_level_\d+__|Unnamed: \d+|)$")
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
# where a column must hold numbers, every way to write one is read (.5, 1., +2, 007), and what other programs write for a missing one
_NUMBER = r"^(?i)[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?$|^(?i)[-+]?(inf|infinity)$"
_MISSING = ("", "nan", "na", "n/a", "null", "none")
_DECIMAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$|^-?(nan|inf|NaN|Inf)$"

TEXT_ATTRIBUTES = frozenset(
    {
        "speaker",
        "language",
        "gender",
        "sex",
        "session",
        "accent",
        "dialect",
        "corpus",
        "domain",
        "source",
        "text",
        "name",
        "channel_type",
    }
)
"""Attribute columns that stay text even where every value looks like a number."""


@dataclass(frozen=True)
class ColumnRules:
    """Columns of one kind of manifest.

    Attributes:
        kind: name of the kind, for messages.
        required: columns that must be there.
        text: columns that are ids or paths.
        floats: columns of float64; a missing value is NaN.
        integers: columns of int64.
        aliases: accepted other names -> column.
        unique_id: whether ``id`` names a row.
        finish: called with the columns by name when they have their types, to add columns that follow from others.
    """

    kind: str
    required: tuple[str, ...] = ("id",)
    text: frozenset[str] = frozenset({"id"})
    floats: frozenset[str] = frozenset()
    integers: frozenset[str] = frozenset()
    aliases: dict[str, str] = field(default_factory=dict)
    unique_id: bool = True
    finish: Callable[[dict[str, pa.ChunkedArray]], None] | None = None

    def rename(self, names: Iterable[str], file: str | None = None) -> dict[str, str]:
        """Original name -> name in the manifest, for the columns that are kept.

        Raises:
            ManifestError: a required column is missing, or two columns have the same name.
        """
        kept = [name for name in names if not _PANDAS_INDEX.match(name)]
        result: dict[str, str] = {}
        for name in kept:
            target = self.aliases.get(name.strip(), name.strip())
            # an alias gives way to the column of the proper name, which may stand beside it
            result[name] = name.strip() if target in kept and target != name else target
        twice = sorted({n for n in result.values() if list(result.values()).count(n) > 1})
        where = f"{file}: " if file else ""
        if twice or len(set(kept)) < len(kept):
            raise ManifestError(f"{where}column {(twice or kept)[0]!r} occurs twice in a {self.kind}; columns: {kept}")
        for column in self.required:
            if column not in result.values():
                hint = nearest(column, kept)
                raise ManifestError(f"{where}a {self.kind} needs a column {column!r}{hint}; it has {kept}")
        return result


@dataclass(frozen=True)
class BadValue:
    """A value that is no number where one is needed, or an empty id or path. ``row`` counts from 0."""

    row: int
    column: str
    value: str


def normalise(
    table: pa.Table, rules: ColumnRules, file: str | None = None, bad: list[BadValue] | None = None, infer: bool = True
) -> pa.Table:
    """Give the columns of ``table`` their names and types.

    Args:
        table: as read.
        rules: columns of this kind of manifest.
        file: for messages.
        bad: filled with the values that are no numbers and the ids that are empty, instead of raising.
        infer: turn text attribute columns into numbers where each value is one (files of text); see :func:`infer_number`.

    Raises:
        ManifestError: missing or repeated columns, missing ids, values that are no numbers.
    """
    names = rules.rename(table.column_names, file)
    columns: dict[str, pa.ChunkedArray] = {}
    for original, name in names.items():
        column = as_chunked(table.column(original))
        if name in rules.text:
            columns[name] = _text_column(column, name, rules, file, bad)
        elif name in rules.floats or name in rules.integers:
            problems: list[BadValue] = []
            try:
                number = to_number(column, name, name in rules.integers, problems)
            except ManifestError as error:
                raise ManifestError(f"{file}: {error}" if file else str(error)) from error
            if problems and bad is None:
                raise ManifestError(_bad_values_message(problems, file))
            if bad is not None:
                bad.extend(problems)
            columns[name] = number
        elif is_text(column.type):
            column = to_text(column)
            columns[name] = infer_number(column) if infer and name not in TEXT_ATTRIBUTES else column
        else:
            columns[name] = column
    if rules.finish is not None:
        rules.finish(columns)
    ordered = sorted(columns, key=lambda name: name != "id")
    return pa.table({name: columns[name] for name in ordered})


def _text_column(
    column: pa.ChunkedArray, name: str, rules: ColumnRules, file: str | None, bad: list[BadValue] | None
) -> pa.ChunkedArray:
    where = f"{file}: " if file else ""
    try:
        text = to_text(column)
    except pa.ArrowException as error:
        raise ManifestError(
            f"{where}column {name!r} of a {rules.kind} must hold text, it holds {column.type}"
        ) from error
    if name in rules.required and text.null_count:
        rows = np.flatnonzero(text.is_null().to_numpy())
        if bad is None:
            raise ManifestError(f"{where}row {rows[0] + 1}: {name!r} is empty")
        bad.extend(BadValue(int(row), name, "") for row in rows)
        text = text.fill_null("")
    return text


def _bad_values_message(problems: list[BadValue], file: str | None) -> str:
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    where = f"{file}: " if file else ""
    return f"{where}row {first.row + 1}: {first.column} {first.value!r} is not a number{more}"


def to_number(column: pa.ChunkedArray, name: str, integer: bool, problems: list[BadValue]) -> pa.ChunkedArray:
    """A column as float64 (missing: NaN) or int64; what is no number is added to ``problems`` and becomes missing."""
    if is_text(column.type):
        text = pc.utf8_trim_whitespace(to_text(column))
        missing = pc.is_in(pc.utf8_lower(text), value_set=pa.array(_MISSING))
        text = pc.if_else(missing, pa.scalar(None, pa.string()), text)
        fine = pc.match_substring_regex(text, _NUMBER)
        if pc.any(pc.invert(fine)).as_py():
            for row in np.flatnonzero(pc.invert(fine).fill_null(False).to_numpy()):
                problems.append(BadValue(int(row), name, str(text[int(row)].as_py())))
            text = pc.if_else(fine, text, pa.scalar(None, pa.string()))
        number = as_chunked(text).cast(pa.float64())
    else:
        try:
            number = column.cast(pa.float64())
        except pa.ArrowException as error:
            raise ManifestError(f"column {name!r} must hold numbers, it holds {column.type}") from error
    if integer:
        values = number.fill_null(0.0).to_numpy()
        for row in np.flatnonzero(~(np.isfinite(values) & (values == np.floor(values)))):
            problems.append(BadValue(int(row), name, str(values[row])))
        if problems:
            good = np.where(np.isfinite(values) & (values == np.floor(values)), values, 0.0)
            number = pa.chunked_array([pa.array(good, mask=number.is_null().to_numpy())])
        return number.cast(pa.int64())
    return number.fill_null(float("nan"))


def infer_number(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A text column as int64, float64 or bool where each value is written as such; otherwise, as with leading zeros, as it is."""
    if len(column) == column.null_count:
        return column
    for pattern, type_ in ((_INTEGER, pa.int64()), (_DECIMAL, pa.float64()), ("^(true|false)$", pa.bool_())):
        if pc.all(pc.match_substring_regex(column, pattern)).as_py():
            return column.cast(type_)
    return column
