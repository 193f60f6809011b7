"""How long chunks are, and what happens to segments too short for one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

LengthSampling = Literal["uniform", "maximum"]
ShortPolicy = Literal["drop", "pad", "whole"]


@dataclass(frozen=True)
class ChunkOptions:
    """Lengths of chunks, in the unit of the segments' lengths.

    Attributes:
        minimum: shortest chunk.
        maximum: longest chunk.
        sampling: ``"uniform"`` draws a length for each batch, ``"maximum"`` always takes the longest.
        short_policy: for segments shorter than ``minimum``: ``"drop"`` leaves them out, ``"whole"`` takes all of them,
            ``"pad"`` takes all of them and asks the data set to pad them with zeros to the length of the batch's chunks.

    Raises:
        ValueError: lengths that are not positive or not in order, an unknown policy.
    """

    minimum: float
    maximum: float
    sampling: LengthSampling = "uniform"
    short_policy: ShortPolicy = "drop"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.minimum) and self.minimum > 0):
            raise ValueError(f"min_chunk_length must be positive, got {self.minimum}")
        if not (math.isfinite(self.maximum) and self.maximum >= self.minimum):
            raise ValueError(f"max_chunk_length={self.maximum} must not be below min_chunk_length={self.minimum}")
        if self.sampling not in ("uniform", "maximum"):
            raise ValueError(f"length_sampling must be 'uniform' or 'maximum', got {self.sampling!r}")
        if self.short_policy not in ("drop", "pad", "whole"):
            raise ValueError(f"short_policy must be 'drop', 'pad' or 'whole', got {self.short_policy!r}")

    @classmethod
    def create(
        cls,
        minimum: float,
        maximum: float | None,
        sampling: LengthSampling = "uniform",
        short_policy: ShortPolicy = "drop",
    ) -> ChunkOptions:
        """From constructor arguments, where a missing maximum means chunks of the minimum length."""
        return cls(float(minimum), float(minimum if maximum is None else maximum), sampling, short_policy)

    @property
    def average(self) -> float:
        """Expected length of a chunk."""
        return self.maximum if self.sampling == "maximum" else (self.minimum + self.maximum) / 2

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Lengths of the chunks of ``count`` batches (count,) float64."""
        if self.sampling == "maximum" or self.minimum == self.maximum:
            return np.full(count, self.maximum)
        return self.minimum + (self.maximum - self.minimum) * rng.random(count)

    def is_short(self, lengths: np.ndarray) -> np.ndarray:
        """Which of the segments are shorter than a chunk may be (bool); a millionth is tolerated."""
        return lengths < self.minimum * (1 - 1e-6)


def place(rng: np.random.Generator, segment_lengths: np.ndarray, chunk_length: float) -> tuple[np.ndarray, np.ndarray]:
    """Random begins and the lengths of chunks of ``chunk_length``, or of whole segments where these are shorter.

    Returns:
        starts and lengths (n,) float64, with ``starts + lengths <= segment_lengths``.
    """
    lengths = np.minimum(segment_lengths, chunk_length)
    starts = rng.random(len(lengths)) * (segment_lengths - lengths)
    # rounding must not put the end beyond the segment
    return np.maximum(np.minimum(starts, np.nextafter(segment_lengths - lengths, 0.0)), 0.0), lengths
