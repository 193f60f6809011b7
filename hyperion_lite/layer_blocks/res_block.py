"""Residual blocks: what they share, and the plain and bottleneck ones.

The 1-D and the 2-D encoders use the same blocks; what differs between them is stated by :class:`BlockSpec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conv import Dims, NoNorm, apply_conv, conv_norm_act, make_conv
from hyperion_lite.layer_blocks.drop_connect import DropConnect, check_rate
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.resample import ConvSequence, MaxPool, apply_layer
from hyperion_lite.layer_blocks.squeeze_excitation import make_se
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.layers.norm import make_norm


@dataclass(frozen=True)
class BlockSpec:
    """Everything that defines a residual block.

    Attributes:
        ndim: 1 for (batch, channels, time), 2 for (batch, channels, freq, time).
        in_channels: input channels.
        channels: width of the block; widths of Res2Net groups derive from it.
        out_channels: output channels.
        kernel_size: odd size of the main convolutions.
        stride: of the block, on every axis.
        dilation: of the first main convolution.
        groups: of the main convolutions.
        hid_act: activation.
        norm_layer: kind of norm, ``None`` for batch norm.
        norm_groups: groups of ``group-norm``.
        use_norm: whether there are norms at all.
        norm_before: convolution, norm, activation; if false convolution, activation, norm.
        dropout_rate: of whole channels, at the end of the block.
        drop_connect_rate: probability of leaving out the branch.
        se_type: squeeze-excitation, ``None`` for none.
        se_r: its reduction.
        scale: number of Res2Net groups.
        width_factor: width of all Res2Net groups together relative to ``channels``.
        in_freqs: frequencies of the input (2-D).
        out_freqs: frequencies of the output (2-D).
        freq_pos_enc: whether a trained vector over frequencies is added to the input of the branch (2-D).
    """

    ndim: Dims
    in_channels: int
    channels: int
    out_channels: int
    kernel_size: int = 3
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    hid_act: str | dict[str, Any] | None = "relu"
    norm_layer: str | None = None
    norm_groups: int = 1
    use_norm: bool = True
    norm_before: bool = True
    dropout_rate: float = 0.0
    drop_connect_rate: float = 0.0
    se_type: str | None = None
    se_r: int = 16
    scale: int = 4
    width_factor: float = 1.0
    in_freqs: int = 0
    out_freqs: int = 0
    freq_pos_enc: bool = False

    def __post_init__(self) -> None:
        if self.kernel_size % 2 == 0 or self.kernel_size < 1:
            raise ValueError(
                f"residual blocks need odd kernel sizes, got {self.kernel_size}: with an even one the branch is shorter than the residual"
            )
        if self.stride < 1 or self.dilation < 1:
            raise ValueError(f"strides and dilations must be at least 1, got {self.stride} and {self.dilation}")
        check_rate(self.dropout_rate, "dropout_rate")

    @property
    def norm_after(self) -> bool:
        """Whether the order is convolution, activation, norm."""
        return self.use_norm and not self.norm_before

    @property
    def conv_bias(self) -> bool:
        """Whether convolutions have a bias. Files of the original depend on ``norm_before`` alone, also without norms."""
        return not self.norm_before

    def conv(self, in_channels: int, out_channels: int, kernel_size: int = 1, **settings: Any) -> nn.Module:
        """A convolution of this block."""
        return make_conv(self.ndim, in_channels, out_channels, kernel_size, bias=self.conv_bias, **settings)

    def main_conv(self, in_channels: int, out_channels: int, first: bool = True) -> nn.Module:
        """A convolution with the block's kernel and groups, and its stride and dilation if it is the ``first``."""
        stride, dilation = (self.stride, self.dilation) if first else (1, 1)
        return self.conv(
            in_channels, out_channels, self.kernel_size, stride=stride, dilation=dilation, groups=self.groups
        )

    def norm(self, num_channels: int) -> nn.Module:
        """A norm layer of this block, or its stand-in."""
        return make_norm(self.norm_layer, num_channels, self.ndim, self.norm_groups) if self.use_norm else NoNorm()

    def act(self) -> nn.Module:
        """An activation of this block."""
        return make_activation(self.hid_act)


