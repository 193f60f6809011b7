"""Rows by id for millions of ids, in two arrays that processes can share.

The index is the sorted array of 64-bit hashes of the ids and the row of each. Looking up is a binary search, and the id found is
compared with the one asked for, so that equal hashes cannot give a wrong row. Both arrays can be memory-mapped files: a worker process
that looks up ids holds no copy of them.
"""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hyperion_lite.data.manifests.arrow_tools import take, to_text

_MULTIPLIER = 0x9E3779B97F4A7C55
_MASK = (1 << 64) - 1
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_BLOCK_BYTES = 1 << 17
_BLOCK_ROWS = 1 << 16
_MANY_TIES = 10_000
_SMALL_INDEX = 1 << 16
HASH_FILE, ROW_FILE = "id_hash.npy", "id_row.npy"


@lru_cache(maxsize=2)
def _powers(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _hash_block(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    # A polynomial in the bytes of each id, modulo 2**64, from running sums over the whole block. The multiplier is odd, hence
    # invertible, which lets the position of an id in the block be divided out.
    size = max(_BLOCK_BYTES, 1 << int(len(data) + 1).bit_length())
    running = np.zeros(len(data) + 1, np.uint64)
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * _powers(_MULTIPLIER, size)[: len(data)], out=running[1:])
    lengths = np.diff(offsets).astype(np.uint64)
    mixed = (running[offsets[1:]] - running[offsets[:-1]]) * _powers(_INVERSE, size)[offsets[:-1]] + lengths
    # finaliser of splitmix64 (Steele, Lea, Flood 2014), which spreads the entropy over all bits
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def hash_text(column: pa.ChunkedArray) -> np.ndarray:
    """64-bit hashes (rows,) uint64 of a column of text without missing values; the same in every process and version."""
    parts: list[np.ndarray] = []
    for chunk in to_text(column).chunks:
        start = 0
        while start < len(chunk):
            piece = chunk.slice(start, _BLOCK_ROWS)
            _, offset_buffer, data_buffer = piece.buffers()
            offsets = np.frombuffer(offset_buffer, np.int32)[piece.offset : piece.offset + len(piece) + 1].astype(
                np.int64
            )
            rows = max(1, int(np.searchsorted(offsets, offsets[0] + _BLOCK_BYTES - 1, "right")) - 1)
            offsets = offsets[: rows + 1]
            first, last = int(offsets[0]), int(offsets[-1])
            data = np.frombuffer(data_buffer, np.uint8, last - first, first) if last > first else np.zeros(0, np.uint8)
            parts.append(_hash_block(offsets - first, data))
            start += len(offsets) - 1
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


@lru_cache(maxsize=1024)
def _python_powers(capacity: int, count: int) -> tuple[list[int], int]:
    # powers of the multiplier, and the sum of the first `count`
    powers = _power_list(capacity)
    return powers, sum(powers[:count])


@lru_cache(maxsize=8)
def _power_list(capacity: int) -> list[int]:
    return [pow(_MULTIPLIER, exponent, 1 << 64) for exponent in range(capacity)]


def hash_one(text: str) -> int:
    """The hash of one id, equal to that of :func:`hash_text`, without arrays."""
    data = text.encode("utf-8", "surrogatepass")
    powers, total = _python_powers(max(64, 1 << len(data).bit_length()), len(data))
    # the polynomial of (byte + 1) is that of the bytes plus that of ones
    value = (sum(map(mul, data, powers)) + total + len(data)) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def _stable_order(hashes: np.ndarray) -> np.ndarray:
    """``np.argsort(hashes, kind="stable")`` (rows,) int64, ten times as fast for the hashes of many different ids.

    Numbers sort faster than their places: the row takes the place of the lower bits of each hash. Rows whose upper bits are equal, few
    among different ids, are put in order afterwards.
    """
    bits = np.uint64(max(1, len(hashes).bit_length()))
    packed = (hashes >> bits << bits) | np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64((1 << int(bits)) - 1)).astype(np.int64)
    packed >>= bits
    tied = np.flatnonzero(packed[1:] == packed[:-1])
    if len(tied) > _MANY_TIES:
        return np.argsort(hashes, kind="stable")
    for places in np.split(tied, np.flatnonzero(np.diff(tied) > 1) + 1):
        if len(places):
            run = slice(places[0], places[-1] + 2)
            order[run] = order[run][np.argsort(hashes[order[run]], kind="stable")]
    return order


