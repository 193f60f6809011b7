"""Squeeze-excitation: scale channels and frequencies by what the whole item looks like (Hu et al., 2018, and frequency variants)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conv import Dims, make_conv
from hyperion_lite.layers.activation import make_activation

SE_TYPES = ("cw-se", "t-se", "fw-se", "cfw-se")
"""What the mean is taken over, and what is scaled.

``cw-se``: mean over frequency and time, scales channels (the only kind in 1-D). ``t-se``: mean over time, scales channels and
frequencies. ``fw-se``: mean over channels and time, scales frequencies. ``cfw-se``: ``cw-se`` and ``fw-se`` together.
"""


def time_mean(x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    """Mean over the valid positions of the last axis, which is kept with size 1."""
    if padding is None:
        return x.mean(dim=-1, keepdim=True)
    count = padding.lengths.clamp(min=1).view(-1, *[1] * (x.dim() - 1))
    # in half precision the sum of a long item is infinite where its mean is not
    total = padding.fill(x).sum(dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    return (total / count).to(x.dtype)


class SqueezeExcitation(nn.Module):
    """Two linear maps from a squeezed vector of ``size`` to the logits of its scales.

    Args:
        ndim: 1 for (batch, channels, time), 2 for (batch, channels, freq, time).
        size: length of the squeezed vector.
        reduction: the hidden size is ``int(size / reduction)``.
        act: activation between the maps.
        what: name of ``size`` for messages.

    Raises:
        ValueError: the hidden size is 0.
    """

    def __init__(self, ndim: Dims, size: int, reduction: float, act: str | dict[str, Any] | None, what: str) -> None:
        super().__init__()
        hidden = int(size / reduction) if reduction > 0 else 0
        if hidden < 1:
            raise ValueError(
                f"squeeze-excitation: se_r = {reduction} leaves no hidden unit for {size} {what}; use se_r <= {size}"
            )
        self.conv1 = make_conv(ndim, size, hidden, bias=False)
        self.conv2 = make_conv(ndim, hidden, size, bias=False)
        self.act = make_activation(act)

    def squeeze(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        """``x`` -> (batch, size, 1[, 1])."""
        return time_mean(x, padding).mean(dim=tuple(range(2, x.dim())), keepdim=True)

    def spread(self, logits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """(batch, size, 1[, 1]) -> a shape that broadcasts against ``x``."""
        return logits

    def logits(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        """Logits of the scales; broadcast against ``x``."""
        return self.spread(self.conv2(self.act(self.conv1(self.squeeze(x, padding)))), x)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """(batch, channels, [freq,] time) -> the same shape. Means are over the item's valid positions."""
        return x * torch.sigmoid(self.logits(x, padding))


class ChannelSE(SqueezeExcitation):
    """Scales channels (1-D, and ``cw-se``)."""


class ChannelFreqTimeSE(SqueezeExcitation):
    """Scales every (channel, frequency) by its mean over time (``t-se``); the vector has index ``channel * num_freqs + freq``."""

    def squeeze(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        return time_mean(x, padding).flatten(1, 2).unsqueeze(-1)

    def spread(self, logits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return logits.view(x.size(0), x.size(1), x.size(2), 1)


class FreqSE(SqueezeExcitation):
    """Scales frequencies (``fw-se``)."""

    def squeeze(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        return time_mean(x, padding).mean(dim=1).unsqueeze(-1)

    def spread(self, logits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return logits.transpose(1, 2)


class ChannelAndFreqSE(nn.Module):
    """Scales by the logistic function of the sum of channel and frequency logits (``cfw-se``).

    Args:
        channels: number of channels.
        num_freqs: number of frequencies.
        reduction: see :class:`SqueezeExcitation`; for the frequency branch at most a quarter of the frequencies.
        act: activation.
    """

    def __init__(self, channels: int, num_freqs: int, reduction: int, act: str | dict[str, Any] | None) -> None:
        super().__init__()
        freq_reduction = num_freqs // 4 if num_freqs // reduction < 4 else reduction
        self.cw_se = ChannelSE(2, channels, reduction, act, "channels")
        self.fw_se = FreqSE(2, num_freqs, freq_reduction, act, "frequencies")

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """(batch, channels, freq, time) -> the same shape."""
        return x * torch.sigmoid(self.cw_se.logits(x, padding) + self.fw_se.logits(x, padding))


def make_se(
    se_type: str, ndim: Dims, channels: int, num_freqs: int, reduction: int, act: str | dict[str, Any] | None
) -> nn.Module:
    """A squeeze-excitation layer by name.

    Args:
        se_type: one of :data:`SE_TYPES`.
        ndim: 1 (``cw-se`` only) or 2.
        channels: number of channels.
        num_freqs: number of frequencies; unused in 1-D.
        reduction: ratio of vector and hidden size.
        act: activation of the hidden layer.

    Raises:
        ValueError: unknown type, or no hidden unit left.
    """
    if se_type not in SE_TYPES or (ndim == 1 and se_type != "cw-se"):
        raise ValueError(unknown_choice("squeeze-excitation", se_type, SE_TYPES))
    if reduction < 1:
        raise ValueError(f"se_r must be at least 1, got {reduction}")
    if se_type == "cfw-se":
        return ChannelAndFreqSE(channels, num_freqs, reduction, act)
    if se_type == "t-se":
        return ChannelFreqTimeSE(2, channels * num_freqs, reduction, act, "channels x frequencies")
    if se_type == "fw-se":
        return FreqSE(2, num_freqs, reduction, act, "frequencies")
    return ChannelSE(ndim, channels, reduction, act, "channels")