def pooled_downsample(spec: BlockSpec, in_channels: int, out_channels: int, stride: int) -> ConvSequence:
    """1x1 convolution, norm (if before activations), and a max-pool for the part of the stride that the convolution does not take.

    An even stride is 2 in the convolution and the rest in the pool; an odd one is all in the pool. This norm exists even where the
    encoder uses none otherwise, as in the files of the original.
    """
    conv_stride = 2 if stride % 2 == 0 else 1
    layers = [spec.conv(in_channels, out_channels, stride=conv_stride)]
    if spec.norm_before:
        layers.append(make_norm(spec.norm_layer, out_channels, spec.ndim, spec.norm_groups))
    pool_stride = stride // conv_stride
    if pool_stride > 1:
        layers.append(MaxPool(spec.ndim, 2 * (pool_stride // 2) + 1, pool_stride))
    return ConvSequence(*layers)


def strided_downsample(spec: BlockSpec) -> nn.Module:
    """1x1 convolution with the stride of the block, and a norm if before activations; else the bare convolution."""
    conv = spec.conv(spec.in_channels, spec.out_channels, stride=spec.stride)
    if not spec.norm_before:
        return conv
    return ConvSequence(conv, make_norm(spec.norm_layer, spec.out_channels, spec.ndim, spec.norm_groups))


class FreqPosEnc(nn.Module):
    """Adds a trained vector over frequencies.

    Args:
        num_freqs: number of frequencies.
    """

    def __init__(self, num_freqs: int) -> None:
        super().__init__()
        self.pos_enc = nn.Parameter(torch.zeros(num_freqs, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, freq, time) -> the same shape."""
        return x + self.pos_enc


class ResBlock(nn.Module):
    """What all residual blocks share: the residual, the end of the block, its options.

    Subclasses are called as ``block(x, padding=None)`` and return ``(y, padding)``, with the padding at the output resolution.
    """

    def __init__(self, spec: BlockSpec, downsample: nn.Module | None) -> None:
        super().__init__()
        self.stride = spec.stride
        self.norm_after = spec.norm_after
        self.pos_enc = FreqPosEnc(spec.in_freqs) if spec.freq_pos_enc else None
        self.downsample = downsample
        self.se_layer = None
        if spec.se_type is not None:
            self.se_layer = make_se(spec.se_type, spec.ndim, spec.out_channels, spec.out_freqs, spec.se_r, spec.hid_act)
        self.drop_connect = DropConnect(spec.drop_connect_rate)
        self.dropout = (nn.Dropout1d if spec.ndim == 1 else nn.Dropout2d)(spec.dropout_rate)

    @staticmethod
    def needs_downsample(spec: BlockSpec) -> bool:
        """Whether the residual needs other channels or another resolution."""
        return spec.stride != 1 or spec.in_channels != spec.out_channels

    def branch_field(self) -> ReceptiveField:
        """Receptive field of the branch."""
        raise NotImplementedError

    @property
    def last_norm(self) -> nn.Module:
        """The last norm of the branch."""
        raise NotImplementedError

    @property
    def receptive_field(self) -> ReceptiveField:
        residual = ReceptiveField() if self.downsample is None else ReceptiveField.of(self.downsample)
        return self.branch_field().beside(residual)

    def branch_input(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.pos_enc is None else self.pos_enc(x)

    def residual(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        return x if self.downsample is None else apply_layer(self.downsample, x, padding)[0]

    def finish(
        self, h: torch.Tensor, residual: torch.Tensor, norm: nn.Module, act: nn.Module, padding: Padding | None
    ) -> torch.Tensor:
        """Norm, squeeze-excitation, sum and activation; with the norm after activations there is none after the sum."""
        h = norm(act(h), padding) if self.norm_after else norm(h, padding)
        if self.se_layer is not None:
            h = self.se_layer(h, padding)
        h = self.drop_connect(h) + residual
        return self.dropout(h if self.norm_after else act(h))


class BasicBlock(ResBlock):
    """Two main convolutions.

    Args:
        spec: the block.
    """

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__(spec, _plain_downsample(spec))
        self.conv1 = spec.main_conv(spec.in_channels, spec.out_channels)
        self.bn1 = spec.norm(spec.out_channels)
        self.act1 = spec.act()
        self.conv2 = spec.main_conv(spec.out_channels, spec.out_channels, first=False)
        self.bn2 = spec.norm(spec.out_channels)
        self.act2 = spec.act()

    def norm_pairs(self) -> list[tuple[str, str]]:
        """(convolution, norm) names where the norm directly follows."""
        return [] if self.norm_after else [("conv1", "bn1"), ("conv2", "bn2")]

    @property
    def last_norm(self) -> nn.Module:
        return self.bn2

    def branch_field(self) -> ReceptiveField:
        return ReceptiveField.of(self.conv1).then(ReceptiveField.of(self.conv2))

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, in_channels, [freq,] time) -> (batch, out_channels, [freq',] time'), and the new padding."""
        residual = self.residual(x, padding)
        h, padding = conv_norm_act(self.conv1, self.bn1, self.act1, self.norm_after, self.branch_input(x), padding)
        h, padding = apply_conv(self.conv2, h, padding)
        return self.finish(h, residual, self.bn2, self.act2, padding), padding


class BottleneckBlock(ResBlock):
    """1x1 convolution to a quarter of the output channels, a main convolution, and 1x1 back.

    Args:
        spec: the block.
    """

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__(spec, _plain_downsample(spec))
        width = spec.out_channels // 4
        self.conv1 = spec.conv(spec.in_channels, width)
        self.bn1 = spec.norm(width)
        self.act1 = spec.act()
        self.conv2 = spec.main_conv(width, width)
        self.bn2 = spec.norm(width)
        self.act2 = spec.act()
        self.conv3 = spec.conv(width, spec.out_channels)
        self.bn3 = spec.norm(spec.out_channels)
        self.act3 = spec.act()

    def norm_pairs(self) -> list[tuple[str, str]]:
        """(convolution, norm) names where the norm directly follows."""
        return [] if self.norm_after else [("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3")]

    @property
    def last_norm(self) -> nn.Module:
        return self.bn3

    def branch_field(self) -> ReceptiveField:
        return ReceptiveField.of(self.conv2)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, in_channels, [freq,] time) -> (batch, out_channels, [freq',] time'), and the new padding."""
        residual = self.residual(x, padding)
        h, padding = conv_norm_act(self.conv1, self.bn1, self.act1, self.norm_after, self.branch_input(x), padding)
        h, padding = conv_norm_act(self.conv2, self.bn2, self.act2, self.norm_after, h, padding)
        h, padding = apply_conv(self.conv3, h, padding)
        return self.finish(h, residual, self.bn3, self.act3, padding), padding


def _plain_downsample(spec: BlockSpec) -> nn.Module | None:
    if not ResBlock.needs_downsample(spec):
        return None
    if spec.ndim == 1:
        return pooled_downsample(spec, spec.in_channels, spec.out_channels, spec.stride)
    return strided_downsample(spec)
