"""Checked integers: sizes, offsets and strides of tensors as a file states them."""

from __future__ import annotations

from typing import Any

from hyperion_lite.pth.errors import PthFormatError, PthLimitError, shorten
from hyperion_lite.pth.limits import MAX_INT64


def is_text(value: Any, *texts: str) -> bool:
    """Whether `value` is one of `texts`. (Comparing with an array would give an array.)"""
    return type(value) is str and value in texts


def checked_int(value: Any, what: str) -> int:
    """`value` if it is an integer from 0 to 2**63 - 1."""
    if type(value) is not int or not 0 <= value <= MAX_INT64:
        raise PthFormatError(f"{what} is {shorten(value)}, not an integer from 0 to 2**63 - 1")
    return value


def checked_sizes(values: Any, what: str, max_rank: int) -> tuple[int, ...]:
    """`values` as a tuple of checked integers, of bounded length."""
    if type(values) not in (tuple, list):
        raise PthFormatError(f"{what} is a {type(values).__name__}, not a tuple of integers")
    if len(values) > max_rank:
        raise PthLimitError(f"{what} has {len(values)} dimensions (Limits.max_rank is {max_rank})")
    for value in values:
        if type(value) is not int or not 0 <= value <= MAX_INT64:
            checked_int(value, f"a number of {what}")
    return values if type(values) is tuple else tuple(values)


def check_view(
    shape: Any, stride: Any, offset: int, itemsize: int, available: int | None, max_rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Make sure that a view stays inside its storage.

    Args:
        shape, stride, offset: of the view, in elements.
        itemsize: bytes of an element.
        available: elements in the storage; None for a tensor without data.
        max_rank: most dimensions.

    Returns:
        Shape and stride as tuples.

    Raises:
        PthFormatError: not tuples of integers, of different length, beyond 64 bits, elements outside the storage.
        PthLimitError: too many dimensions.
    """
    shape = checked_sizes(shape, "the shape of a tensor", max_rank)
    stride = checked_sizes(stride, "the stride of a tensor", max_rank)
    if len(shape) != len(stride):
        raise PthFormatError(f"a tensor of {len(shape)} dimensions has {len(stride)} strides")
    count = 1
    last = offset
    for size, step in zip(shape, stride, strict=True):
        count *= size
        last += (size - 1) * step
    if count * itemsize > MAX_INT64:
        raise PthFormatError(f"a tensor of shape {shorten(shape)} has more bytes than 64 bits can count")
    if count and (last > MAX_INT64 or (available is not None and last >= available)):
        raise PthFormatError(
            f"a tensor of shape {shorten(shape)}, stride {shorten(stride)} and offset {offset} reaches "
            f"element {last} of a storage of {available}"
        )
    return shape, stride
