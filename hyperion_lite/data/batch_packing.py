"""Cutting a sequence of items into batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hyperion_lite.data.batch_limits import Limits
from hyperion_lite.data.lane_cut import LANE, cut_lanes, surest_size
from hyperion_lite.data.random_order import random_order

_BLOCK = 1 << 17

TOO_LONG = "too long for the batch limits"
"""Reason in the account for items that cannot be placed."""


@dataclass(frozen=True)
class Packing:
    """Items of an epoch in plan order, cut into global batches.

    Attributes:
        order: (n,) item numbers.
        offsets: (num_batches + 1,) batch ``b`` holds ``order[offsets[b]:offsets[b + 1]]``.
        last: (num_batches,) bool, batches that ended because the items did.
        dropped: number of items left out, by reason.
    """

    order: np.ndarray
    offsets: np.ndarray
    last: np.ndarray
    dropped: dict[str, int]

    @property
    def num_batches(self) -> int:
        return len(self.offsets) - 1


def cut(lengths: np.ndarray, limits: Limits) -> np.ndarray:
    """Cut items greedily into the largest batches that ``limits`` allow.

    Args:
        lengths: (n,) lengths of the items in plan order, each of which fits the limits.
        limits: of a global batch.

    Returns:
        (num_batches + 1,) int64 offsets into the items.
    """
    total = len(lengths)
    if not total:
        return np.zeros(1, np.int64)
    if limits.length is None:
        size = limits.max_items
        return np.append(np.arange(0, total, size, dtype=np.int64), total)
    offsets = [0]
    # the largest batch that can occur bounds how far beyond a block the search looks
    reach = min(int(limits.length / lengths.min()) + 1, limits.max_items, total)
    position = 0
    for begin in range(0, total, _BLOCK):
        window = lengths[begin : begin + _BLOCK + reach]
        sizes = _batch_sizes(window, min(_BLOCK, total - begin), total - begin, limits)
        stop = begin + len(sizes)
        while position < stop:
            position += int(sizes[position - begin])
            offsets.append(position)
    return np.asarray(offsets, dtype=np.int64)


def _batch_sizes(window: np.ndarray, count: int, remaining: int, limits: Limits) -> np.ndarray:
    # For each of the first `count` positions: the size of a batch that starts there. Size times running maximum grows with the
    # size, so the size is found bit by bit from the highest: a table of maxima over 2**k items gives the maximum of each trial.
    assert limits.length is not None
    budget, most = limits.length * (1 + 1e-9), min(limits.max_items, remaining)
    reach = min(int(budget / float(window.min())) + 1, most, len(window))
    maxima = [window]
    while 2 ** len(maxima) <= reach:
        half = 2 ** (len(maxima) - 1)
        previous = maxima[-1]
        maxima.append(np.maximum(previous[: len(previous) - half], previous[half:]))
    start = np.arange(count, dtype=np.int32)
    size = np.zeros(count, dtype=np.int32)
    longest = np.zeros(count, dtype=window.dtype)
    for power in range(len(maxima) - 1, -1, -1):
        table = maxima[power]
        where = start + size
        trial = np.maximum(longest, table.take(where, mode="clip"))
        larger = size + np.int32(2**power)
        fits = larger * trial <= budget
        fits &= larger <= most
        fits &= where < len(table)
        np.copyto(size, larger, where=fits)
        np.copyto(longest, trial, where=fits)
    # a batch that reaches the end of the items takes all of them; elsewhere sizes are multiples of the step
    at_end = start + size == remaining
    return np.maximum(np.where(at_end, size, size // limits.step * limits.step), 1)


def pack(
    order: np.ndarray, lengths: np.ndarray, limits: Limits, training: bool, drop_last: bool, shuffled: bool = False
) -> Packing:
    """Leave out items that cannot be placed, cut the others into batches, and settle the last batch.

    While training the last batch takes over items of the one before it if it would be smaller than ``limits.smallest`` or two items.
    Of a ``shuffled`` order some items may change places, and its array be changed.
    """
    dropped: dict[str, int] = {}
    lengths = lengths[order]
    if limits.longest is not None and len(order) and lengths.max() > limits.longest:
        fits = lengths <= limits.longest
        dropped[TOO_LONG] = int(len(order) - fits.sum())
        order, lengths = order[fits], lengths[fits]
    if shuffled and limits.length is not None and len(order) >= 4 * LANE and surest_size(lengths, limits) < LANE // 8:
        offsets = cut_lanes(order, lengths, limits)
        offsets = np.concatenate([offsets[:-1], offsets[-1] + cut(lengths[offsets[-1] :], limits)])
    else:
        offsets = cut(lengths, limits)
    last = np.zeros(len(offsets) - 1, dtype=bool)
    if len(last):
        last[-1] = True
        if drop_last and not _is_full(lengths, offsets, limits):
            dropped["last batch incomplete"] = int(offsets[-1] - offsets[-2])
            order, offsets, last = order[: offsets[-2]], offsets[:-1], last[:-1]
        elif training:
            _even_out(lengths, offsets, last, limits)
    return Packing(order, offsets, last, dropped)


def limit_batches(packing: Packing, batches: int | None) -> Packing:
    """The first ``batches`` batches; the items of the others are counted as dropped."""
    if batches is None or packing.num_batches <= batches:
        return packing
    kept = packing.offsets[batches]
    dropped = dict(packing.dropped)
    dropped["beyond max_batches_per_epoch"] = int(packing.offsets[-1] - kept)
    return Packing(packing.order, packing.offsets[: batches + 1], packing.last[:batches], dropped)


def _is_full(lengths: np.ndarray, offsets: np.ndarray, limits: Limits) -> bool:
    begin, end = offsets[-2:]
    size = end - begin
    if size >= limits.max_items:
        return True
    if limits.length is None:
        return False
    longest = lengths[begin:end].max()
    return size % limits.step == 0 and bool((size + limits.step) * longest > limits.length)


def _even_out(lengths: np.ndarray, offsets: np.ndarray, last: np.ndarray, limits: Limits) -> None:
    wanted = max(2, limits.smallest)
    missing = wanted - (offsets[-1] - offsets[-2])
    if len(last) < 2 or missing <= 0 or offsets[-2] - offsets[-3] - missing < wanted:
        return
    begin = offsets[-2] - missing
    if limits.length is not None and wanted * lengths[begin : offsets[-1]].max() > limits.length * (1 + 1e-9):
        return
    offsets[-2] = begin
    last[-2] = True


def pack_in_order(
    lengths: np.ndarray, limits: Limits, rng: np.random.Generator | None, training: bool, drop_last: bool
) -> Packing:
    """Batches of the items in random order, or in their own order without ``rng``."""
    if rng is not None:
        return pack(random_order(rng, len(lengths)), lengths, limits, training, drop_last, shuffled=True)
    order = np.arange(len(lengths), dtype=np.int32 if len(lengths) < 2**31 else np.int64)
    return pack(order, lengths, limits, training, drop_last)
