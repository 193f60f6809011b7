"""Parameter-free changes of resolution, and sequences of them with convolutions."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.layer_blocks.conv import Dims, apply_conv
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField, time_settings


class Resampler(nn.Module):
    """A module whose ``forward(x, padding)`` returns (x, padding) at another resolution."""


class _Pool(Resampler):
    """Pooling with ``(kernel_size - 1) // 2`` positions of padding on each side of every axis.

    Args:
        ndim: 1 for (batch, channels, time), 2 for (batch, channels, freq, time).
        kernel_size: odd window size.
        stride: step.
    """

    def __init__(self, ndim: Dims, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.ndim = ndim
        self.kernel_size = kernel_size
        self.stride = stride
        self.margin = (kernel_size - 1) // 2

    @property
    def receptive_field(self) -> ReceptiveField:
        return ReceptiveField.window(self.kernel_size, self.stride, 1, self.margin)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}"


class MaxPool(_Pool):
    """Maximum over the window; positions outside the item do not take part."""

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, channels, [freq,] time) -> the same layout, and the new padding; zeros at padded positions."""
        pool = F.max_pool1d if self.ndim == 1 else F.max_pool2d
        if padding is None:
            return pool(x, self.kernel_size, self.stride, self.margin), None
        x = pool(padding.fill(x, -torch.inf), self.kernel_size, self.stride, self.margin)
        padding = padding.conv(self.kernel_size, self.stride, 1, self.margin)
        # minus infinity must not stay: activations and gradients make NaN of it
        return padding.fill(x), padding


class AvgPool(_Pool):
    """Mean over the window; positions outside the item count as zeros."""

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, channels, [freq,] time) -> the same layout, and the new padding."""
        pool = F.avg_pool1d if self.ndim == 1 else F.avg_pool2d
        if padding is None:
            return pool(x, self.kernel_size, self.stride, self.margin), None
        x = pool(padding.fill(x), self.kernel_size, self.stride, self.margin)
        return x, padding.conv(self.kernel_size, self.stride, 1, self.margin)


class NearestUpsample(Resampler):
    """Repeats every position ``factor`` times, on the time axis and, for 4-axis inputs, on the frequency axis.

    Args:
        factor: number of copies.
    """

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, channels, [freq,] time) -> the same layout, and the new padding."""
        if self.factor == 1:
            return x, padding
        for dim in range(2, x.dim()):
            x = x.repeat_interleave(self.factor, dim=dim)
        return x, None if padding is None else padding.repeat(self.factor)


class SubPixelConv1d(Resampler):
    """1x1 convolution to ``factor`` times the channels, which then become ``factor`` positions in time.

    Args:
        in_channels: input channels.
        out_channels: output channels.
        factor: outputs per input position; output ``t * factor + j`` comes from the j-th block of channels.
        bias: whether the convolution has a bias.
    """

    def __init__(self, in_channels: int, out_channels: int, factor: int, bias: bool = True) -> None:
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv1d(in_channels, out_channels * factor, 1, bias=bias)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, in_channels, time) -> (batch, out_channels, time * factor), and the new padding."""
        x = self.conv(x).unflatten(1, (self.factor, -1)).permute(0, 2, 3, 1).flatten(2)
        return x, None if padding is None else padding.repeat(self.factor)


class ConvSequence(nn.Sequential):
    """A sequence of convolutions, norms and resamplers that hands the padding through. Children are called ``0``, ``1``, ..."""

    @property
    def receptive_field(self) -> ReceptiveField:
        field = ReceptiveField()
        for layer in self:
            field = field.then(ReceptiveField.of(layer))
        return field

    def norm_pairs(self) -> list[tuple[str, str]]:
        """(convolution, norm) names where the norm directly follows."""
        names = list(self._modules)
        convs = (nn.Conv1d, nn.Conv2d)
        return [
            (first, second)
            for first, second in itertools.pairwise(names)
            if isinstance(self._modules[first], convs) and not isinstance(self._modules[second], (*convs, Resampler))
        ]

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, channels, [freq,] time) -> the same layout, and the new padding."""
        for layer in self:
            x, padding = apply_layer(layer, x, padding)
        return x, padding


def apply_layer(layer: nn.Module, x: torch.Tensor, padding: Padding | None) -> tuple[torch.Tensor, Padding | None]:
    """Apply a convolution, a resampler or a norm layer; returns ``x`` and the padding at its resolution."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return apply_conv(layer, x, padding)
    if isinstance(layer, (Resampler, ConvSequence)):
        return layer(x, padding)
    return layer(x, padding), padding


def resampled_lengths(layer: nn.Module, lengths: torch.Tensor) -> torch.Tensor:
    """Lengths after a convolution, a resampler or a sequence of them; other layers keep the length."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return conv_out_length(lengths, *time_settings(layer))
    if isinstance(layer, _Pool):
        return conv_out_length(lengths, layer.kernel_size, layer.stride, 1, layer.margin)
    if isinstance(layer, (NearestUpsample, SubPixelConv1d)):
        return lengths * layer.factor
    if isinstance(layer, ConvSequence):
        for child in layer:
            lengths = resampled_lengths(child, lengths)
    return lengths


def scale_change(in_scale: int, out_scale: int) -> tuple[int, int]:
    """By which factor the resolution shrinks and by which it grows, one of them 1.

    Args:
        in_scale: encoder input frames per input frame.
        out_scale: encoder input frames per output frame.

    Raises:
        ValueError: neither scale is a multiple of the other.
    """
    if max(in_scale, out_scale) % min(in_scale, out_scale):
        raise ValueError(f"cannot resample from one output in {in_scale} frames to one in {out_scale}: not a multiple")
    return max(out_scale // in_scale, 1), max(in_scale // out_scale, 1)
