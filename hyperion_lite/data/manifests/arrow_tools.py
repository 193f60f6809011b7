"""Small operations on Arrow columns that must not copy a large table: rows by number, views as numpy arrays, plain types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# so few rows are fetched one by one: cheaper than a call of the compute library
_FEW = 32


def as_chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """``column`` as a chunked array."""
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def chunk_starts(column: pa.ChunkedArray) -> np.ndarray:
    """First row of each chunk, and the number of rows at the end; int64."""
    return np.cumsum([0, *(len(chunk) for chunk in column.chunks)])


def take(column: pa.ChunkedArray, rows: np.ndarray) -> pa.ChunkedArray:
    """Rows of a column in the order of ``rows`` (int64). Never joins the chunks of a column, as Arrow's own ``take`` can."""
    if column.num_chunks == 1:
        return pa.chunked_array([column.chunk(0).take(pa.array(rows))], type=column.type)
    if len(rows) <= _FEW:
        return pa.chunked_array(
            [pa.array([column[int(row)].as_py() for row in rows], type=column.type)], type=column.type
        )
    starts = chunk_starts(column)
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    bounds = np.searchsorted(ordered, starts)
    pieces = [
        column.chunk(i).take(pa.array(ordered[bounds[i] : bounds[i + 1]] - starts[i]))
        for i in range(column.num_chunks)
        if bounds[i + 1] > bounds[i]
    ]
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return pa.chunked_array([pa.concat_arrays(pieces).take(pa.array(inverse))], type=column.type)


def take_rows(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Rows of a table in the order of ``rows`` (int64)."""
    return pa.table({name: take(table.column(name), rows) for name in table.column_names})


def is_text(type_: pa.DataType) -> bool:
    """Whether a column holds text, in any of Arrow's layouts."""
    if pa.types.is_dictionary(type_):
        return is_text(type_.value_type)
    views = getattr(pa.types, "is_string_view", None)
    return pa.types.is_string(type_) or pa.types.is_large_string(type_) or bool(views and views(type_))


def to_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as plain ``string``; numbers are written as Python writes them."""
    if column.type == pa.string():
        return column
    if pa.types.is_dictionary(column.type):
        return to_text(column.cast(column.type.value_type))
    return column.cast(pa.string())


def to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """A column as a numpy array: a view of the Arrow memory where there is one chunk of numbers without missing values.

    Missing numbers become NaN; text becomes an object array of ``str`` (a copy).
    """
    number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if column.num_chunks == 1 and column.null_count == 0 and number:
        return column.chunk(0).to_numpy(zero_copy_only=True)
    if pa.types.is_integer(column.type) and column.null_count:
        column = column.cast(pa.float64())
    return column.to_numpy()


def codes_of(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """A column of categories as int32 codes (-1: missing) and the list of categories, sorted."""
    encoded = to_text(column).dictionary_encode().unify_dictionaries()
    values = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = np.empty(len(values) + 1, np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    rank[-1] = -1
    parts = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    codes = rank[np.concatenate(parts)] if parts else np.zeros(0, np.int32)
    return codes, [values[i] for i in order]


class TextColumn(Sequence[str]):
    """A column of text as a sequence that makes its strings on demand, so that ten million of them cost no memory."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.arrow = column

    def __len__(self) -> int:
        return len(self.arrow)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self.arrow.slice(start, max(0, stop - start)).to_pylist()
            return self.take(np.arange(start, stop, step))
        index = int(index)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of a table of {len(self)}")
        return self.arrow[index].as_py()

    def take(self, rows: np.ndarray | Sequence[int]) -> list[str]:
        """The strings of ``rows``."""
        return take(self.arrow, np.asarray(rows, np.int64)).to_pylist()

    def __iter__(self) -> Iterator[str]:
        for chunk in self.arrow.chunks:
            for start in range(0, len(chunk), 1 << 16):
                yield from chunk.slice(start, 1 << 16).to_pylist()

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and bool(pc.any(pc.equal(self.arrow, pa.scalar(value))).as_py())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TextColumn):
            return self.arrow.equals(other.arrow)
        if isinstance(other, (list, tuple)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(list(self), dtype=dtype or object)

    def __repr__(self) -> str:
        shown = ", ".join(repr(v) for v in self[:3])
        return f"TextColumn({len(self)}: {shown}{', ...' if len(self) > 3 else ''})"


def same_column(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Whether two columns of one type are equal. A missing number equals a missing number, though NaN differs from NaN."""
    if pa.types.is_floating(left.type):
        return np.array_equal(left.to_numpy(), right.to_numpy(), equal_nan=True)
    return left.equals(right)


def id_column(ids: Iterable[str] | pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Ids of any form as a column of text."""
    if isinstance(ids, TextColumn):
        return ids.arrow
    if isinstance(ids, (pa.Array, pa.ChunkedArray)):
        return to_text(as_chunked(ids))
    return pa.chunked_array([pa.array([str(i) for i in ids], pa.string())], type=pa.string())