class IdIndex:
    """Row of each id.

    Args:
        hashes: sorted (rows,) uint64.
        rows: row of each hash, uint32 or int64.
    """

    def __init__(self, hashes: np.ndarray, rows: np.ndarray) -> None:
        self.hashes, self.rows = hashes, rows

    @classmethod
    def from_hashes(cls, hashes: np.ndarray) -> IdIndex:
        """Sort the hashes of the rows."""
        order = _stable_order(hashes)
        rows = order.astype(np.uint32) if len(order) < 1 << 32 else order
        return cls(hashes[order], rows)

    @classmethod
    def build(cls, ids: pa.ChunkedArray) -> IdIndex:
        """Index a column of ids."""
        return cls.from_hashes(hash_text(ids))

    def save(self, folder: Path) -> None:
        """Write the two arrays into ``folder``."""
        np.save(folder / HASH_FILE, self.hashes)
        np.save(folder / ROW_FILE, self.rows)

    def _place(self, hash_: np.uint64) -> int:
        # Hashes are spread evenly, so the place of one is known up to a few standard deviations: the search stays in a few pages.
        count = len(self.hashes)
        if count <= _SMALL_INDEX:
            return int(self.hashes.searchsorted(hash_))
        guess, spread = int(hash_) * count >> 64, 4 * int(count**0.5) + 16
        first, last = max(0, guess - spread), min(count, guess + spread)
        if (first == 0 or self.hashes[first - 1] < hash_) and (last == count or self.hashes[last] >= hash_):
            return first + int(self.hashes[first:last].searchsorted(hash_))
        return int(self.hashes.searchsorted(hash_))

    def find_one(self, id: str, ids: pa.ChunkedArray) -> int:
        """Row of one id; -1 where there is none."""
        hash_ = np.uint64(hash_one(id))
        return self._walk(self._place(hash_), hash_, id, ids)

    def find_all(self, id: str, ids: pa.ChunkedArray) -> np.ndarray:
        """All rows (n,) int64 of an id, in row order, for tables in which an id may stand in several rows."""
        hash_ = np.uint64(hash_one(id))
        first = last = self._place(hash_)
        while last < len(self.hashes) and self.hashes[last] == hash_:
            last += 1
        rows = np.sort(self.rows[first:last].astype(np.int64))
        return np.array([row for row in rows if ids[int(row)].as_py() == id], np.int64)

    def find(self, wanted: pa.ChunkedArray, ids: pa.ChunkedArray) -> np.ndarray:
        """Rows (wanted,) int64 of the ids ``wanted``; -1 where there is none. ``ids`` is the indexed column."""
        hashes = hash_text(wanted)
        found = np.full(len(hashes), -1, np.int64)
        if len(self.hashes) == 0 or len(hashes) == 0:
            return found
        # in sorted order the searches walk through memory instead of jumping about in it
        order = np.argsort(hashes) if len(hashes) > 1024 else np.arange(len(hashes))
        places = np.empty(len(hashes), np.int64)
        places[order] = np.searchsorted(self.hashes, hashes[order])
        hit = places < len(self.hashes)
        hit[hit] = self.hashes[places[hit]] == hashes[hit]
        queries = np.flatnonzero(hit)
        rows = self.rows[places[queries]].astype(np.int64)
        same = _equal(take(ids, rows), take(wanted, queries))
        found[queries[same]] = rows[same]
        for query in queries[~same]:
            found[query] = self._walk(int(places[query]) + 1, hashes[query], wanted[int(query)].as_py(), ids)
        return found

    def _walk(self, place: int, hash_: np.uint64, id: str, ids: pa.ChunkedArray) -> int:
        # different ids of one hash stand side by side
        while place < len(self.hashes) and self.hashes[place] == hash_:
            row = int(self.rows[place])
            if ids[row].as_py() == id:
                return row
            place += 1
        return -1

    def duplicates(self, ids: pa.ChunkedArray) -> list[tuple[int, int]]:
        """Pairs (row, row of the first occurrence) of the rows whose id stands in an earlier row, by row."""
        repeated = np.flatnonzero(self.hashes[1:] == self.hashes[:-1]) + 1
        pairs: list[tuple[int, int]] = []
        first: dict[str, int] = {}
        run_hash: np.uint64 | None = None
        for place in repeated:
            if self.hashes[place] != run_hash:
                run_hash = self.hashes[place]
                row = int(self.rows[place - 1])
                first = {ids[row].as_py(): row}
            row = int(self.rows[place])
            id = ids[row].as_py()
            if id in first:
                pairs.append((row, first[id]))
            else:
                first[id] = row
        return sorted(pairs)


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    return pc.equal(left, right).to_numpy().astype(bool)
