"""Chunks that cover every segment, batched by another sampler."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperion_lite.data.batch_buckets import argsort_lengths, check_num_buckets, pack_by_length
from hyperion_lite.data.batch_limits import Limits
from hyperion_lite.data.batch_packing import Packing
from hyperion_lite.data.chunk_options import ChunkOptions, LengthSampling, ShortPolicy
from hyperion_lite.data.epoch_plan import Items
from hyperion_lite.data.hyper_sampler import EmptySamplerError
from hyperion_lite.data.random_order import flat_numbers
from hyperion_lite.data.sampler_bases import check_base
from hyperion_lite.data.seg_sampler import SegSampler
from hyperion_lite.data.segment_cuts import SegmentCuts


class SegChunkSampler(SegSampler):
    """Yields ``(id, start, duration)``: each segment, every epoch, cut into consecutive chunks that cover it.

    A segment of length L is cut into about L / (average chunk length) chunks with lengths between the minimum and the maximum; with
    ``shuffle`` and ``length_sampling="uniform"`` the cuts move from epoch to epoch. Where no number of chunks between the limits fits
    (always when both are equal and L is no multiple), all chunks have the longest length that the limits allow and the last ones
    overlap. The number of chunks is the same in all epochs.

    Args:
        segments: a ``SegmentSet``, or a data set that has one.
        min_chunk_length: shortest chunk, in the unit of the lengths.
        max_chunk_length: longest chunk; by default ``min_chunk_length``.
        base_sampler: what makes batches of the chunks: ``"seg_sampler"`` or ``"bucketing_seg_sampler"``.
        num_buckets: number of buckets of a ``"bucketing_seg_sampler"``.
        min_batch_size: smallest number of chunks of a global batch.
        max_batch_size: largest number of chunks of a global batch. Without any maximum, ``min_batch_size``, or 1 (2 with ``shuffle``).
        max_batch_length: largest (number of chunks) x (longest chunk) of a global batch, in the unit of the lengths.
        length_sampling: ``"uniform"``: chunks of any length between the limits; ``"maximum"``: as long as possible.
        short_policy: what to do with segments shorter than ``min_chunk_length``: ``"drop"``, ``"pad"`` with zeros to
            ``min_chunk_length``, or ``"whole"``.
        length_name: column of the lengths.
        max_batches_per_epoch: batches of an epoch, counted over all ranks.
        size_multiple: numbers of chunks that ``max_batch_length`` allows are rounded down to a multiple of this; a multiple of the
            number of ranks keeps each of them strictly within its share of ``max_batch_length``.
        shuffle: new random cuts and order each epoch; by default manifest order.
        drop_last: leave out a last batch that is not full.
        sample_all_segments: promise that every chunk is in every epoch, see ``SegSampler``.
        sort_by_length: order the chunks of a batch by decreasing length.
        seed: of the plans.
        rank: of this process; by default that of ``torch.distributed``.
        num_replicas: number of ranks; by default that of ``torch.distributed``.

    Raises:
        EmptySamplerError: all segments are too short, or the limits leave some rank without a batch.
        ValueError: as for ``SegSampler``, or a base sampler that cannot be one.
    """

    def __init__(
        self,
        segments: Any,
        min_chunk_length: float,
        max_chunk_length: float | None = None,
        base_sampler: str = "seg_sampler",
        num_buckets: int = 10,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_length: float | None = None,
        length_sampling: LengthSampling = "uniform",
        short_policy: ShortPolicy = "drop",
        length_name: str = "duration",
        max_batches_per_epoch: int | None = None,
        size_multiple: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        sample_all_segments: bool = False,
        sort_by_length: bool = True,
        seed: int = 1234,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        base = check_base(base_sampler, ("seg_sampler", "bucketing_seg_sampler"), "seg_chunk_sampler")
        self._update_config(base_sampler=base)
        self.chunks = ChunkOptions.create(min_chunk_length, max_chunk_length, length_sampling, short_policy)
        self.num_buckets = check_num_buckets(num_buckets)
        self.buckets_chunks = base == "bucketing_seg_sampler"
        super().__init__(
            segments,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            max_batch_length=max_batch_length,
            length_name=length_name,
            max_batches_per_epoch=max_batches_per_epoch,
            size_multiple=size_multiple,
            shuffle=shuffle,
            drop_last=drop_last,
            sample_all_segments=sample_all_segments,
            sort_by_length=sort_by_length,
            seed=seed,
            rank=rank,
            num_replicas=num_replicas,
        )
        if short_policy == "pad":
            self._pad_to = self.chunks.minimum

    def _check_placeable(self) -> None:
        short = int(self.chunks.is_short(self.lengths).sum())
        if self.chunks.short_policy == "drop" and short == len(self.lengths):
            raise EmptySamplerError(
                f"none of the {short} segments is as long as min_chunk_length={self.chunks.minimum} (the longest has "
                f"{self.longest_length:.6g}): lower it, or set short_policy to 'pad' or 'whole'"
            )
        limits = self.limits()
        if limits.longest is not None and self.chunks.maximum > limits.longest:
            needed = self.chunks.maximum * (limits.length or 0.0) / limits.longest
            raise EmptySamplerError(
                f"max_batch_length={limits.length} shared by {self.world_size} rank(s) leaves too little for chunks of "
                f"max_chunk_length={self.chunks.maximum}: raise it to {needed:.6g} or more, or shorten the chunks"
            )
        if self.drop_last:
            self.plan()

    def _longest_item(self) -> float:
        return self.chunks.maximum

    def _items(self, epoch: int) -> Items:
        chunks = self.chunks
        short = chunks.is_short(self.lengths)
        num_short = int(short.sum())
        rng = self.rng(epoch, "cuts") if self.shuffle and chunks.sampling == "uniform" else None
        if num_short and chunks.short_policy == "drop":
            numbers = flat_numbers(~short)
            dropped = {"shorter than min_chunk_length": num_short}
            return SegmentCuts(self.lengths[numbers], chunks, rng, numbers, dropped)
        return SegmentCuts(self.lengths, chunks, rng, short=num_short)

    def _pack(self, lengths: np.ndarray, epoch: int, limits: Limits) -> Packing:
        if not self.buckets_chunks:
            return super()._pack(lengths, epoch, limits)
        rng = self.rng(epoch, "order") if self.shuffle else None
        by_length = argsort_lengths(lengths)
        return pack_by_length(lengths, by_length, self.num_buckets, limits, rng, self.training, self.drop_last)
