"""Random chunks, equally often from every segment."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperion_lite.data.batch_limits import Limits
from hyperion_lite.data.chunk_options import ChunkOptions, LengthSampling, ShortPolicy, place
from hyperion_lite.data.epoch_plan import EpochAccount, EpochPlan, GlobalBatch, Ranks, count_items
from hyperion_lite.data.random_chunk_plan import NumChunks, RandomChunkSampler, chunk_batch_options
from hyperion_lite.data.random_order import random_order, row_offsets


class RandomSegChunkSampler(RandomChunkSampler):
    """Yields ``(id, start, duration)``: random chunks, of one length in each batch, the same number from each segment every epoch.

    The segments of an epoch come in random order; where in its segment a chunk lies is random. A segment shorter than the chunks of
    its batch, but not than ``min_chunk_length``, is taken whole.

    Args:
        segments: a ``SegmentSet``, or a data set that has one.
        min_chunk_length: shortest chunk, in the unit of the lengths.
        max_chunk_length: longest chunk; by default ``min_chunk_length``.
        min_batch_size: smallest number of chunks of a global batch. Without any
            maximum, the number of longest chunks that fill a batch.
        max_batch_size: largest number of chunks of a global batch.
        max_batch_length: largest (number of chunks) x (length) of a global batch.
        num_chunks_per_seg_epoch: chunks of each segment in an epoch, a fraction meaning a random part of the segments; ``"auto"``:
            as many as its length holds.
        length_sampling: ``"uniform"`` draws the chunk length of each batch, ``"maximum"`` always takes ``max_chunk_length``.
        short_policy: what to do with segments shorter than ``min_chunk_length``: ``"drop"``, ``"pad"`` with zeros, or ``"whole"``.
        length_name: column of the lengths.
        max_batches_per_epoch: batches of an epoch, counted over all ranks.
        size_multiple: numbers of chunks that ``max_batch_length`` allows are rounded down to a multiple of this; a multiple of the
            number of ranks keeps each of them strictly within its share of ``max_batch_length``.
        shuffle: new chunks each epoch; if False every epoch has the same random chunks.
        seed: of the plans.
        rank: of this process; by default that of ``torch.distributed``.
        num_replicas: number of ranks; by default that of ``torch.distributed``.

    Raises:
        EmptySamplerError: all segments are too short, or the limits leave some rank without a chunk.
        ValueError: an option is out of range, a length is NaN or not positive, a column is missing.
    """

    def __init__(
        self,
        segments: Any,
        min_chunk_length: float,
        max_chunk_length: float | None = None,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_length: float | None = None,
        num_chunks_per_seg_epoch: NumChunks = "auto",
        length_sampling: LengthSampling = "uniform",
        short_policy: ShortPolicy = "drop",
        length_name: str = "duration",
        max_batches_per_epoch: int | None = None,
        size_multiple: int = 1,
        shuffle: bool = True,
        seed: int = 1234,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        chunks = ChunkOptions.create(min_chunk_length, max_chunk_length, length_sampling, short_policy)
        options = chunk_batch_options(
            chunks, min_batch_size, max_batch_size, max_batch_length, max_batches_per_epoch, size_multiple
        )
        super().__init__(
            segments, chunks, num_chunks_per_seg_epoch, options, length_name, shuffle, seed, rank, num_replicas
        )

    def _make_plan(self, epoch: int, limits: Limits) -> EpochPlan:
        return _SpreadPlan(self, epoch, limits)


class _SpreadPlan(EpochPlan):
    # Chunk j of segment i is item first[i] + j of the epoch; a permutation of the items is cut into batches. The position of a chunk
    # in its segment is drawn when its batch is asked for.

    def __init__(self, sampler: RandomSegChunkSampler, epoch: int, limits: Limits) -> None:
        self.sampler, self.epoch = sampler, epoch
        self.first = row_offsets(sampler.chunks_per_segment(epoch))
        total = int(self.first[-1])
        self.order = random_order(sampler.rng(epoch, "order"), total)
        self.chunk_lengths, self.offsets = sampler.draw_batches(epoch, limits, total)
        self.offsets[-1] = total
        self.last = np.zeros(len(self.chunk_lengths), dtype=bool)
        self.last[-1] = True
        self._even_out(limits)
        self.num_batches = len(self.chunk_lengths)
        self.dropped = sampler._dropped()
        if limits.batches is not None and self.num_batches > limits.batches:
            self.num_batches = limits.batches
            self.dropped["beyond max_batches_per_epoch"] = total - int(self.offsets[limits.batches])
        self.short = self._count_short()

    def _even_out(self, limits: Limits) -> None:
        # a last batch of one chunk, or fewer than min_batch_size, takes over chunks of the batch before
        wanted = max(2, limits.smallest)
        if len(self.last) < 2:
            return
        missing = wanted - (self.offsets[-1] - self.offsets[-2])
        if missing > 0 and self.offsets[-2] - self.offsets[-3] - missing >= wanted:
            self.offsets[-2] -= missing
            self.last[-2] = True

    def _count_short(self) -> int:
        sampler = self.sampler
        if sampler.chunks.short_policy == "drop" or not sampler._num_short:
            return 0
        counts = np.diff(self.first)
        return int(counts[sampler.chunks.is_short(sampler.lengths)].sum())

    def _segments(self, items: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.first, items, side="right") - 1

    def batch(self, index: int) -> GlobalBatch:
        """The global batch ``index``."""
        sampler = self.sampler
        items = self.order[self.offsets[index] : self.offsets[index + 1]]
        numbers = self._segments(items)
        segments = sampler.usable(numbers)
        length = float(self.chunk_lengths[index])
        starts, lengths = place(sampler.rng(self.epoch, "starts", index), sampler.lengths[segments], length)
        return GlobalBatch(
            segments,
            lengths,
            starts,
            occurrences=items - self.first[numbers],
            last=bool(self.last[index]),
            pad_to=length if sampler.pads else None,
        )

    def account(self, epoch: int, segments_total: int, world_size: int, per_rank: int) -> EpochAccount:
        """Count what the plan does, all batches at once."""
        sampler = self.sampler
        offsets, last = self.offsets[: self.num_batches + 1], self.last[: self.num_batches]
        sizes, chunk_lengths = np.diff(offsets), self.chunk_lengths[: self.num_batches]
        segments = sampler.usable(self._segments(self.order[: offsets[-1]]))
        lengths = np.minimum(sampler.lengths[segments], np.repeat(chunk_lengths, sizes))
        longest = chunk_lengths if sampler.pads else np.maximum.reduceat(lengths, offsets[:-1])
        return count_items(
            self, epoch, Ranks(segments_total, world_size, per_rank), sizes, last, segments, lengths, longest
        )
