"""Cutting a random order of many items into batches, in many places at once."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hyperion_lite.data.batch_limits import Limits

LANE = 1 << 16
"""Items of a lane."""

_FIRST_STEP = 4


def cut_lanes(order: np.ndarray, lengths: np.ndarray, limits: Limits) -> np.ndarray:
    """Cut items in random order greedily into batches under a limit of their padded length.

    The order is divided into lanes, in each of which the next batch is cut at the same time as in all others. What is left at the
    end of a lane, less than a batch, changes its place in the order, which is random anyway: both arrays are rearranged, with these
    items at their end.

    Args:
        order: (n,) item numbers; changed.
        lengths: (n,) lengths of the items in that order; changed.
        limits: of a global batch, with a length.

    Returns:
        (num_batches + 1,) int64 offsets of the batches; the items from the last one on are still to be cut.
    """
    begins = np.arange(len(order) // LANE, dtype=np.int64) * LANE
    sizes, ends = _lane_batches(lengths, begins, limits)
    kept = [slice(begin, end) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    left = [slice(end, begin + LANE) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    for array in (order, lengths):
        rest = np.concatenate([array[part] for part in left] + [array[len(begins) * LANE :]])
        position = 0
        for part in kept:
            array[position : position + part.stop - part.start] = array[part]
            position += part.stop - part.start
        array[position:] = rest
    return np.concatenate([[0], np.cumsum(sizes)])


def _lane_batches(lengths: np.ndarray, begins: np.ndarray, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    # sizes of the batches of all lanes, lane by lane, and where each lane's last batch ends
    position, lane_ends = begins.copy(), begins + LANE
    active = np.arange(len(begins))
    surest = surest_size(lengths, limits)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    while len(active):
        room = lane_ends[active] - position[active]
        size = _sizes(lengths, position[active], surest, limits)
        # a batch that reaches the end of the lane could be longer: its items are left
        closed = size < room
        active, size = active[closed], size[closed]
        size = np.maximum(size // limits.step * limits.step, 1)
        steps.append((active, size))
        position[active] += size
    lanes, sizes = (np.concatenate(parts) for parts in zip(*steps, strict=True))
    return sizes[np.argsort(lanes, kind="stable")], position


def surest_size(lengths: np.ndarray, limits: Limits) -> int:
    """So many items fit a batch whichever they are."""
    assert limits.length is not None
    return max(1, min(int(limits.length / float(lengths.max())), limits.max_items, len(lengths)))


def _sizes(lengths: np.ndarray, start: np.ndarray, surest: int, limits: Limits) -> np.ndarray:
    # of the batches that begin at `start`: first the items that fit in any case, then as many more as fit, in growing steps
    assert limits.length is not None
    budget, most = limits.length * (1 + 1e-9), min(limits.max_items, LANE)
    first = np.minimum(start, len(lengths) - surest)
    longest = sliding_window_view(lengths, surest)[first].max(axis=1)
    size = np.full(len(start), surest)
    growing, width = np.arange(len(start)), _FIRST_STEP
    while len(growing) and surest < most:
        window = lengths.take((start + size)[growing, None] + np.arange(width), mode="clip")
        window[:, 0] = np.maximum(window[:, 0], longest[growing])
        np.maximum.accumulate(window, axis=1, out=window)
        number = size[growing, None] + np.arange(1, width + 1)
        fitting = ((window * number <= budget) & (number <= most)).sum(axis=1)
        size[growing] += fitting
        whole = fitting == width
        growing, window = growing[whole], window[whole]
        longest[growing] = window[:, -1]
        width *= 2
    return size
