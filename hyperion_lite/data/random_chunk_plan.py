"""Plans of random chunks: what the samplers of random chunks share."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from hyperion_lite.data.batch_limits import BatchOptions, EmptySamplerError, Limits
from hyperion_lite.data.chunk_options import ChunkOptions
from hyperion_lite.data.hyper_sampler import HyperSampler
from hyperion_lite.data.random_order import flat_numbers

NumChunks = float | Literal["auto"]


def chunk_batch_options(
    chunks: ChunkOptions,
    min_batch_size: int | None,
    max_batch_size: int | None,
    max_batch_length: float | None,
    max_batches_per_epoch: int | None,
    size_multiple: int,
) -> BatchOptions:
    """Batch limits of a sampler of chunks.

    With ``min_batch_size`` alone, that many of the longest chunks fill a batch, and more of shorter ones.

    Raises:
        ValueError: none of the sizes and lengths is given.
    """
    if max_batch_size is None and max_batch_length is None:
        if min_batch_size is None:
            raise ValueError(
                "the size of the batches is missing: give max_batch_size, max_batch_length or min_batch_size"
            )
        max_batch_length = min_batch_size * chunks.maximum
    return BatchOptions(min_batch_size, max_batch_size, max_batch_length, max_batches_per_epoch, size_multiple)


class RandomChunkSampler(HyperSampler):
    """Base of samplers that draw random chunks, of one length in each batch.

    Args:
        segments: a ``SegmentSet``, or a data set that has one.
        chunks: lengths of the chunks.
        num_chunks_per_seg_epoch: chunks of a segment in an epoch, on average; ``"auto"`` as many as its length holds.
        options: the batch limits.
        length_name: column of the lengths.
        shuffle: whether epochs differ.
        seed: of the plans.
        rank: of this process.
        num_replicas: number of ranks.
    """

    sorts_batches = True

    def __init__(
        self,
        segments: Any,
        chunks: ChunkOptions,
        num_chunks_per_seg_epoch: NumChunks,
        options: BatchOptions,
        length_name: str,
        shuffle: bool,
        seed: int,
        rank: int | None,
        num_replicas: int | None,
    ) -> None:
        self.chunks = chunks
        self.num_chunks_per_seg_epoch = _check_number(num_chunks_per_seg_epoch)
        super().__init__(segments, options, length_name, shuffle, True, seed, rank, num_replicas)
        short = chunks.is_short(self.lengths)
        self._num_short = int(short.sum())
        self._usable = flat_numbers(~short) if self._num_short and chunks.short_policy == "drop" else None
        if self._usable is not None and not len(self._usable):
            raise EmptySamplerError(
                f"none of the {len(self.lengths)} segments is as long as min_chunk_length={chunks.minimum} "
                f"(the longest has {self.longest_length:.6g}): lower it, or set short_policy to 'pad' or 'whole'"
            )
        self._check_chunks_fit(self.limits())

    def _check_chunks_fit(self, limits: Limits) -> None:
        if limits.longest is not None and self.chunks.maximum > limits.longest:
            least = self.chunks.maximum * (limits.length or 0.0) / limits.longest
            raise EmptySamplerError(
                f"max_batch_length={limits.length} shared by {self.world_size} rank(s) leaves too little for chunks of "
                f"max_chunk_length={self.chunks.maximum}: raise it to {least:.6g} or more, or shorten the chunks"
                + ("; min_batch_size=1 allows batches of a single chunk" if self.options.min_batch_size is None else "")
            )

    def _longest_item(self) -> float:
        return self.chunks.maximum

    @property
    def num_usable(self) -> int:
        """Number of segments that chunks are drawn from."""
        return len(self.lengths) if self._usable is None else len(self._usable)

    def usable(self, numbers: np.ndarray) -> np.ndarray:
        """Segment numbers of the usable segments with these numbers."""
        return numbers if self._usable is None else self._usable[numbers]

    def _dropped(self) -> dict[str, int]:
        return {} if self._usable is None else {"shorter than min_chunk_length": self._num_short}

    @property
    def pads(self) -> bool:
        """Whether short segments are padded."""
        return self.chunks.short_policy == "pad"

    def chunks_per_segment(self, epoch: int) -> np.ndarray:
        """Number of chunks of each usable segment in ``epoch`` (int32)."""
        wanted = self.num_chunks_per_seg_epoch
        if wanted == "auto":
            lengths = self.lengths if self._usable is None else self.lengths[self._usable]
            return np.maximum(np.rint(lengths / self.chunks.average), 1).astype(np.int32)
        whole = math.floor(wanted)
        counts = np.full(self.num_usable, whole, dtype=np.int32)
        extra = round((wanted - whole) * self.num_usable)
        if not whole:
            extra = max(extra, 1)
        if extra:
            counts[self.rng(epoch, "extra").choice(self.num_usable, size=extra, replace=False)] += 1
        return counts

    def draw_batches(self, epoch: int, limits: Limits, total: int, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Chunk lengths and offsets of the batches that ``total`` chunks make.

        Args:
            epoch: number of the epoch.
            limits: of a global batch.
            total: number of chunks; the last batch goes beyond it.
            step: sizes are multiples of it.

        Returns:
            chunk lengths (num_batches,) and offsets (num_batches + 1,).
        """
        smallest = max(int(limits.items_of(self.chunks.maximum)) // step, 1) * step
        lengths = self.chunks.draw(self.rng(epoch, "lengths"), -(-total // smallest))
        sizes = np.maximum(limits.items_of(lengths) // step, 1) * step
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        count = int(np.searchsorted(offsets, total, side="left"))
        return lengths[:count], offsets[: count + 1]


def _check_number(value: NumChunks) -> NumChunks:
    if value == "auto":
        return value
    if isinstance(value, str) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"num_chunks_per_seg_epoch must be a positive number or 'auto', got {value!r}")
    return value
