"""Dealing the items of one global batch to the ranks."""

from __future__ import annotations

import numpy as np


def num_dealt(size: int, world_size: int, per_rank: int, last: bool) -> int:
    """Items of a global batch of ``size`` after fill-up.

    The last batch, and any batch too small to give each rank ``per_rank`` items, is filled up to equal parts; of other batches the
    parts differ by at most one item.
    """
    if last or size < world_size * per_rank:
        return max(-(-size // world_size), per_rank) * world_size
    return size


def deal(
    lengths: np.ndarray, world_size: int, rank: int, per_rank: int, last: bool, sort: bool
) -> tuple[np.ndarray, int]:
    """Positions in the global batch that ``rank`` gets.

    Items are dealt by decreasing length, to and fro over the ranks, so that every rank's longest item, and with it its padded size,
    is nearly the same. Fill-up items are the shortest ones again. The ranks that get one item more are those with the shorter items.

    Args:
        lengths: (n,) lengths of the items of the global batch.
        world_size: number of ranks.
        rank: whose part is wanted.
        per_rank: smallest part.
        last: whether the parts have to be equal.
        sort: order the part by decreasing length; else in the order of the global batch.

    Returns:
        positions (int64), of which the last ``repeats`` are fill-up items, and ``repeats``.
    """
    size = len(lengths)
    if world_size == 1 and size >= per_rank:
        return (np.argsort(-lengths, kind="stable") if sort else np.arange(size)), 0
    order = np.argsort(-lengths, kind="stable")
    total = num_dealt(size, world_size, per_rank, last)
    fill = order[size - 1 - np.arange(total - size) % size]
    order = np.concatenate([order, fill])
    slots = np.arange(total)
    row, column = np.divmod(slots, world_size)
    backwards = (row % 2 == 1) | ((row == total // world_size) & (row > 0))
    owner = np.where(backwards, world_size - 1 - column, column)
    mine = np.flatnonzero(owner == rank)
    own, extra = order[mine[mine < size]], order[mine[mine >= size]]
    if not sort:
        own = np.sort(own)
    return np.concatenate([own, extra]), len(extra)
