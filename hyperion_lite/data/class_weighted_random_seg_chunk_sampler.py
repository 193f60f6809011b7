"""Random chunks of classes that are drawn by weight."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from hyperion_lite.data.batch_limits import EmptySamplerError, Limits
from hyperion_lite.data.chunk_options import ChunkOptions, LengthSampling, ShortPolicy, place
from hyperion_lite.data.class_weights import ClassSegments, WeightMode, check_mode
from hyperion_lite.data.epoch_plan import DrawnPlan, EpochPlan, GlobalBatch
from hyperion_lite.data.hard_prototypes import build_table, table_from_state, table_to_state
from hyperion_lite.data.random_chunk_plan import NumChunks, RandomChunkSampler, chunk_batch_options


class ClassWeightedRandomSegChunkSampler(RandomChunkSampler):
    """Yields ``(id, start, duration)``: random chunks of random segments of classes drawn by weight, of one length in each batch.

    A batch is made of groups: a class, ``num_segs_per_class`` of its segments, ``num_chunks_per_seg`` chunks of each. In a batch each
    class is expected as often as its weight says, and occurs once if that is at most once. With ``num_hard_prototypes`` = H > 1
    and an affinity matrix, the drawn classes bring their H - 1 most similar classes along. Nothing is promised about which segments
    an epoch uses; its account tells. A segment shorter than the chunks of its batch, but not than ``min_chunk_length``, is taken
    whole.

    Args:
        segments: a ``SegmentSet``, or a data set that has one.
        class_info: class table; by default the one that the data set has for ``class_name``, or the values of that column.
        min_chunk_length: shortest chunk, in the unit of the lengths.
        max_chunk_length: longest chunk; by default ``min_chunk_length``.
        min_batch_size: smallest number of chunks of a global batch. Without any
            maximum, the number of longest chunks that fill a batch (default: a group, at least 2).
        max_batch_size: largest number of chunks of a global batch.
        max_batch_length: largest (number of chunks) x (length) of a global batch.
        num_chunks_per_seg_epoch: length of an epoch, in chunks for each usable segment; ``"auto"``: as many as its length holds.
        num_segs_per_class: segments of a class in a group.
        num_chunks_per_seg: chunks of a segment in a group.
        weight_exponent: exponent of the class weights; 0 makes them equal.
        weight_mode: ``"custom"``: the weights of the class table, ``"uniform"``, or ``"data-prior"``: by total length.
        seg_weight_mode: for the segments of a class; ``"uniform"``, ``"data-prior"``: by length, ``"custom"``: column ``weights``.
        num_hard_prototypes: classes that a drawn class brings along, itself included; 0 or 1 for none.
        affinity_matrix: similarity of the classes, (num_classes, num_classes), or an ``.npy`` file of it.
        length_sampling: ``"uniform"`` draws the chunk length of each batch, ``"maximum"`` always takes ``max_chunk_length``.
        short_policy: what to do with segments shorter than ``min_chunk_length``: ``"drop"``, ``"pad"`` with zeros, or ``"whole"``.
        class_name: column of the class.
        length_name: column of the lengths.
        max_batches_per_epoch: batches of an epoch, counted over all ranks.
        size_multiple: numbers of chunks that ``max_batch_length`` allows are rounded down to a multiple of this; a multiple of the
            number of ranks keeps each of them strictly within its share of ``max_batch_length``.
        shuffle: new chunks each epoch; if False every epoch has the same random chunks.
        seed: of the plans.
        rank: of this process; by default that of ``torch.distributed``.
        num_replicas: number of ranks; by default that of ``torch.distributed``.

    Raises:
        EmptySamplerError: all segments are too short, or the limits do not hold one group, or leave some rank without a chunk.
        ValueError: an option is out of range, a class is unknown, a length is NaN or not positive, a column is missing.
    """

    config_exclude: ClassVar[Collection[str]] = ("segments", "class_info", "rank", "num_replicas")

    def __init__(
        self,
        segments: Any,
        class_info: Any | None = None,
        min_chunk_length: float = 4.0,
        max_chunk_length: float | None = None,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_length: float | None = None,
        num_chunks_per_seg_epoch: NumChunks = "auto",
        num_segs_per_class: int = 1,
        num_chunks_per_seg: int = 1,
        weight_exponent: float = 1.0,
        weight_mode: WeightMode = "custom",
        seg_weight_mode: WeightMode = "uniform",
        num_hard_prototypes: int = 0,
        affinity_matrix: Any = None,
        length_sampling: LengthSampling = "uniform",
        short_policy: ShortPolicy = "drop",
        class_name: str = "class_id",
        length_name: str = "duration",
        max_batches_per_epoch: int | None = None,
        size_multiple: int = 1,
        shuffle: bool = True,
        seed: int = 1234,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        for name, number in (("num_segs_per_class", num_segs_per_class), ("num_chunks_per_seg", num_chunks_per_seg)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if num_hard_prototypes < 0:
            raise ValueError(f"num_hard_prototypes must be at least 0, got {num_hard_prototypes}")
        check_mode("weight_mode", weight_mode)
        check_mode("seg_weight_mode", seg_weight_mode)
        chunks = ChunkOptions.create(min_chunk_length, max_chunk_length, length_sampling, short_policy)
        self.num_segs_per_class, self.num_chunks_per_seg = num_segs_per_class, num_chunks_per_seg
        self.num_hard_prototypes = num_hard_prototypes
        if max_batch_size is None and max_batch_length is None:
            min_batch_size = max(2 if min_batch_size is None else min_batch_size, self.group_size)
        options = chunk_batch_options(
            chunks, min_batch_size, max_batch_size, max_batch_length, max_batches_per_epoch, size_multiple
        )
        super().__init__(
            segments, chunks, num_chunks_per_seg_epoch, options, length_name, shuffle, seed, rank, num_replicas
        )
        table = self.view.class_table(class_name) if class_info is None else class_info
        self.class_segments = ClassSegments(
            self.view, table, class_name, self._usable, self.lengths, weight_mode, weight_exponent, seg_weight_mode
        )
        self._started = False
        self._prototypes: np.ndarray | None = None
        self._next_prototypes: np.ndarray | None = None
        if affinity_matrix is not None:
            self.set_hard_prototypes(affinity_matrix)
            if not isinstance(affinity_matrix, (str, os.PathLike)):
                self._update_config(affinity_matrix=None)  # it is in the state; a configuration holds plain types

    @property
    def group_size(self) -> int:
        """Chunks that belong together in a batch."""
        return self.num_segs_per_class * self.num_chunks_per_seg * max(1, self.num_hard_prototypes)

    def _check_chunks_fit(self, limits: Limits) -> None:
        super()._check_chunks_fit(limits)
        fits = int(limits.items_of(self.chunks.maximum))
        if fits < self.group_size:
            raise EmptySamplerError(
                f"a batch holds {fits} of the longest chunks, but a group has {self.group_size} (num_segs_per_class x "
                "num_chunks_per_seg x num_hard_prototypes): raise max_batch_size or max_batch_length, or make the groups smaller"
            )

    # ---- hard prototypes ----------------------------------------------------------------------------------------------------------

    def set_hard_prototypes(self, affinity_matrix: Any) -> None:
        """Take the hard prototypes of each class from a new matrix of similarities; ``None`` for no prototypes.

        An epoch that has begun keeps its plan: the new table holds from the next epoch on.

        Args:
            affinity_matrix: (num_classes, num_classes) array or tensor in class index order, or an ``.npy`` file of it.

        Raises:
            ValueError: a matrix of another size, or ``num_hard_prototypes`` is below 2.
        """
        table = None
        if affinity_matrix is not None:
            if self.num_hard_prototypes < 2:
                raise ValueError(
                    f"hard prototypes need num_hard_prototypes of at least 2, it is {self.num_hard_prototypes}"
                )
            if isinstance(affinity_matrix, (str, os.PathLike)):
                affinity_matrix = np.load(affinity_matrix, allow_pickle=False)
            table = build_table(affinity_matrix, self.num_hard_prototypes, self.class_segments.weights)
        self._next_prototypes = table
        if not self._started:
            self._use_prototypes(table)

    def _use_prototypes(self, table: np.ndarray | None) -> None:
        self._prototypes = table
        self._plan_cache = None

    @property
    def hard_prototypes(self) -> np.ndarray | None:
        """Hard prototypes of each class in the current epoch (num_classes, num_hard_prototypes), or None."""
        return self._prototypes

    def _epoch_changes(self) -> None:
        self._started = False
        if self._prototypes is not self._next_prototypes:
            self._use_prototypes(self._next_prototypes)

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Choose the epoch, and the batch that the next iterator begins with."""
        super().set_epoch(epoch, batch)
        self._started = self._started or self.start_batch > 0

    def __iter__(self) -> Any:
        self._started = True
        return super().__iter__()

    # ---- plan ---------------------------------------------------------------------------------------------------------------------

    def _make_plan(self, epoch: int, limits: Limits) -> EpochPlan:
        return _WeightedPlan(self, epoch, limits)

    def _fingerprint_columns(self) -> list[np.ndarray]:
        return [self.lengths, self.class_segments.classes, self.class_segments.weights]

    def state_dict(self, batch: int | None = None) -> dict[str, Any]:
        """As in the base class, with the tables of hard prototypes of this epoch and of the next one."""
        state = super().state_dict(batch)
        state["hard_prototypes"] = table_to_state(self._prototypes)
        state["next_hard_prototypes"] = table_to_state(self._next_prototypes)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As in the base class; restores the tables of hard prototypes."""
        super().load_state_dict(state)
        current = table_from_state(state.get("hard_prototypes"))
        following = table_from_state(state.get("next_hard_prototypes"))
        if current is not None and following is not None and np.array_equal(current, following):
            following = current
        self._use_prototypes(current)
        self._next_prototypes = following


class _WeightedPlan(DrawnPlan):
    # Sizes and chunk lengths of the batches are drawn at once; classes, segments and chunks of a batch when it is asked for, from a
    # generator of its own.

    def __init__(self, sampler: ClassWeightedRandomSegChunkSampler, epoch: int, limits: Limits) -> None:
        self.sampler, self.epoch = sampler, epoch
        self.prototypes = sampler.hard_prototypes
        total = int(sampler.chunks_per_segment(epoch).sum(dtype=np.int64))
        self.chunk_lengths, self.offsets = sampler.draw_batches(epoch, limits, total, sampler.group_size)
        super().__init__(
            min(len(self.chunk_lengths), limits.batches or len(self.chunk_lengths)),
            len(sampler.lengths),
            sampler.chunks.minimum * (1 - 1e-6),
        )
        self.dropped = sampler._dropped()

    def draw(self, index: int) -> GlobalBatch:
        """The global batch ``index``, from a generator of its own."""
        sampler, members = self.sampler, self.sampler.class_segments
        size = int(self.offsets[index + 1] - self.offsets[index])
        rng = sampler.rng(self.epoch, "batch", index)
        drawn = members.draw_classes(
            rng, size // sampler.group_size * (1 if self.prototypes is not None else self._brought)
        )
        classes = drawn if self.prototypes is None else self.prototypes[drawn].ravel()
        chosen = members.draw_segments(rng, classes, sampler.num_segs_per_class)
        segments = np.repeat(chosen.ravel(), sampler.num_chunks_per_seg)
        length = float(self.chunk_lengths[index])
        starts, lengths = place(rng, sampler.lengths[segments], length)
        return GlobalBatch(
            segments,
            lengths,
            starts,
            occurrences=int(self.offsets[index]) + np.arange(size),
            pad_to=length if sampler.pads else None,
        )

    @property
    def _brought(self) -> int:
        return max(1, self.sampler.num_hard_prototypes)
