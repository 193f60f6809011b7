"""Batches of segments of like length, so that little is padded."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperion_lite.data.batch_buckets import argsort_lengths, check_num_buckets, pack_by_length
from hyperion_lite.data.batch_limits import Limits
from hyperion_lite.data.batch_packing import Packing
from hyperion_lite.data.sampler_bases import check_base
from hyperion_lite.data.seg_sampler import SegSampler


class BucketingSegSampler(SegSampler):
    """Yields ids of whole segments, each segment once an epoch, in batches of like length.

    Segments are divided by length into buckets of like total length. Each epoch which segments of a bucket meet in a batch is random,
    and so is the order of the batches. In a bucket a batch is made of segments whose lengths are next to each other in a random
    sample of the bucket, so that padding stays small however few buckets there are.

    Args:
        segments: a ``SegmentSet``, or a data set that has one.
        base_sampler: what is bucketed: ``"seg_sampler"``.
        num_buckets: number of buckets; with more of them, batches are more uniform and less random.
        min_batch_size: smallest number of segments of a global batch.
        max_batch_size: largest number of segments of a global batch. Without any maximum, ``min_batch_size``, or 1 (2 with ``shuffle``).
        max_batch_length: largest (number of segments) x (longest segment) of a global batch, in the unit of the lengths.
        length_name: column of the lengths.
        max_batches_per_epoch: batches of an epoch, counted over all ranks.
        size_multiple: numbers of segments that ``max_batch_length`` allows are rounded down to a multiple of this; a multiple of the
            number of ranks keeps each of them strictly within its share of ``max_batch_length``.
        shuffle: new random batches each epoch; if False, segments are batched in the order of their lengths.
        drop_last: leave out a last batch that is not full.
        sample_all_segments: promise that every segment is in every epoch, see ``SegSampler``.
        sort_by_length: order the segments of a batch by decreasing length.
        seed: of the plans.
        rank: of this process; by default that of ``torch.distributed``.
        num_replicas: number of ranks; by default that of ``torch.distributed``.

    Raises:
        EmptySamplerError: the limits leave some rank without a batch, or break the promise of ``sample_all_segments``.
        ValueError: as for ``SegSampler``, or a base sampler that cannot be bucketed.
    """

    def __init__(
        self,
        segments: Any,
        base_sampler: str = "seg_sampler",
        num_buckets: int = 10,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_length: float | None = None,
        length_name: str = "duration",
        max_batches_per_epoch: int | None = None,
        size_multiple: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        sample_all_segments: bool = False,
        sort_by_length: bool = True,
        seed: int = 1234,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        self._update_config(base_sampler=check_base(base_sampler, ("seg_sampler",), "bucketing_seg_sampler"))
        self.num_buckets = check_num_buckets(num_buckets)
        self._by_length: np.ndarray | None = None
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

    def _pack(self, lengths: np.ndarray, epoch: int, limits: Limits) -> Packing:
        if self._by_length is None:
            self._by_length = argsort_lengths(lengths)
        rng = self.rng(epoch, "order") if self.shuffle else None
        return pack_by_length(lengths, self._by_length, self.num_buckets, limits, rng, self.training, self.drop_last)
