"""The 1-D residual encoder. ECAPA-TDNN and its relatives are instances of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.layer_blocks.conv import ConvNormAct, NoNorm, make_conv
from hyperion_lite.layer_blocks.drop_connect import linear_rates
from hyperion_lite.layer_blocks.endpoint_block import EndpointBlock
from hyperion_lite.layer_blocks.res_block import BlockSpec
from hyperion_lite.layer_blocks.res_blocks import make_block
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.narchs.conv_encoder import Taps
from hyperion_lite.narchs.multilayer_encoder import MultilayerEncoder
from hyperion_lite.narchs.resnet1d_layout import EndpointLayout, StemSettings, per_superblock
from hyperion_lite.narchs.weight_init import init_conv_weights


class ResNet1dEncoder(MultilayerEncoder):
    """Residual network over feature sequences, with optional aggregation of the outputs of several depths.

    A convolution, superblocks of residual blocks, then optionally endpoints (outputs of superblocks brought to one scale and summed or
    concatenated) and a 1x1 convolution. ``seres2bn`` blocks with dilations 2, 3, 4 and concatenated endpoints are ECAPA-TDNN
    (Desplanques et al., 2020).

    Args:
        in_feats: features per input frame.
        in_conv_channels: channels of the first convolution.
        in_kernel_size: its kernel size.
        in_stride: its stride.
        resb_type: residual block: basic, bn, res2basic, res2bn, or one of these with ``se`` in front for squeeze-excitation.
        resb_repeats: number of blocks in each superblock.
        resb_channels: output channels of the superblocks, one value or one for each.
        resb_kernel_sizes: odd kernel sizes, one value or one for each superblock.
        resb_strides: strides of the first block of the superblocks, one value or one for each.
        resb_dilations: dilations, one value or one for each superblock; a block with a stride uses 1.
        resb_groups: convolution groups of the main convolutions.
        head_channels: channels of the last 1x1 convolution, 0 for none.
        hid_act: activation, a name or a dict with ``name`` and its arguments.
        head_act: activation of the last convolution, ``None`` for none.
        dropout_rate: dropout of whole channels after every block.
        drop_connect_rate: probability of leaving out a branch, growing linearly to this value at the last block.
        se_r: reduction of squeeze-excitation.
        res2net_width_factor: width of the Res2Net groups together, relative to the channels.
        res2net_scale: number of Res2Net groups.
        multilayer: whether to merge endpoints.
        multilayer_concat: concatenate them on channels and mix with a 1x1 convolution; else take their mean.
        endpoint_channels: channels of the merged output; ``None`` takes those of the superblock ``endpoint_scale_layer``.
        endpoint_layers: superblocks to merge, counted from 1; ``None`` for all.
        endpoint_scale_layer: index of the superblock whose time resolution the merged output gets.
        use_norm: whether blocks have norm layers.
        norm_layer: batch-norm, group-norm, instance-norm, instance-norm-affine or layer-norm; ``None`` means batch-norm.
        norm_before: norm before the activation, else after.
        upsampling_mode: nearest or subpixel.

    Raises:
        ValueError: arguments that do not fit together; says which and why.
    """

    def __init__(
        self,
        in_feats: int,
        in_conv_channels: int = 128,
        in_kernel_size: int = 3,
        in_stride: int = 1,
        resb_type: str = "basic",
        resb_repeats: Sequence[int] = (1, 1, 1),
        resb_channels: int | Sequence[int] = 128,
        resb_kernel_sizes: int | Sequence[int] = 3,
        resb_strides: int | Sequence[int] = 2,
        resb_dilations: int | Sequence[int] = 1,
        resb_groups: int = 1,
        head_channels: int = 0,
        hid_act: str | dict[str, Any] | None = "relu",
        head_act: str | dict[str, Any] | None = None,
        dropout_rate: float = 0.0,
        drop_connect_rate: float = 0.0,
        se_r: int = 16,
        res2net_width_factor: float = 1.0,
        res2net_scale: int = 4,
        multilayer: bool = False,
        multilayer_concat: bool = False,
        endpoint_channels: int | None = None,
        endpoint_layers: Sequence[int] | None = None,
        endpoint_scale_layer: int = -1,
        use_norm: bool = True,
        norm_layer: str | None = None,
        norm_before: bool = True,
        upsampling_mode: Literal["nearest", "subpixel"] = "nearest",
    ) -> None:
        super().__init__()
        if min(in_feats, in_conv_channels, in_kernel_size, in_stride) < 1 or head_channels < 0:
            raise ValueError(
                "in_feats, in_conv_channels, in_kernel_size and in_stride must be positive, head_channels not negative"
            )
        repeats = [int(n) for n in resb_repeats]
        if not repeats or min(repeats) < 1:
            raise ValueError(f"resb_repeats must hold at least one positive number, got {resb_repeats}")
        count = len(repeats)
        self.in_feats = in_feats
        self._stem = StemSettings(in_kernel_size, in_stride)
        self._channels = per_superblock(resb_channels, count, "resb_channels")
        self._strides = per_superblock(resb_strides, count, "resb_strides")
        scales = [in_stride]
        for stride in self._strides:
            scales.append(scales[-1] * stride)
        self.alignment = scales[-1]
        endpoints = EndpointLayout.create(endpoint_layers, endpoint_scale_layer, scales[1:]) if multilayer else None

        spec = BlockSpec(
            1,
            in_channels=in_conv_channels,
            channels=in_conv_channels,
            out_channels=in_conv_channels,
            groups=resb_groups,
            hid_act=hid_act,
            norm_layer=norm_layer,
            norm_groups=max(min(min(self._channels) // 2, 32), resb_groups),
            use_norm=use_norm,
            norm_before=norm_before,
            dropout_rate=dropout_rate,
            se_r=se_r,
            scale=res2net_scale,
            width_factor=res2net_width_factor,
        )
        self.in_block = _stem_block(spec, in_feats, in_kernel_size, in_stride)
        self.blocks = self._make_blocks(
            resb_type,
            spec,
            repeats,
            per_superblock(resb_kernel_sizes, count, "resb_kernel_sizes"),
            per_superblock(resb_dilations, count, "resb_dilations"),
            linear_rates(drop_connect_rate, sum(repeats)),
        )
        channels = self._channels[-1]
        if endpoints is not None:
            channels = endpoint_channels or self._channels[endpoints.reference]
        self._set_endpoints(
            endpoints,
            self._channels,
            channels,
            multilayer_concat,
            lambda into, out, scale, out_scale: EndpointBlock(spec, into, out, scale, out_scale, upsampling_mode),
        )
        self.head_block = _head_block(channels, head_channels, head_act) if head_channels > 0 else None
        self.out_channels = head_channels or channels
        self.layer_names = ("in_block", *(f"blocks_{i}" for i in range(count)))
        head_stage = [] if self.head_block is None else ["head_block"]
        self.stage_names = (*self.layer_names, *self._endpoint_stages(), *head_stage)
        init_conv_weights(self)

    def _make_blocks(
        self,
        resb_type: str,
        spec: BlockSpec,
        repeats: list[int],
        kernel_sizes: list[int],
        dilations: list[int],
        drop_rates: Iterator[float],
    ) -> nn.ModuleList:
        superblocks = nn.ModuleList()
        in_channels = spec.in_channels
        for index, repeat in enumerate(repeats):
            superblock = nn.ModuleList()
            for position in range(repeat):
                stride = self._strides[index] if position == 0 else 1
                block = replace(
                    spec,
                    in_channels=in_channels,
                    channels=self._channels[index],
                    out_channels=self._channels[index],
                    kernel_size=kernel_sizes[index],
                    stride=stride,
                    dilation=dilations[index] if stride == 1 else 1,
                    drop_connect_rate=next(drop_rates),
                )
                superblock.append(make_block(resb_type, block))
                in_channels = self._channels[index]
            superblocks.append(superblock)
        return superblocks

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return (self.out_channels,)

    def _superblock_lengths(self, lengths: torch.Tensor) -> list[torch.Tensor]:
        lengths = self._stem.out_lengths(lengths)
        result = []
        for stride in self._strides:
            lengths = conv_out_length(lengths, 1, stride)
            result.append(lengths)
        return result

    def _parts(self) -> list[list[nn.Module]]:
        return [[self.in_block], *(list(superblock.children()) for superblock in self.blocks)]

    def _encode(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, item_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        x, padding = super()._encode(x, padding, taps, item_lengths)
        if self.head_block is not None:
            x, padding = self.head_block(x, padding)
            taps.record("head_block", x, padding)
        return x, padding


def _stem_block(spec: BlockSpec, in_feats: int, kernel_size: int, stride: int) -> ConvNormAct:
    bias = not (spec.use_norm and spec.norm_before)
    conv = make_conv(1, in_feats, spec.in_channels, kernel_size, stride, bias=bias)
    return ConvNormAct(conv, spec.norm(spec.in_channels), spec.act(), spec.norm_after, "1")


def _head_block(in_channels: int, out_channels: int, act: str | dict[str, Any] | None) -> ConvNormAct:
    return ConvNormAct(make_conv(1, in_channels, out_channels), NoNorm(), make_activation(act), False, "1")
