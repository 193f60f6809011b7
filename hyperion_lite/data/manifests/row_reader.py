"""Single rows of a mapped manifest by positioned reads, so that random look-ups leave no pages in a process.

The pages of a mapped file that a process touches count as its resident memory, and the system maps their neighbours too: a few
thousand random look-ups would make a manifest of a gigabyte resident in every worker. Reading the few bytes of one row from the page
cache costs about the same and leaves nothing behind.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hyperion_lite.data.manifests.id_index import hash_one

CAN_READ_ROWS = hasattr(os, "pread")

_FORMATS = {
    pa.int8(): "<b",
    pa.int16(): "<h",
    pa.int32(): "<i",
    pa.int64(): "<q",
    pa.uint8(): "<B",
    pa.uint16(): "<H",
    pa.uint32(): "<I",
    pa.uint64(): "<Q",
    pa.float32(): "<f",
    pa.float64(): "<d",
}


class _Chunk(NamedTuple):
    # positions in the file of the buffers of one chunk, and its offset in them
    offset: int
    validity: int | None
    first: int
    second: int


class RowReader:
    """Reads rows of an Arrow file and rows by id.

    Args:
        table_file: the Arrow file.
        table: its table, mapped, of which only the layout is looked at.
        address: where in memory the map of the file begins.
        hash_file: sorted hashes of the ids, a ``.npy`` file.
        row_file: row of each hash, a ``.npy`` file.
        hashes: the mapped hashes, of which only the shape is looked at.
        rows: likewise the mapped rows.
    """

    def __init__(
        self,
        table_file: Path,
        table: pa.Table,
        address: int,
        hash_file: Path,
        row_file: Path,
        hashes: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        # the file objects close themselves; positioned reads make sharing them between forked processes safe
        self._table_file = open(table_file, "rb", buffering=0)  # noqa: SIM115
        self._hash_file = open(hash_file, "rb", buffering=0)  # noqa: SIM115
        self._row_file = open(row_file, "rb", buffering=0)  # noqa: SIM115
        self._count, self._row_type = len(hashes), rows.dtype
        self._hash_start = os.path.getsize(hash_file) - hashes.nbytes
        self._row_start = os.path.getsize(row_file) - rows.nbytes
        self._types = {field.name: field.type for field in table.schema}
        self._starts: dict[str, list[int]] = {}
        self._chunks: dict[str, list[_Chunk]] = {}
        for name in table.column_names:
            if self._types[name] in _FORMATS or self._types[name] == pa.string():
                self._describe(name, table.column(name), address)

    def _describe(self, name: str, column: pa.ChunkedArray, address: int) -> None:
        starts, chunks, row = [], [], 0
        for chunk in column.chunks:
            if len(chunk) == 0:
                continue
            buffers = [None if b is None else b.address - address for b in chunk.buffers()]
            has_nulls = chunk.null_count > 0
            second = buffers[2] if len(buffers) > 2 and buffers[2] is not None else 0
            chunks.append(_Chunk(chunk.offset, buffers[0] if has_nulls else None, buffers[1] or 0, second))
            starts.append(row)
            row += len(chunk)
        self._starts[name], self._chunks[name] = starts, chunks

    def can_read(self, name: str) -> bool:
        """Whether the type of a column is one that is read here: numbers and text."""
        return name in self._chunks

    def value(self, name: str, row: int) -> Any:
        """The value of a column in a row, as Arrow's ``as_py()`` gives it."""
        at = bisect_right(self._starts[name], row) - 1
        chunk = self._chunks[name][at]
        place = row - self._starts[name][at] + chunk.offset
        file = self._table_file.fileno()
        if chunk.validity is not None and not os.pread(file, 1, chunk.validity + place // 8)[0] >> place % 8 & 1:
            return None
        type_ = self._types[name]
        if type_ == pa.string():
            begin, end = struct.unpack("<ii", os.pread(file, 8, chunk.first + 4 * place))
            return os.pread(file, end - begin, chunk.second + begin).decode("utf-8")
        format_ = _FORMATS[type_]
        size = struct.calcsize(format_)
        return struct.unpack(format_, os.pread(file, size, chunk.first + size * place))[0]

    def find(self, id: str) -> int:
        """Row of an id; -1 where there is none."""
        hash_ = np.uint64(hash_one(id))
        guess, spread = int(hash_) * self._count >> 64, int(1.5 * self._count**0.5) + 64
        while True:
            first, last = max(0, guess - spread), min(self._count, guess + spread)
            window = np.frombuffer(
                os.pread(self._hash_file.fileno(), 8 * (last - first), self._hash_start + 8 * first), np.uint64
            )
            # the window must reach beyond the run of equal hashes on both sides
            if (first == 0 or window[0] < hash_) and (last == self._count or window[-1] > hash_):
                break
            spread *= 4
        size = self._row_type.itemsize
        for place in range(int(window.searchsorted(hash_)), int(window.searchsorted(hash_, "right"))):
            raw = os.pread(self._row_file.fileno(), size, self._row_start + size * (first + place))
            row = int(np.frombuffer(raw, self._row_type)[0])
            if self.value("id", row) == id:
                return row
        return -1
