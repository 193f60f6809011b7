"""Samplers by type name, from the options that a configuration holds."""

from __future__ import annotations

import inspect
import logging
from typing import Any, ClassVar, Literal

from hyperion_lite.core.config import Configurable, config_fields, nearest, unknown_choice
from hyperion_lite.data.bucketing_seg_sampler import BucketingSegSampler
from hyperion_lite.data.chunk_options import LengthSampling, ShortPolicy
from hyperion_lite.data.class_weighted_random_seg_chunk_sampler import ClassWeightedRandomSegChunkSampler
from hyperion_lite.data.class_weights import WeightMode
from hyperion_lite.data.hyper_sampler import HyperSampler
from hyperion_lite.data.random_seg_chunk_sampler import RandomSegChunkSampler
from hyperion_lite.data.sampler_bases import check_base
from hyperion_lite.data.seg_chunk_sampler import SegChunkSampler
from hyperion_lite.data.seg_sampler import SegSampler

logger = logging.getLogger(__name__)

SamplerType = Literal[
    "class_weighted_random_seg_chunk_sampler",
    "random_seg_chunk_sampler",
    "seg_sampler",
    "seg_chunk_sampler",
    "bucketing_seg_sampler",
]

_OTHER_NAMES = {
    "batch_size": "min_batch_size",
    "iters_per_epoch": "num_chunks_per_seg_epoch",
    "length_sampling_method": "length_sampling",
    "base_sampler": "base_sampler_type",
    "max_batch_duration": "max_batch_length",
}


class SegSamplerFactory(Configurable):
    """Makes samplers of segments and chunks.

    One document of options serves every type: options that a type does not have are left aside, those that are ``None`` have the
    default of the type.
    """

    config_method: ClassVar[str] = "create"
    config_exclude = ("dataset", "rank", "num_replicas")

    sampler_types: ClassVar[dict[str, type[HyperSampler]]] = {
        "class_weighted_random_seg_chunk_sampler": ClassWeightedRandomSegChunkSampler,
        "random_seg_chunk_sampler": RandomSegChunkSampler,
        "seg_sampler": SegSampler,
        "seg_chunk_sampler": SegChunkSampler,
        "bucketing_seg_sampler": BucketingSegSampler,
    }

    @classmethod
    def filter_args(cls, **kwargs: Any) -> dict[str, Any]:
        """The entries of ``kwargs`` that are options of some sampler, older spellings included; the rest is dropped."""
        fields = config_fields(cls)
        return {key: value for key, value in kwargs.items() if key in fields or key in _OTHER_NAMES}

    @staticmethod
    def create(
        dataset: Any,
        sampler_type: SamplerType = "class_weighted_random_seg_chunk_sampler",
        base_sampler_type: Literal["seg_sampler", "bucketing_seg_sampler"] = "seg_sampler",
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_length: float | None = None,
        max_batches_per_epoch: int | None = None,
        size_multiple: int | None = None,
        length_name: str | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        sample_all_segments: bool | None = None,
        sort_by_length: bool | None = None,
        num_buckets: int | None = None,
        min_chunk_length: float | None = None,
        max_chunk_length: float | None = None,
        num_chunks_per_seg_epoch: float | Literal["auto"] | None = None,
        length_sampling: LengthSampling | None = None,
        short_policy: ShortPolicy | None = None,
        class_name: str | None = None,
        weight_mode: WeightMode | None = None,
        weight_exponent: float | None = None,
        seg_weight_mode: WeightMode | None = None,
        num_segs_per_class: int | None = None,
        num_chunks_per_seg: int | None = None,
        num_hard_prototypes: int | None = None,
        affinity_matrix: Any = None,
        seed: int | None = None,
        rank: int | None = None,
        num_replicas: int | None = None,
        **other: Any,
    ) -> HyperSampler:
        """Make a sampler.

        Args:
            dataset: an ``AudioDataset``, ``HyperDataset`` or ``SegmentSet``: segments, and class tables for class weights.
            sampler_type: which sampler.
            base_sampler_type: base of ``seg_chunk_sampler`` and ``bucketing_seg_sampler``; also spelt ``base_sampler``.
            min_batch_size: smallest number of items of a global batch.
            max_batch_size: largest number of items of a global batch.
            max_batch_length: largest (number of items) x (longest item) of a global batch.
            max_batches_per_epoch: batches of an epoch, counted over all ranks.
            size_multiple: sizes of batches that ``max_batch_length`` limits are multiples of this.
            length_name: column of the lengths.
            shuffle: new order, or new chunks, each epoch.
            drop_last: leave out a last batch that is not full.
            sample_all_segments: promise that every segment is in every epoch.
            sort_by_length: order the items of a batch by decreasing length.
            num_buckets: number of length buckets.
            min_chunk_length: shortest chunk.
            max_chunk_length: longest chunk.
            num_chunks_per_seg_epoch: chunks of a segment in an epoch, a number or ``auto``.
            length_sampling: how chunk lengths are drawn.
            short_policy: what to do with segments shorter than ``min_chunk_length``.
            class_name: column of the class.
            weight_mode: weights of the classes.
            weight_exponent: exponent of the class weights.
            seg_weight_mode: weights of the segments of a class.
            num_segs_per_class: segments of a class in a batch.
            num_chunks_per_seg: chunks of a segment in a batch.
            num_hard_prototypes: classes that a drawn class brings along, itself included.
            affinity_matrix: similarity of the classes, or an ``.npy`` file of it.
            seed: of the plans.
            rank: of this process; by default that of ``torch.distributed``.
            num_replicas: number of ranks; by default that of ``torch.distributed``.
            other: older spellings (``batch_size``, ``iters_per_epoch``, ``length_sampling_method``), and ``class_info``.

        Raises:
            ValueError: an unknown type or option, a base that does not fit, or what the sampler refuses.
        """
        options = {key: value for key, value in locals().items() if key not in ("dataset", "sampler_type", "other")}
        _merge_other_names(options, other)
        sampler_class = SegSamplerFactory.sampler_types.get(sampler_type) if isinstance(sampler_type, str) else None
        if sampler_class is None:
            raise ValueError(unknown_choice("sampler_type", sampler_type, SegSamplerFactory.sampler_types))
        options["base_sampler"] = options.pop("base_sampler_type")
        accepted = inspect.signature(sampler_class).parameters
        given = {key: value for key, value in options.items() if value is not None}
        if "base_sampler" in accepted:
            _check_base_of(sampler_type, given["base_sampler"])
        aside = sorted(set(given) - set(accepted) - {"base_sampler"})
        if aside:
            logger.debug("sampler %s has no use for %s", sampler_type, ", ".join(aside))
        missing = [
            name
            for name, field in config_fields(sampler_class).items()
            if field.default is inspect.Parameter.empty and name not in given
        ]
        if missing:
            raise ValueError(f"sampler {sampler_type} needs {', '.join(missing)}")
        return sampler_class(dataset, **{key: value for key, value in given.items() if key in accepted})


def _merge_other_names(options: dict[str, Any], other: dict[str, Any]) -> None:
    for key, value in other.items():
        name = _OTHER_NAMES.get(key, key)
        if name not in options and name != "class_info":
            raise ValueError(f"unknown sampler option {key!r}{nearest(key, [*options, *_OTHER_NAMES])}")
        if value is not None:
            options[name] = value


def _check_base_of(sampler_type: str, base: Any) -> None:
    allowed = ("seg_sampler",) if sampler_type == "bucketing_seg_sampler" else ("seg_sampler", "bucketing_seg_sampler")
    check_base(base, allowed, sampler_type)
