"""Mean of the outputs of several layers of a 2-D network at the resolution of the first of them."""

from __future__ import annotations

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conv import ConvNormAct
from hyperion_lite.layer_blocks.res_block import BlockSpec
from hyperion_lite.layer_blocks.resample import NearestUpsample


def make_endpoint(spec: BlockSpec, in_channels: int, out_channels: int) -> nn.Module:
    """1x1 convolution, norm and activation, or the identity if the channels are right already."""
    if in_channels == out_channels:
        return nn.Identity()
    return ConvNormAct(spec.conv(in_channels, out_channels), spec.norm(out_channels), spec.act(), spec.norm_after)


def apply_endpoint(endpoint: nn.Module, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    """Apply what :func:`make_endpoint` made; the resolution stays."""
    return endpoint(x, padding)[0] if isinstance(endpoint, ConvNormAct) else endpoint(x)


def upsampled_mean(outputs: list[torch.Tensor], factors: list[int]) -> torch.Tensor:
    """Mean after nearest upsampling by ``factors``.

    Rounding can make deeper outputs longer; they are cut at their end, so that position ``t`` is the same place in all of them.

    Args:
        outputs: (batch, channels, freq_i, time_i).
        factors: upsampling of each on both axes.

    Returns:
        (batch, channels, min(freq_i * factor_i), min(time_i * factor_i)).
    """
    upsampled = [NearestUpsample(factor)(x)[0] for x, factor in zip(outputs, factors, strict=True)]
    freqs = min(x.size(2) for x in upsampled)
    frames = min(x.size(3) for x in upsampled)
    return torch.stack([x[:, :, :freqs, :frames] for x in upsampled]).mean(dim=0)
