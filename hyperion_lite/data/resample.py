"""Sample-rate conversion whose pieces equal the whole.

A recording of ``n`` samples at ``source`` Hz has ``round(n * target / source)`` samples at ``target`` Hz (halves round up), whole or
read in parts. A part is made from the source samples it needs plus :data:`CONTEXT` samples on both sides, cut where input and
output samples fall on the same instant, so that it equals the same part of the converted whole within 1e-5 of full scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

CONTEXT = 256
"""Samples of the slower of the two rates read on each side of a part; the filter of soxr's HQ quality is shorter."""


def resampled_length(num_samples: int, source: int, target: int) -> int:
    """``num_samples * target / source``, rounded to the nearest integer, halves up."""
    return (2 * num_samples * target + source) // (2 * source)


def resample(audio: np.ndarray, source: int, target: int) -> np.ndarray:
    """Convert ``audio`` (num_samples,) float32 to ``target`` Hz; :func:`resampled_length` samples, float32."""
    return _soxr(audio, source, target, resampled_length(len(audio), source, target))


def _soxr(audio: np.ndarray, source: int, target: int, length: int) -> np.ndarray:
    if source == target:
        return audio
    import soxr

    if length == 0:
        return np.zeros(0, np.float32)
    converted = soxr.resample(audio, source, target, quality="HQ")
    if len(converted) < length:
        # soxr may end a sample early; silence after the end lets its filter give the rest
        tail = np.zeros(-(-4 * source // target) + 4, np.float32)
        converted = soxr.resample(np.concatenate([audio, tail]), source, target, quality="HQ")
    return converted[:length]


@dataclass(frozen=True)
class SourceRange:
    """Where the source of a part of a converted recording lies.

    Attributes:
        start: first source sample to read.
        stop: source sample to stop before.
        skip: converted samples to drop at the front.
    """

    start: int
    stop: int
    skip: int


def source_range(start: int, count: int, num_samples: int, source: int, target: int) -> SourceRange:
    """Source samples that the converted samples ``start ... start + count`` need, with context.

    Args:
        start: first converted sample, at ``target`` Hz.
        count: converted samples wanted.
        num_samples: length of the whole recording, at ``source`` Hz.
    """
    divisor = gcd(source, target)
    source_block, target_block = source // divisor, target // divisor
    context = -(-CONTEXT * max(source, target) // target)
    blocks = max(0, start * source // target - context) // source_block
    stop = min(num_samples, -(-(start + count) * source // target) + context)
    return SourceRange(blocks * source_block, stop, start - blocks * target_block)


def resample_part(audio: np.ndarray, where: SourceRange, count: int, source: int, target: int) -> np.ndarray:
    """The ``count`` converted samples described by ``where``, from its source samples ``audio``."""
    return _soxr(audio, source, target, where.skip + count)[where.skip :]
