"""The parts of ConvNeXt encoders: blocks, changes of resolution, endpoints. 1-D and 2-D encoders use the same.

Norms are layer norms over the channels of each position with an epsilon of 1e-6, and every convolution has a bias, as in ConvNeXt
(Liu et al., 2022, arXiv:2201.03545).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conv import Dims, apply_conv, make_conv
from hyperion_lite.layer_blocks.drop_connect import DropConnect
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.resample import ConvSequence, MaxPool, NearestUpsample, scale_change
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.layers.grn import GlobalResponseNorm
from hyperion_lite.layers.norm import ChannelLayerNorm

NORM_EPS = 1e-6

_EXPANSION = 4


class ConvNextBlock(nn.Module):
    """Depth-wise convolution, norm, expansion to four times the channels, activation, response norm, and back; added to the input.

    From ConvNeXt V2 (Woo et al., 2023, arXiv:2301.00808).

    Args:
        ndim: 1 for (batch, channels, time), 2 for (batch, channels, freq, time).
        channels: input and output channels.
        kernel_size: of the depth-wise convolution.
        dilation: of the depth-wise convolution.
        hid_act: activation.
        drop_path_rate: probability of leaving out the branch.

    Raises:
        ValueError: the branch would be shorter than the input: ``dilation * (kernel_size - 1)`` is odd.
    """

    def __init__(
        self,
        ndim: Dims,
        channels: int,
        kernel_size: int = 7,
        dilation: int = 1,
        hid_act: str | dict[str, Any] | None = "gelu",
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if dilation * (kernel_size - 1) % 2:
            raise ValueError(
                f"kernel size {kernel_size} with dilation {dilation} makes the branch of a block shorter than its input: "
                "use odd kernel sizes"
            )
        self.dwconv = make_conv(ndim, channels, channels, kernel_size, dilation=dilation, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.pwconv1 = nn.Linear(channels, _EXPANSION * channels)
        self.act = make_activation(hid_act)
        self.grn = GlobalResponseNorm(_EXPANSION * channels, ndim)
        self.pwconv2 = nn.Linear(_EXPANSION * channels, channels)
        self.drop_path = DropConnect(drop_path_rate)

    @property
    def receptive_field(self) -> ReceptiveField:
        """Field of the convolution; the response norm sees the whole item."""
        return ReceptiveField.of(self.dwconv)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, channels, [freq,] time) -> the same shape and padding."""
        h, _ = apply_conv(self.dwconv, x, padding)
        h = self.pwconv1(self.norm(h.movedim(1, -1)))
        # activations that work across an axis know channels as axis 1; for the others this is only a view
        h = self.act(h.movedim(-1, 1)).movedim(1, -1)
        h = self.pwconv2(self.grn(h, padding))
        return x + self.drop_path(h.movedim(-1, 1)), padding


class ConvNextDownsample(nn.Module):
    """A convolution that changes channels and resolution, with a norm before it, or after it in the first one of an encoder.

    Args:
        ndim: 1 for (batch, channels, time), 2 for (batch, channels, freq, time).
        in_channels: input channels.
        out_channels: output channels.
        kernel_size: of the convolution, which has ``(kernel_size - 1) // 2`` zeros on each side.
        stride: on every axis.
        norm_first: whether the norm comes before the convolution.
    """

    def __init__(
        self, ndim: Dims, in_channels: int, out_channels: int, kernel_size: int, stride: int, norm_first: bool = True
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.conv = make_conv(ndim, in_channels, out_channels, kernel_size, stride)
        self.norm = ChannelLayerNorm(in_channels if norm_first else out_channels, eps=NORM_EPS)

    @property
    def receptive_field(self) -> ReceptiveField:
        return ReceptiveField.of(self.conv)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, in_channels, [freq,] time) -> (batch, out_channels, [freq',] time'), and the new padding."""
        if self.norm_first:
            return apply_conv(self.conv, self.norm(x), padding)
        x, padding = apply_conv(self.conv, x, padding)
        return self.norm(x), padding


class ConvNextEndpoint(nn.Module):
    """Norm, and a convolution with a change of resolution; no activation.

    An even reduction takes 2 in the convolution (of that size) and the rest in a max-pool, an odd one is all in the max-pool; the
    resolution grows by repetition.

    Args:
        ndim: 1 for (batch, channels, time), 2 for (batch, channels, freq, time).
        in_channels: input channels.
        out_channels: output channels.
        in_scale: encoder input frames per input frame.
        out_scale: encoder input frames per output frame; one of the scales is a multiple of the other.
    """

    def __init__(self, ndim: Dims, in_channels: int, out_channels: int, in_scale: int = 1, out_scale: int = 1) -> None:
        super().__init__()
        reduction, growth = scale_change(in_scale, out_scale)
        conv_stride = 2 if reduction % 2 == 0 else 1
        pool_stride = reduction // conv_stride
        layers: list[nn.Module] = [make_conv(ndim, in_channels, out_channels, conv_stride, conv_stride)]
        if pool_stride > 1:
            layers.append(MaxPool(ndim, 2 * (pool_stride // 2) + 1, pool_stride))
        if growth > 1:
            layers.append(NearestUpsample(growth))
        self.norm = ChannelLayerNorm(in_channels, eps=NORM_EPS)
        self.resample = ConvSequence(*layers)

    @property
    def receptive_field(self) -> ReceptiveField:
        """Field of the downsampling; upsampling has no fixed field and counts as pointwise at the input's resolution."""
        return self.resample.receptive_field

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, in_channels, [freq,] time) -> (batch, out_channels, [freq',] time'), and the new padding."""
        return self.resample(self.norm(x), padding)
