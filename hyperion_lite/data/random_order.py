"""Random orders of many millions of items."""

from __future__ import annotations

import numpy as np

_BLOCK = 1 << 15
_INDEX_BITS = 32


def random_order(rng: np.random.Generator, count: int) -> np.ndarray:
    """A permutation of ``count`` items (count,) int32, int64 for 2**31 and more.

    Sorting numbers whose upper half is random is twice as fast as swapping items, which are far apart in memory. Upper halves that
    are equal, a few in a million items, leave their items in the order of their numbers.
    """
    if count >= 2**31:
        return rng.permutation(count)
    keys = rng.integers(0, 2**64, size=count, dtype=np.uint64)
    for begin in range(0, count, _BLOCK):
        block = keys[begin : begin + _BLOCK]
        block >>= np.uint64(_INDEX_BITS)
        block <<= np.uint64(_INDEX_BITS)
        block |= np.arange(begin, begin + len(block), dtype=np.uint64)
    keys.sort()
    # the order takes the first half of the same memory: memory that is touched for the first time costs more than sorting it
    order = keys.view(np.int32)[:count]
    for begin in range(0, count, _BLOCK):
        order[begin : begin + _BLOCK] = keys[begin : begin + _BLOCK] & np.uint64(2**31 - 1)
    del order
    keys.resize(-(-count // 2), refcheck=False)
    return keys.view(np.int32)[:count]


def flat_numbers(mask: np.ndarray) -> np.ndarray:
    """Numbers of the true entries of ``mask``, in the narrowest type that :func:`random_order` uses too."""
    numbers = np.flatnonzero(mask)
    return numbers.astype(np.int32) if len(mask) < 2**31 else numbers


def row_offsets(counts: np.ndarray) -> np.ndarray:
    """Where the items of each row begin, and their number at the end (rows + 1,): int32 where that holds them, else int64."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32 if int(counts.sum(dtype=np.int64)) < 2**31 else np.int64)
    np.cumsum(counts, out=offsets[1:], dtype=offsets.dtype)
    return offsets
