"""Blocks that bring intermediate outputs of a 1-D encoder to one scale and number of channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.res_block import BlockSpec, pooled_downsample
from hyperion_lite.layer_blocks.resample import ConvSequence, NearestUpsample, SubPixelConv1d, apply_layer, scale_change

UpsamplingMode = Literal["nearest", "subpixel"]


class EndpointBlock(nn.Module):
    """1x1 convolution with a change of resolution; norm and activation.

    The order is convolution, norm, resampling, activation, or convolution, resampling, activation, norm. There always is a norm.

    Args:
        spec: activation and norm, the other entries are not used.
        in_channels: input channels.
        out_channels: output channels.
        in_scale: encoder input frames per input frame.
        out_scale: encoder input frames per output frame; one of the scales is a multiple of the other.
        upsampling_mode: how the resolution grows when ``in_scale`` is larger.

    Raises:
        ValueError: scales that are no multiples, or an unknown mode.
    """

    def __init__(
        self,
        spec: BlockSpec,
        in_channels: int,
        out_channels: int,
        in_scale: int = 1,
        out_scale: int = 1,
        upsampling_mode: UpsamplingMode = "nearest",
    ) -> None:
        super().__init__()
        spec = replace(spec, use_norm=True)
        reduction, growth = scale_change(in_scale, out_scale)
        if growth == 1:
            self.resample: nn.Module = pooled_downsample(spec, in_channels, out_channels, reduction)
        else:
            self.resample = _upsample(spec, in_channels, out_channels, growth, upsampling_mode)
        self.act = spec.act()
        self.bn = spec.norm(out_channels) if spec.norm_after else None

    @property
    def receptive_field(self) -> ReceptiveField:
        """Field of the downsampling; upsampling has no fixed field and counts as pointwise at the input's resolution."""
        return ReceptiveField.of(self.resample)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, in_channels, time) -> (batch, out_channels, time'), and the new padding."""
        x, padding = apply_layer(self.resample, x, padding)
        x = self.act(x)
        return (x if self.bn is None else self.bn(x, padding)), padding


def _upsample(spec: BlockSpec, in_channels: int, out_channels: int, factor: int, mode: str) -> nn.Module:
    if mode == "nearest":
        layers = [spec.conv(in_channels, out_channels)]
        if spec.norm_before:
            layers.append(spec.norm(out_channels))
        return ConvSequence(*layers, NearestUpsample(factor))
    if mode == "subpixel":
        conv = SubPixelConv1d(in_channels, out_channels, factor, bias=spec.conv_bias)
        return ConvSequence(conv, spec.norm(out_channels)) if spec.norm_before else conv
    raise ValueError(f"unknown upsampling_mode {mode!r}, use 'nearest' or 'subpixel'")
