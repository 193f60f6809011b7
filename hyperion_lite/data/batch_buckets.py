"""Batches of items of like length."""

from __future__ import annotations

import itertools

import numpy as np

from hyperion_lite.data.batch_limits import Limits
from hyperion_lite.data.batch_packing import TOO_LONG, Packing, pack

_RESOLUTION = 240
"""Into how many batches, over all buckets, a pool of each of them is cut: the finer, the less padding and the less chance."""

_LEVELS = 2**16 - 1


def check_num_buckets(num_buckets: int) -> int:
    """``num_buckets`` if it is a number of buckets.

    Raises:
        ValueError: below 1.
    """
    if num_buckets < 1:
        raise ValueError(f"num_buckets must be at least 1, got {num_buckets}")
    return num_buckets


def pack_by_length(
    lengths: np.ndarray,
    by_length: np.ndarray,
    num_buckets: int,
    limits: Limits,
    rng: np.random.Generator | None,
    training: bool,
    drop_last: bool,
) -> Packing:
    """Batches of items of like length, in random order; without ``rng`` in the order of their lengths.

    Args:
        lengths: (n,) lengths of the items.
        by_length: their numbers by increasing length, see :func:`argsort_lengths`.
        num_buckets: number of buckets, see :func:`bucket_order`.
        limits: of a global batch.
        rng: source of randomness, or None.
        training: see :func:`pack`.
        drop_last: see :func:`pack`.
    """
    placed = by_length
    if limits.longest is not None and len(lengths) and lengths.max() > limits.longest:
        placed = by_length[lengths[by_length] <= limits.longest]
    # items that cannot be placed are left out before the buckets are made, which are for the others
    packing = pack(bucket_order(placed, lengths, num_buckets, limits, rng), lengths, limits, training, drop_last)
    if len(placed) < len(by_length):
        packing.dropped[TOO_LONG] = len(by_length) - len(placed)
    return packing if rng is None else shuffle_batches(packing, rng)


def argsort_lengths(lengths: np.ndarray) -> np.ndarray:
    """Numbers of the items by increasing length, nearly: lengths that differ by less than about 0.02 % may be swapped.

    Lengths on a logarithmic scale of 16 bits can be sorted in linear time, and such differences do not matter for padding.
    """
    if not len(lengths):
        return np.zeros(0, dtype=np.int32)
    scale = np.log(lengths)
    low = float(scale.min())
    span = max(float(scale.max()) - low, 1e-9)
    scale -= low
    scale *= _LEVELS / span
    order = np.argsort(scale.astype(np.uint16), kind="stable")
    return order.astype(np.int32) if len(order) < 2**31 else order


def shuffle_batches(packing: Packing, rng: np.random.Generator) -> Packing:
    """The same batches in a random order."""
    sizes = np.diff(packing.offsets)
    places = rng.permutation(len(sizes))
    new_sizes = sizes[places]
    offsets = np.concatenate([[0], np.cumsum(new_sizes)])
    # item j of the batch that moved from `a` to `b` moves from offsets[a] + j to new_offsets[b] + j
    shift = np.repeat(packing.offsets[:-1][places] - offsets[:-1], new_sizes)
    order = packing.order[np.arange(offsets[-1]) + shift]
    return Packing(order, offsets, packing.last[places], packing.dropped)


def bucket_order(
    by_length: np.ndarray, lengths: np.ndarray, num_buckets: int, limits: Limits, rng: np.random.Generator | None
) -> np.ndarray:
    """A random order in which neighbours have like lengths.

    The items are divided by length into buckets of like total length. In each bucket the items are dealt at random into pools of a
    few batches' worth; a pool is ordered by length, in turn rising and falling, so that the cuts between pools waste nothing. Which
    items meet in a batch is thus random, within a bucket. In a bucket too small for that, items change places with near neighbours.

    Args:
        by_length: item numbers by increasing length.
        lengths: lengths of all items.
        num_buckets: number of buckets.
        limits: of a global batch, for the size of a pool.
        rng: source of randomness; None for the plain order by length.
    """
    if rng is None:
        return by_length
    sorted_lengths = lengths[by_length]
    total = np.cumsum(sorted_lengths)
    edges = np.searchsorted(
        total, np.arange(1, num_buckets) / num_buckets * (total[-1] if len(total) else 0.0), side="left"
    )
    edges = np.unique(np.concatenate([[0], edges, [len(by_length)]]))
    per_pool = max(-(-_RESOLUTION // num_buckets), 8)
    parts = []
    for begin, end in itertools.pairwise(edges.tolist()):
        batch = int(limits.items_of(sorted_lengths[end - 1]))
        pools = int(np.clip((end - begin) // (batch * per_pool), 1, 2**16 - 1))
        size = end - begin
        parts.append(begin + (_pooled(size, pools, rng) if pools > 1 else _jittered(size, batch, rng)))
    return by_length[np.concatenate(parts)] if parts else by_length


def _jittered(count: int, reach: int, rng: np.random.Generator) -> np.ndarray:
    # too few items for pools: each may move up by the size of a batch
    return np.argsort(np.arange(count) + rng.random(count) * reach, kind="stable")


def _pooled(count: int, pools: int, rng: np.random.Generator) -> np.ndarray:
    # A stable sort of 16-bit numbers is a radix sort: it keeps the order by length inside each pool and takes linear time.
    pool = rng.integers(0, pools, size=count, dtype=np.uint16)
    order = np.argsort(pool, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(pool, minlength=pools))])
    for begin, end in zip(begins[1:-1:2], begins[2::2], strict=True):
        order[begin:end] = order[begin:end][::-1].copy()
    return order
