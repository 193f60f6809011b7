"""Consecutive chunks that cover segments."""

from __future__ import annotations

import numpy as np

from hyperion_lite.data.chunk_options import ChunkOptions
from hyperion_lite.data.epoch_plan import ItemBatch

_BLOCK = 1 << 18


class SegmentCuts:
    """Segments cut into chunks that cover them; where a chunk lies is computed when it is asked for.

    A segment is cut into equal parts, as many as come closest to the average chunk length; each inner cut is then moved at random by
    up to half of what the limits leave, so that no chunk breaks them. Where no number of parts keeps the limits, all chunks of the
    segment have the longest length and the last ones overlap.

    Args:
        lengths: (n,) lengths of the segments.
        chunks: limits of the chunks' lengths.
        rng: moves the cuts; None for equal parts.
        numbers: (n,) segment numbers, or None for 0, 1, ...
        dropped: segments left out before, by reason.
        short: how many of the segments are shorter than a chunk may be.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        chunks: ChunkOptions,
        rng: np.random.Generator | None,
        numbers: np.ndarray | None = None,
        dropped: dict[str, int] | None = None,
        short: int = 0,
    ) -> None:
        self.segment_lengths, self.chunks, self.numbers = lengths, chunks, numbers
        self.dropped, self.short = dict(dropped or {}), short
        least = np.maximum(np.ceil(lengths / chunks.maximum - 1e-6), 1)
        most = np.floor(lengths / chunks.minimum + 1e-6)
        wanted = np.clip(np.rint(lengths / chunks.average), least, most)
        count = np.where(least <= most, wanted, least).astype(np.int64)
        self.first = np.concatenate([[0], np.cumsum(count)])
        # one number for the begin of each chunk, and one more so that the end of the last can be asked for like any other
        self.moves = None if rng is None else rng.random(len(self) + 1, dtype=np.float32)
        self.lengths = self._all_lengths()

    def __len__(self) -> int:
        return int(self.first[-1])

    def _all_lengths(self) -> np.ndarray:
        # rounded down to 32 bits, for batches of many millions of chunks
        lengths = np.empty(len(self), dtype=np.float32)
        for begin in range(0, len(self.segment_lengths), _BLOCK):
            first = self.first[begin : begin + _BLOCK + 1]
            segment = np.repeat(np.arange(begin, begin + len(first) - 1), np.diff(first))
            items = np.arange(first[0], first[-1])
            starts, ends = self._bounds(segment, items)
            lengths[first[0] : first[-1]] = (ends - starts) * (1 - 1e-7)
        return lengths

    def _bounds(self, segment: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chunks, total = self.chunks, self.segment_lengths[segment]
        number = items - self.first[segment]
        count = self.first[segment + 1] - self.first[segment]
        even = total / count
        starts, ends = number * even, np.where(number + 1 < count, (number + 1) * even, total)
        if self.moves is not None:
            room = np.maximum(np.minimum(even - chunks.minimum, chunks.maximum - even), 0.0)
            starts += np.where(number > 0, (self.moves[items] - 0.5) * room, 0.0)
            ends += np.where(number + 1 < count, (self.moves[items + 1] - 0.5) * room, 0.0)
        overlapping = even < chunks.minimum * (1 - 2e-6)
        if overlapping.any():
            longest = np.minimum(total, chunks.maximum)
            starts = np.where(overlapping, np.minimum(number * longest, total - longest), starts)
            ends = np.where(overlapping, np.minimum(starts + longest, total), ends)
        return starts, ends

    def segments_of(self, items: np.ndarray) -> np.ndarray:
        """Segment numbers of chunks."""
        segment = np.searchsorted(self.first, items, side="right") - 1
        return segment if self.numbers is None else self.numbers[segment]

    def take(self, items: np.ndarray) -> ItemBatch:
        """Chunks by number."""
        items = items.astype(np.int64)
        segment = np.searchsorted(self.first, items, side="right") - 1
        starts, ends = self._bounds(segment, items)
        numbers = segment if self.numbers is None else self.numbers[segment]
        return ItemBatch(numbers, ends - starts, starts, items - self.first[segment])
