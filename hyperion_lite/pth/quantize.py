"""Static symmetric int8 quantisation of weights, one scale per output channel; no calibration data is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_LEVELS = 127
_BLOCK_ELEMENTS = 1 << 18


class ChannelRanges(NamedTuple):
    """Smallest and largest value of every channel, two arrays of shape (channels,) in the dtype of the input."""

    minimum: np.ndarray
    maximum: np.ndarray


class Int8Tensor(NamedTuple):
    """``values`` int8 of the shape of the input, ``scales`` float32 (channels,); the tensor is ``values * scales`` along the axis."""

    values: np.ndarray
    scales: np.ndarray


def channel_ranges(array: np.ndarray, axis: int = 0) -> ChannelRanges:
    """Return the smallest and the largest value of every channel.

    Args:
        array: real numbers, at least one axis; the axes other than ``axis`` hold at least one element.
        axis: the channel axis: 0 for linear layers and convolutions, 1 for transposed convolutions. Negative counts from the end.

    Returns:
        Two arrays of shape (channels,). A channel with NaN has NaN as both.

    Raises:
        ValueError: no such axis, complex numbers, or channels without elements.
    """
    array = np.asarray(array)
    axis = _checked_axis(array, axis)
    others = tuple(other for other in range(array.ndim) if other != axis)
    return ChannelRanges(np.asarray(array.min(axis=others)), np.asarray(array.max(axis=others)))


def quantize_int8(array: np.ndarray, axis: int = 0) -> Int8Tensor:
    """Quantise to int8 with one scale per channel: ``scale = max|w| / 127``, ``q = round(w / scale)``, zero point 0.

    Error bound: ``|w - q * scale| <= scale / 2`` for every element, that is at most 1/254 of the largest magnitude of its channel
    (the product in exact arithmetic; computed in float32 it adds a relative 2**-24). -128 is never used. A channel of zeros has
    scale 1.

    Args:
        array: floating-point weights, at least one axis, all finite.
        axis: the output-channel axis: 0 for linear layers and convolutions, 1 for transposed convolutions.

    Returns:
        int8 values of the shape of ``array``, row-major, and float32 scales of shape (channels,).

    Raises:
        ValueError: NaN or infinity (the message names the channel), a magnitude beyond float32, integers or complex
            numbers, no such axis, channels without elements.
    """
    array = np.asarray(array)
    if not is_floating(array.dtype):
        raise ValueError(f"only floating-point tensors are quantised, found {array.dtype}")
    ranges = channel_ranges(array, axis)
    axis = _checked_axis(array, axis)
    scales = _scales(np.maximum(np.abs(ranges.minimum.astype(np.float64)), np.abs(ranges.maximum.astype(np.float64))))
    values = np.empty(array.shape, dtype=np.int8)
    for block, channels in _channel_blocks(array, axis):
        shape = [-1 if other == axis else 1 for other in range(array.ndim)]
        # the quotient in float64: in float32 it could round to the farther level
        quotient = array[block].astype(np.float64) / scales[channels].astype(np.float64).reshape(shape)
        values[block] = np.rint(quotient, out=quotient)
    return Int8Tensor(values, scales)


def dequantize_int8(values: np.ndarray, scales: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return ``values * scales`` in float32.

    Args:
        values: int8, any shape.
        scales: float32 (channels,), the size of ``values`` along ``axis``.
        axis: the channel axis given to :func:`quantize_int8`.

    Raises:
        ValueError: the number of scales is not the number of channels, or there is no such axis.
    """
    axis = _checked_axis(values, axis)
    if scales.shape != (values.shape[axis],):
        raise ValueError(
            f"expected {values.shape[axis]} scales, one per channel of axis {axis}, found shape {list(scales.shape)}"
        )
    shape = [-1 if other == axis else 1 for other in range(values.ndim)]
    return np.multiply(values, scales.reshape(shape), dtype=np.float32)


def conv1d_to_channels_last(weight: np.ndarray) -> np.ndarray:
    """Reorder a 1-D convolution weight (out, in, kernel) to (1, kernel, in, out), the layout of channels-last 2-D convolutions.

    Returns:
        A row-major copy of the same dtype.

    Raises:
        ValueError: the weight does not have three axes.
    """
    weight = np.asarray(weight)
    if weight.ndim != 3:
        raise ValueError(f"expected a 1-D convolution weight (out, in, kernel), found shape {list(weight.shape)}")
    return np.ascontiguousarray(weight.transpose(2, 1, 0)[np.newaxis])


def is_floating(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is a real floating-point type, those of ``ml_dtypes`` included."""
    # numpy reports the types of ml_dtypes as void or generic: only their names tell
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8"))


def _scales(magnitude: np.ndarray) -> np.ndarray:
    bad = np.flatnonzero(~np.isfinite(magnitude))
    if bad.size:
        raise ValueError(
            f"channel {bad[0]} holds NaN or infinity ({bad.size} of {magnitude.size} channels do); it cannot be quantised"
        )
    float32 = np.finfo(np.float32)
    if magnitude.size and magnitude.max() > float32.max:
        raise ValueError(
            f"a magnitude of {magnitude.max():.3g} is beyond float32, in which the product with the scale is computed"
        )
    scales = (magnitude / _LEVELS).astype(np.float32)
    # a scale that was rounded up may push the last level over the largest float32
    scales = np.minimum(scales, np.nextafter(float32.max / np.float32(_LEVELS), np.float32(0)))
    # subnormal scales lose precision, or vanish: the smallest normal number still bounds the error by its half
    return np.where(magnitude == 0, np.float32(1.0), np.maximum(scales, float32.tiny)).astype(np.float32)


def _channel_blocks(array: np.ndarray, axis: int) -> Iterator[tuple[tuple[slice, ...], slice]]:
    # a float64 copy of the whole tensor would be the largest allocation of a conversion
    channels = array.shape[axis]
    step = max(1, _BLOCK_ELEMENTS // max(1, array.size // max(1, channels)))
    for start in range(0, channels, step):
        part = slice(start, start + step)
        yield tuple(part if other == axis else slice(None) for other in range(array.ndim)), part


def _checked_axis(array: np.ndarray, axis: int) -> int:
    if array.dtype.kind == "c":
        raise ValueError(f"expected real numbers, found {array.dtype}")
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"there is no axis {axis} in a tensor of shape {list(array.shape)}")
    axis %= array.ndim
    if array.shape[axis] and array.size == 0:
        raise ValueError(f"the channels of a tensor of shape {list(array.shape)} along axis {axis} have no elements")
    return axis
