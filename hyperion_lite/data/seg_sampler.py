"""Batches of whole segments."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from hyperion_lite.data.batch_limits import BatchOptions, Limits
from hyperion_lite.data.batch_packing import Packing, limit_batches, pack_in_order
from hyperion_lite.data.epoch_plan import EpochPlan, Items, PackedPlan, WholeSegments
from hyperion_lite.data.hyper_sampler import EmptySamplerError, HyperSampler

logger = logging.getLogger(__name__)


class SegSampler(HyperSampler):
    """Yields ids of whole segments, each segment once an epoch.

    Args:
        segments: a ``SegmentSet``, or a data set that has one.
        min_batch_size: smallest number of segments of a global batch.
        max_batch_size: largest number of segments of a global batch. Without any maximum, ``min_batch_size``, or 1 (2 with ``shuffle``).
        max_batch_length: largest (number of segments) x (longest segment) of a global batch, in the unit of the lengths.
        length_name: column of the lengths.
        max_batches_per_epoch: batches of an epoch, counted over all ranks.
        size_multiple: numbers of segments that ``max_batch_length`` allows are rounded down to a multiple of this; a multiple of the
            number of ranks keeps each of them strictly within its share of ``max_batch_length``.
        shuffle: new random order each epoch; by default manifest order.
        drop_last: leave out a last batch that is not full.
        sample_all_segments: promise that every segment is in every epoch; what breaks the promise is an error, or without effect
            (``drop_last``, ``max_batches_per_epoch``). By default segments that do not fit the limits are left out and counted.
        sort_by_length: order the segments of a batch by decreasing length.
        seed: of the plans.
        rank: of this process; by default that of ``torch.distributed``.
        num_replicas: number of ranks; by default that of ``torch.distributed``.

    Raises:
        EmptySamplerError: the limits leave some rank without a batch, or break the promise of ``sample_all_segments``.
        ValueError: an option is out of range, a length is NaN or not positive, a column is missing.
    """

    def __init__(
        self,
        segments: Any,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_length: float | None = None,
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
        if max_batch_size is None and max_batch_length is None:
            max_batch_size = min_batch_size or (2 if shuffle else 1)
        options = BatchOptions(min_batch_size, max_batch_size, max_batch_length, max_batches_per_epoch, size_multiple)
        self.drop_last = drop_last and not sample_all_segments
        self.sample_all_segments = sample_all_segments
        self.sorts_batches = sort_by_length
        super().__init__(segments, options, length_name, shuffle, shuffle, seed, rank, num_replicas)
        self._check_placeable()

    def _check_placeable(self) -> None:
        limits = self.limits()
        too_long = self._num_too_long(limits)
        if too_long:
            share = f"max_batch_length={limits.length} shared by {self.world_size} rank(s)"
            needed = self._longest_item() * (limits.length or 0.0) / (limits.longest or 1.0)
            remedy = f"raise max_batch_length to {needed:.6g} or more, cut the segments into chunks (seg_chunk_sampler), or filter them out"
            if self.training and self.options.min_batch_size is None:
                remedy += "; min_batch_size=1 allows batches of a single item"
            if self.sample_all_segments:
                raise EmptySamplerError(
                    f"{too_long} segments do not fit {share}, but sample_all_segments asks for them: {remedy}"
                )
            if too_long == len(self.lengths):
                raise EmptySamplerError(f"no segment fits {share} (the longest may be {limits.longest:.6g}): {remedy}")
            if self.rank == 0:
                logger.warning(
                    "%d of %d segments do not fit %s and are left out: %s", too_long, len(self.lengths), share, remedy
                )
        if self.drop_last:
            self.plan()  # it may be empty, and the constructor is where to say so

    def _num_too_long(self, limits: Limits) -> int:
        return 0 if limits.longest is None else int((self.lengths > limits.longest).sum())

    def _items(self, epoch: int) -> Items:
        return WholeSegments(self.lengths)

    def _pack(self, lengths: np.ndarray, epoch: int, limits: Limits) -> Packing:
        # order items of these lengths and cut them into the batches of the epoch
        rng = self.rng(epoch, "order") if self.shuffle else None
        return pack_in_order(lengths, limits, rng, self.training, self.drop_last)

    def _make_plan(self, epoch: int, limits: Limits) -> EpochPlan:
        items = self._items(epoch)
        packing = self._pack(items.lengths, epoch, limits)
        if not self.sample_all_segments:
            packing = limit_batches(packing, limits.batches)
        return PackedPlan(items, packing, self._pad_to)

    _pad_to: float | None = None
