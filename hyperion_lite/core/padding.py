"""Which positions of a right-padded batch are valid, and every length formula of the package.

Lengths are integers: the number of valid positions before right padding. Masks are bool with ``True`` = valid. Public methods accept
either; they are turned into one :class:`Padding` at the entrance, and modules hand that object on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar, overload

import torch

from hyperion_lite.core.errors import LengthsError, TooShortError

_Length = TypeVar("_Length", int, torch.Tensor)


@overload
def conv_out_length(
    length: int, kernel_size: int, stride: int = ..., dilation: int = ..., padding: int = ...
) -> int: ...
@overload
def conv_out_length(
    length: torch.Tensor, kernel_size: int, stride: int = ..., dilation: int = ..., padding: int = ...
) -> torch.Tensor: ...
def conv_out_length(
    length: int | torch.Tensor, kernel_size: int, stride: int = 1, dilation: int = 1, padding: int = 0
) -> int | torch.Tensor:
    """Length after a convolution or pooling: ``floor((L + 2p - d(k-1) - 1)/s) + 1``, never below 0."""
    out = (length + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1
    if isinstance(out, torch.Tensor):
        return out.clamp(min=0)
    return max(out, 0)


def mask_to_lengths(mask: torch.Tensor, name: str = "mask") -> torch.Tensor:
    """Turn a right-padding mask into lengths.

    Args:
        mask: (batch, time) bool, True = valid.
        name: argument name for the error message.

    Returns:
        (batch,) int64.

    Raises:
        LengthsError: the mask has a hole or its padding is on the left.
    """
    lengths = mask.sum(dim=1)
    expected = torch.arange(mask.size(1), device=mask.device)[None, :] < lengths[:, None]
    wrong = (mask != expected).any(dim=1)
    if bool(wrong.any()):
        items = torch.nonzero(wrong).flatten().tolist()
        raise LengthsError(
            f"{name} is not a right-padding mask for items {items}: valid positions must come first and without holes. "
            "To select parts of the signal (voice activity) use vad_samples or vad_feats."
        )
    return lengths


def lengths_to_mask(lengths: torch.Tensor, max_length: int | None = None) -> torch.Tensor:
    """(batch,) integer lengths -> (batch, max_length) bool mask, True = valid."""
    if max_length is None:
        max_length = int(lengths.max()) if lengths.numel() else 0
    return torch.arange(max_length, device=lengths.device)[None, :] < lengths[:, None]


def check_lengths(lengths: torch.Tensor, batch_size: int, max_length: int, name: str = "x_lengths") -> torch.Tensor:
    """Validate lengths or a right-padding mask and return them as (batch,) int64 on their own device.

    Args:
        lengths: (batch,) integer tensor of valid positions, or (batch, time) bool mask, True = valid.
        batch_size: size of the batch they describe.
        max_length: padded length of the batch.
        name: argument name for messages.

    Raises:
        LengthsError: wrong type, shape or range. Values are never clamped: a length beyond the padded size means that the caller's
            bookkeeping is wrong.
    """
    return _checked(lengths, batch_size, max_length, name)[0]


def _checked(lengths: torch.Tensor, batch_size: int, max_length: int, name: str) -> tuple[torch.Tensor, list[int]]:
    """What :func:`check_lengths` returns, and the same as numbers: fetching them makes the host wait for the device."""
    if not isinstance(lengths, torch.Tensor):
        raise LengthsError(
            f"{name} must be a tensor of integers of shape ({batch_size},), got {type(lengths).__name__}"
        )
    if lengths.dtype == torch.bool:
        if lengths.shape != (batch_size, max_length):
            raise LengthsError(
                f"the mask {name} must have shape ({batch_size}, {max_length}), one value a position, got {tuple(lengths.shape)}"
            )
        lengths = mask_to_lengths(lengths, name)
    elif lengths.is_floating_point() or lengths.is_complex():
        raise LengthsError(
            f"{name} must hold integers (valid positions before padding), got {lengths.dtype}; relative lengths are not accepted"
        )
    if lengths.shape != (batch_size,):
        raise LengthsError(
            f"{name} must have shape ({batch_size},), one length a batch item, got {tuple(lengths.shape)}"
        )
    lengths = lengths.to(torch.int64)
    values = lengths.tolist()
    for index, value in enumerate(values):
        if value > max_length:
            raise LengthsError(f"{name}[{index}] = {value} is larger than the padded length {max_length} of the batch")
        if value < 1:
            raise LengthsError(f"{name}[{index}] = {value}: every item needs at least one valid position")
    return lengths, values


class Padding:
    """Valid positions of a right-padded batch at one temporal resolution.

    Args:
        lengths: (batch,) int64, valid positions of each item, already validated.
        max_length: padded size of the time axis.
        host_lengths: the lengths as numbers, where they are known; asked for later, the host has to wait for the device.

    ``None`` in place of a :class:`Padding` means that every position is valid; :meth:`from_lengths` returns it whenever it can, so
    that the usual fast path of a module runs when there is no padding.
    """

    def __init__(self, lengths: torch.Tensor, max_length: int, host_lengths: list[int] | None = None) -> None:
        self.lengths = lengths
        self.max_length = max_length
        if host_lengths is not None:
            self.host_lengths = host_lengths

    @classmethod
    def from_lengths(
        cls,
        lengths: torch.Tensor | None,
        batch_size: int,
        max_length: int,
        name: str = "x_lengths",
        device: torch.device | None = None,
    ) -> Padding | None:
        """Validate user-given lengths or mask; ``None`` when nothing is padded.

        Raises:
            LengthsError: see :func:`check_lengths`.
            RuntimeError: lengths on another device than ``device``.
        """
        if lengths is None:
            return None
        if device is not None and isinstance(lengths, torch.Tensor) and lengths.device != device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} is on {lengths.device} and the input on {device}"
            )
        checked, values = _checked(lengths, batch_size, max_length, name)
        return None if min(values, default=max_length) == max_length else cls(checked, max_length, values)

    @cached_property
    def host_lengths(self) -> list[int]:
        """``lengths`` as numbers."""
        return self.lengths.tolist()

    @cached_property
    def mask(self) -> torch.Tensor:
        """(batch, max_length) bool, True = valid."""
        return lengths_to_mask(self.lengths, self.max_length)

    @cached_property
    def num_valid(self) -> int:
        """Number of valid positions in the whole batch."""
        return int(self.lengths.sum())

    def mask_like(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The mask with singleton axes so that it broadcasts against ``x`` (batch first, time at ``dim``)."""
        dim = dim % x.dim()
        shape = [1] * x.dim()
        shape[0], shape[dim] = self.mask.shape
        if x.size(dim) != self.max_length:
            raise AssertionError(f"padding for {self.max_length} positions used on an axis of {x.size(dim)}")
        return self.mask.view(shape)

    def fill(self, x: torch.Tensor, value: float = 0.0, dim: int = -1) -> torch.Tensor:
        """Put ``value`` at the padded positions of axis ``dim``.

        A selection, not a product: NaN and infinity in the padding vanish, and no gradient comes from there.
        """
        # the value as a number: a tensor of it would be a copy to the device, and a wait for it, at every convolution
        return torch.where(self.mask_like(x, dim), x, value)

    def with_lengths(self, lengths: torch.Tensor, max_length: int) -> Padding:
        """The same batch at another resolution."""
        return Padding(lengths, max_length)

    def conv(self, kernel_size: int, stride: int = 1, dilation: int = 1, padding: int = 0) -> Padding:
        """Valid positions after a convolution or pooling with these settings; lengths may become 0."""
        if kernel_size == 1 and stride == 1 and padding == 0:
            return self
        lengths = conv_out_length(self.lengths, kernel_size, stride, dilation, padding)
        max_length = conv_out_length(self.max_length, kernel_size, stride, dilation, padding)
        if max_length == self.max_length and stride == 1:
            # "same" convolution: share the cached mask
            return self
        return Padding(lengths, max_length)

    def repeat(self, factor: int) -> Padding:
        """Valid positions after nearest or sub-pixel upsampling by ``factor``."""
        return self if factor == 1 else Padding(self.lengths * factor, self.max_length * factor)

    def check_minimum(self, minimum: int, what: str = "frames") -> None:
        """Raise :class:`TooShortError` for the first item shorter than ``minimum``."""
        check_minimum_length(self.host_lengths, minimum, what)


def check_minimum_length(lengths: torch.Tensor | Sequence[int], minimum: int, what: str) -> None:
    """Raise :class:`TooShortError` for the first of ``lengths`` (batch,) below ``minimum``."""
    for index, value in enumerate(lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths):
        if value < minimum:
            raise TooShortError(
                f"item {index} of the batch has {value} {what}, the minimum is {minimum}; drop it or give a longer signal",
                index,
                value,
                minimum,
            )
