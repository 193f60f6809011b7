"""Convolutions that keep padding out, and the order of convolution, norm and activation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField, time_settings

Dims = Literal[1, 2]
"""1 for (batch, channels, time), 2 for (batch, channels, freq, time)."""


def make_conv(
    ndim: Dims,
    in_channels: int,
    out_channels: int,
    kernel_size: int = 1,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> nn.Conv1d | nn.Conv2d:
    """A convolution with the same settings on every axis and ``(dilation * (kernel_size - 1)) // 2`` zeros on each side.

    Raises:
        ValueError: channels that the groups do not divide, or no channels at all.
    """
    if in_channels < 1 or out_channels < 1:
        raise ValueError(f"a convolution from {in_channels} to {out_channels} channels is impossible")
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise ValueError(
            f"{groups} convolution groups do not divide {in_channels} input and {out_channels} output channels"
        )
    conv_class = nn.Conv1d if ndim == 1 else nn.Conv2d
    padding = (dilation * (kernel_size - 1)) // 2
    return conv_class(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)


def apply_conv(conv: nn.Module, x: torch.Tensor, padding: Padding | None) -> tuple[torch.Tensor, Padding | None]:
    """Convolve ``x`` as if every item ended at its own last valid position.

    Padded positions are zeroed where the kernel could read them, so the item sees the zeros that it would see alone.
    """
    if padding is None:
        return conv(x), None
    if not isinstance(conv, (nn.Conv1d, nn.Conv2d)):
        raise TypeError(f"expected a convolution, got {type(conv).__name__}")
    kernel_size, stride, dilation, margin = time_settings(conv)
    if kernel_size > 1:
        x = padding.fill(x)
    return conv(x), padding.conv(kernel_size, stride, dilation, margin)


class NoNorm(nn.Module):
    """Stands where a block has no norm layer, or where it has been folded into the convolution."""

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """Identity."""
        return x


def conv_norm_act(
    conv: nn.Module, norm: nn.Module, act: nn.Module, norm_after: bool, x: torch.Tensor, padding: Padding | None
) -> tuple[torch.Tensor, Padding | None]:
    """Convolution, then norm and activation, or activation and norm if ``norm_after``."""
    x, padding = apply_conv(conv, x, padding)
    if norm_after:
        return norm(act(x), padding), padding
    return act(norm(x, padding)), padding


class ConvNormAct(nn.Module):
    """A convolution with its norm and activation: stems, heads, endpoints.

    Args:
        conv: the convolution.
        norm: norm layer, :class:`NoNorm` for none.
        act: activation.
        norm_after: activation first, then norm.
        suffix: the tensors are called ``conv<suffix>`` and ``bn<suffix>``; existing files use both ``"1"`` (1-D) and ``""`` (2-D).
    """

    def __init__(self, conv: nn.Module, norm: nn.Module, act: nn.Module, norm_after: bool, suffix: str = "") -> None:
        super().__init__()
        self._names = (f"conv{suffix}", f"bn{suffix}")
        self.add_module(self._names[0], conv)
        self.add_module(self._names[1], norm)
        self.act = act
        self.norm_after = norm_after

    @property
    def receptive_field(self) -> ReceptiveField:
        return ReceptiveField.of(self.get_submodule(self._names[0]))

    def norm_pairs(self) -> list[tuple[str, str]]:
        """(convolution, norm) names where the norm directly follows."""
        return [] if self.norm_after else [self._names]

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, channels, [freq,] time) -> the same layout and the padding at the new resolution."""
        conv, norm = (self.get_submodule(name) for name in self._names)
        return conv_norm_act(conv, norm, self.act, self.norm_after, x, padding)
