"""What one tensor holds, and how two differ: computed in blocks, so that temporary memory stays small."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class TensorStats:
    """Statistics of a tensor; those of value are None when no element is finite.

    Attributes:
        count: number of elements.
        minimum, maximum: over the finite elements; of complex numbers, over their magnitudes, as is everything below.
        mean, std: over the finite elements, accumulated in float64; ``std`` divides by their number.
        nan, inf: numbers of elements that are NaN and infinite.
        zeros: number of elements equal to zero.
    """

    count: int
    minimum: float | int | None
    maximum: float | int | None
    mean: float | None
    std: float | None
    nan: int
    inf: int
    zeros: int


@dataclass(frozen=True)
class TensorDifference:
    """How two tensors of one shape differ.

    Attributes:
        count: number of elements.
        differing: elements whose difference exceeds the tolerance; NaN equals NaN.
        max_abs: largest absolute difference; infinite when only one side is NaN or infinite.
        max_rel: largest difference relative to the second tensor's magnitude.
        mean_abs: mean absolute difference over the elements that are finite on both sides.
    """

    count: int
    differing: int
    max_abs: float
    max_rel: float
    mean_abs: float


def tensor_stats(array: np.ndarray) -> TensorStats:
    """Return the statistics of an array of any numeric or bool dtype (those of ``ml_dtypes`` too) and any shape."""
    exact = array.dtype.kind in "iub"
    low: float | int | None = None
    high: float | int | None = None
    number, mean, squares = 0, 0.0, 0.0
    nan = inf = zeros = 0
    for block in _blocks(array):
        zeros += int(np.count_nonzero(block == 0))
        values = block if exact else _real(block)
        if not exact:
            nan += int(np.isnan(values).sum())
            inf += int(np.isinf(values).sum())
            values = values[np.isfinite(values)]
        if values.size == 0:
            continue
        first, last = values.min().item(), values.max().item()
        low = first if low is None else min(low, first)
        high = last if high is None else max(high, last)
        number, mean, squares = _merge(number, mean, squares, values.astype(np.float64, copy=False))
    if number == 0:
        return TensorStats(array.size, None, None, None, None, nan, inf, zeros)
    if array.dtype.kind == "b":
        low, high = int(low or 0), int(high or 0)
    return TensorStats(array.size, low, high, mean, math.sqrt(squares / number), nan, inf, zeros)


def tensor_difference(a: np.ndarray, b: np.ndarray, *, atol: float = 0.0, rtol: float = 0.0) -> TensorDifference:
    """Compare two arrays of one shape element by element; their dtypes may differ.

    Args:
        a, b: the arrays.
        atol, rtol: an element differs when ``|a - b| > atol + rtol * |b|``.

    Raises:
        ValueError: the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"shapes {list(a.shape)} and {list(b.shape)} differ")
    differing = finite = 0
    max_abs = max_rel = total = 0.0
    for left, right in zip(_blocks(a), _blocks(b), strict=True):
        x, y = _comparable(left, right)
        unequal = ~((x == y) | ((x != x) & (y != y)))
        x, y = x[unequal], y[unequal]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            gap, size = np.abs(x - y).astype(np.float64), np.abs(y).astype(np.float64)
            gap[~np.isfinite(gap)] = math.inf
            relative = np.where(size > 0, gap / size, math.inf)
        relative[~np.isfinite(relative)] = math.inf
        differing += int((~(gap <= atol + rtol * np.where(np.isfinite(size), size, 0.0))).sum())
        max_abs, max_rel = max(max_abs, gap.max(initial=0.0)), max(max_rel, relative.max(initial=0.0))
        total += float(gap[np.isfinite(gap)].sum())
        finite += left.size - int(np.isinf(gap).sum())
    return TensorDifference(a.size, differing, float(max_abs), float(max_rel), total / finite if finite else 0.0)


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK_ELEMENTS):
        yield flat[start : start + _BLOCK_ELEMENTS]


def _real(block: np.ndarray) -> np.ndarray:
    if block.dtype.kind == "c":
        # hypot(NaN, inf) is inf, yet such a number is not a number
        magnitude = np.abs(block.astype(np.complex128))
        magnitude[np.isnan(block)] = math.nan
        return magnitude
    return block.astype(np.float64)


def _merge(number: int, mean: float, squares: float, values: np.ndarray) -> tuple[int, float, float]:
    """Update count, mean and sum of squared deviations by a block (the pairwise update of Chan, Golub and LeVeque)."""
    with np.errstate(over="ignore", invalid="ignore"):
        block_mean = float(values.mean())
        block_squares = float(np.square(values - block_mean).sum())
    together = number + values.size
    step = block_mean - mean
    squares += block_squares + step * step * number * values.size / together
    return together, mean + step * values.size / together, squares


def _comparable(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kinds = {left.dtype.kind, right.dtype.kind}
    if "c" in kinds:
        common: type = np.complex128
    elif kinds <= set("iub"):
        # 64-bit integers that differ by one are one apart in an extended double, where the platform has it, and equal in a double
        common = np.longdouble
    else:
        common = np.float64
    return left.astype(common), right.astype(common)
