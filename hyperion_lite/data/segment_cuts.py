"""Consecutive chunks that cover segments."""

from __future__ import annotations

import numpy as np

from hyperion_lite.data.chunk_options import ChunkOptions
from hyperion_lite.data.epoch_plan import ItemBatch
from hyperion_lite.data.random_order import row_offsets

_BLOCK = 1 << 15


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
        self.first = row_offsets(self._counts())
        # where each cut lies, from -1/2 to 1/2 of the room that it has; the begin of a segment, and the end of the last one, stay
        self.moves: np.ndarray | None = None
        if rng is not None:
            self.moves = rng.random(len(self) + 1, dtype=np.float32)
            self.moves -= np.float32(0.5)
            self.moves[self.first] = 0.0
        self.lengths = self._all_lengths()

    def __len__(self) -> int:
        return int(self.first[-1])

    def _counts(self) -> np.ndarray:
        # number of chunks of each segment
        chunks, counts = self.chunks, np.empty(len(self.segment_lengths), dtype=np.int32)
        for begin in range(0, len(counts), _BLOCK):
            lengths = self.segment_lengths[begin : begin + _BLOCK]
            least = np.maximum(np.ceil(lengths / chunks.maximum - 1e-6), 1)
            most = np.floor(lengths / chunks.minimum + 1e-6)
            wanted = np.clip(np.rint(lengths / chunks.average), least, most)
            counts[begin : begin + _BLOCK] = np.where(least <= most, wanted, least)
        return counts

    def _parts(self, segment: np.ndarray | slice, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # of segments: the length of equal parts, how far a cut may move to and fro, and which segments have overlapping chunks
        chunks, total = self.chunks, self.segment_lengths[segment]
        even = total / counts
        room = np.maximum(np.minimum(even - chunks.minimum, chunks.maximum - even), 0.0)
        overlapping = even < chunks.minimum * (1 - 2e-6)
        return np.where(overlapping, np.minimum(total, chunks.maximum), even), room, overlapping

    def _all_lengths(self) -> np.ndarray:
        # a little less than they are, in 32 bits, for batches of many millions of chunks
        lengths = np.empty(len(self), dtype=np.float32)
        for begin in range(0, len(self.segment_lengths), _BLOCK):
            first = self.first[begin : begin + _BLOCK + 1]
            counts = np.diff(first)
            even, room, _ = self._parts(slice(begin, begin + len(counts)), counts)
            part = np.repeat(even.astype(np.float32), counts)
            if self.moves is not None:
                moves = self.moves[first[0] : first[-1] + 1]
                part += (moves[1:] - moves[:-1]) * np.repeat(room.astype(np.float32), counts)
            np.multiply(part, np.float32(1 - 2e-7), out=lengths[first[0] : first[-1]])
        return lengths

    def _bounds(self, segment: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = self.segment_lengths[segment]
        number = items - self.first[segment]
        counts = self.first[segment + 1] - self.first[segment]
        part, room, overlapping = self._parts(segment, counts)
        starts = number * part
        ends = np.where(number + 1 < counts, (number + 1) * part, total)
        if self.moves is not None:
            starts += self.moves[items] * room
            ends += self.moves[items + 1] * room
        if overlapping.any():
            starts = np.where(overlapping, np.minimum(number * part, total - part), starts)
            ends = np.where(overlapping, np.minimum(starts + part, total), ends)
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
