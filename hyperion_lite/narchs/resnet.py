"""The 2-D residual encoder: convolutions over frequency and time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.layer_blocks.conv import ConvNormAct, make_conv
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.res_block import BlockSpec, FreqPosEnc, ResBlock
from hyperion_lite.layer_blocks.res_blocks import block_kind, make_block
from hyperion_lite.layer_blocks.resample import MaxPool
from hyperion_lite.layers.norm import make_norm
from hyperion_lite.narchs.conv_encoder import ConvEncoder, Taps
from hyperion_lite.narchs.net_arch import Shape
from hyperion_lite.narchs.resnet_endpoints import apply_endpoint, make_endpoint, upsampled_mean
from hyperion_lite.narchs.resnet_types import ResNetType
from hyperion_lite.narchs.resnet_types import resnet_type as find_resnet_type
from hyperion_lite.narchs.weight_init import init_conv_weights

logger = logging.getLogger(__name__)

_NUM_LAYERS = 4
_FIRST_ENDPOINT = 2


@dataclass
class _Growth:
    """State while layers are added: channels, frequencies and time resolution so far, and the running dilation."""

    channels: int
    freqs: int
    scale: int
    dilation: int = 1


class ResNet(ConvEncoder):
    """Residual network over (frequency, time), in the variants of :data:`~hyperion_lite.narchs.resnet_types.RESNET_TYPES`.

    A convolution, an optional max-pool, and four layers of residual blocks of which the last three halve frequency and time.
    Frames are (channels, freq); :meth:`flatten` joins the two with index ``channel * num_freqs + freq``.

    Some types fix ``conv_channels``, ``base_channels`` or ``groups``: these win over the arguments and are what the configuration
    says afterwards.

    Args:
        resnet_type: name of the variant.
        in_channels: channels of the input; with 1 the input is (batch, in_feats, time) or (batch, 1, in_feats, time).
        in_feats: frequencies, or features, of the input.
        conv_channels: channels of the first convolution.
        base_channels: width of the first layer; the others are 2, 4 and 8 times as wide.
        in_kernel_size: kernel size of the first convolution.
        in_stride: its stride on both axes.
        hid_act: activation, a name or a dict with ``name`` and its arguments.
        norm_layer: batch-norm, group-norm, instance-norm, instance-norm-affine or layer-norm; ``None`` means batch-norm.
        norm_before: norm before the activation, else after.
        zero_init_residual: start the last norm of every block at scale zero, so that blocks start as identities.
        dropout_rate: dropout of whole channels after every block.
        groups: convolution groups of the 3x3 convolutions.
        replace_stride_with_dilation: three flags, for layers 2 to 4: dilate instead of halving.
        do_maxpool: max-pool 3x3 with stride 2 after the first convolution.
        in_norm: norm layer on the input.
        se_r: reduction of squeeze-excitation.
        res2net_scale: number of Res2Net groups.
        res2net_width_factor: width of the Res2Net groups together, relative to the channels.
        freq_pos_enc: add a trained vector over frequencies to the input of every block. Types without squeeze-excitation have none.

    Raises:
        ValueError: unknown type, or arguments that do not fit together; says which and why.
    """

    def __init__(
        self,
        resnet_type: str,
        in_channels: int,
        in_feats: int,
        conv_channels: int = 64,
        base_channels: int = 64,
        in_kernel_size: int = 7,
        in_stride: int = 1,
        hid_act: str | dict[str, Any] | None = "relu",
        norm_layer: str | None = None,
        norm_before: bool = True,
        zero_init_residual: bool = False,
        dropout_rate: float = 0.0,
        groups: int = 1,
        replace_stride_with_dilation: Sequence[bool] | None = None,
        do_maxpool: bool = False,
        in_norm: bool = False,
        se_r: int = 16,
        res2net_scale: int = 4,
        res2net_width_factor: float = 1.0,
        freq_pos_enc: bool = False,
    ) -> None:
        super().__init__()
        variant = find_resnet_type(resnet_type)
        conv_channels, base_channels, groups = self._force(variant, conv_channels, base_channels, groups)
        if min(in_channels, in_feats, conv_channels, base_channels, in_kernel_size, in_stride, groups) < 1:
            raise ValueError("channels, in_feats, in_kernel_size, in_stride and groups must be positive")
        if freq_pos_enc and variant.se_type is None:
            logger.warning("freq_pos_enc has no effect: %s has no squeeze-excitation", resnet_type)
        self.in_channels = in_channels
        self.in_feats = in_feats
        self._stem = (in_kernel_size, in_stride)
        spec = BlockSpec(
            2,
            in_channels=conv_channels,
            channels=conv_channels,
            out_channels=conv_channels,
            groups=groups,
            hid_act=hid_act,
            norm_layer=norm_layer,
            norm_groups=max(min(base_channels // 2, 32), groups),
            norm_before=norm_before,
            dropout_rate=dropout_rate,
            se_type=variant.se_type,
            se_r=se_r,
            scale=res2net_scale,
            width_factor=res2net_width_factor,
            freq_pos_enc=freq_pos_enc and variant.se_type is not None,
        )
        self.in_bn = make_norm(norm_layer, in_channels, 2) if in_norm else None
        self.in_block = _stem_block(spec, in_channels, in_kernel_size, in_stride)
        self.maxpool = MaxPool(2, 3, 2) if do_maxpool else None

        growth = _Growth(conv_channels, self._stem_freqs(), in_stride * (2 if do_maxpool else 1))
        widths = variant.widths or tuple(base_channels * 2**i for i in range(_NUM_LAYERS))
        self._strides = self._layer_strides(replace_stride_with_dilation)
        self._layer_shapes: list[tuple[int, int, int]] = []
        for index in range(_NUM_LAYERS):
            layer = self._make_layer(variant, spec, index, widths[index], growth)
            self.add_module(f"layer{index + 1}", layer)
            self._layer_shapes.append((growth.channels, growth.freqs, growth.scale))
        self.alignment = growth.scale
        self._endpoint_channels = variant.endpoint_channels
        if variant.endpoint_channels is not None:
            for number in range(_FIRST_ENDPOINT, _NUM_LAYERS + 1):
                channels = self._layer_shapes[number - 1][0]
                self.add_module(f"endpoint{number}", make_endpoint(spec, channels, variant.endpoint_channels))
        self.layer_names = ("in_block", *(f"layer{i}" for i in range(1, _NUM_LAYERS + 1)))
        self.stage_names = self.layer_names
        self._init_weights(zero_init_residual)

    def _force(self, variant: ResNetType, conv_channels: int, base_channels: int, groups: int) -> tuple[int, int, int]:
        values = {"conv_channels": conv_channels, "base_channels": base_channels, "groups": groups, **variant.forced}
        if variant.forced:
            self._update_config(**variant.forced)
        return values["conv_channels"], values["base_channels"], values["groups"]

    @staticmethod
    def _layer_strides(replace_stride_with_dilation: Sequence[bool] | None) -> list[tuple[int, bool]]:
        """(stride, whether dilation grows) of each layer."""
        flags = [False] * 3 if replace_stride_with_dilation is None else [bool(f) for f in replace_stride_with_dilation]
        if len(flags) != _NUM_LAYERS - 1:
            raise ValueError(
                f"replace_stride_with_dilation needs 3 flags, one for each of layers 2 to 4, got {replace_stride_with_dilation}"
            )
        return [(1, False), *((1, True) if flag else (2, False) for flag in flags)]

    def _stem_freqs(self) -> int:
        kernel_size, stride = self._stem
        freqs = conv_out_length(self.in_feats, kernel_size, stride, 1, (kernel_size - 1) // 2)
        freqs = freqs if self.maxpool is None else conv_out_length(freqs, 3, 2, 1, 1)
        if freqs < 1:
            raise ValueError(f"in_feats = {self.in_feats} is too small for a first convolution of size {kernel_size}")
        return freqs

    def _make_layer(
        self, variant: ResNetType, spec: BlockSpec, index: int, width: int, growth: _Growth
    ) -> nn.ModuleList:
        stride, dilate = self._strides[index]
        out_channels = width * (4 if block_kind(variant.block).bottleneck else 1)
        layer = nn.ModuleList()
        dilation = growth.dilation
        if dilate:
            growth.dilation *= 2
        for position in range(variant.depths[index]):
            block_stride = stride if position == 0 else 1
            out_freqs = conv_out_length(growth.freqs, 1, block_stride)
            block = replace(
                spec,
                in_channels=growth.channels,
                channels=width,
                out_channels=out_channels,
                stride=block_stride,
                dilation=dilation if position == 0 else growth.dilation,
                in_freqs=growth.freqs,
                out_freqs=out_freqs,
            )
            layer.append(make_block(variant.block, block))
            growth.channels, growth.freqs = out_channels, out_freqs
        growth.scale *= stride
        return layer

    def _init_weights(self, zero_init_residual: bool) -> None:
        init_conv_weights(self)
        for module in self.modules():
            if isinstance(module, FreqPosEnc):
                nn.init.zeros_(module.pos_enc)
            elif zero_init_residual and isinstance(module, ResBlock):
                weight = getattr(module.last_norm, "weight", None)
                if weight is None:
                    raise ValueError("zero_init_residual needs norm layers with a scale; instance-norm has none")
                nn.init.zeros_(weight)

    def _input_shapes(self) -> list[Shape]:
        with_channels: Shape = (None, self.in_channels, self.in_feats, None)
        return [with_channels] if self.in_channels > 1 else [self.in_shape(), with_channels]

    def _layer(self, number: int) -> nn.Module:
        return self.get_submodule(f"layer{number}")

    @property
    def frame_shape(self) -> tuple[int, ...]:
        channels, freqs, _ = self._layer_shapes[-1]
        if self._endpoint_channels is None:
            return channels, freqs
        return self._endpoint_channels, self._layer_shapes[_FIRST_ENDPOINT - 1][1]

    def _out_scale(self) -> int:
        return self._layer_shapes[-1 if self._endpoint_channels is None else _FIRST_ENDPOINT - 1][2]

    def _upsampling(self) -> list[int]:
        return [scale // self._out_scale() for _, _, scale in self._layer_shapes[_FIRST_ENDPOINT - 1 :]]

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        kernel_size, stride = self._stem
        lengths = conv_out_length(lengths, kernel_size, stride, 1, (kernel_size - 1) // 2)
        if self.maxpool is not None:
            lengths = conv_out_length(lengths, 3, 2, 1, 1)
        last = _NUM_LAYERS if self._endpoint_channels is None else _FIRST_ENDPOINT
        for layer_stride, _ in self._strides[:last]:
            lengths = conv_out_length(lengths, 1, layer_stride)
        return lengths

    @cached_property
    def receptive_field(self) -> ReceptiveField:  # type: ignore[override]
        field = self.in_block.receptive_field
        if self.maxpool is not None:
            field = field.then(self.maxpool.receptive_field)
        merged: ReceptiveField | None = None
        for number in range(1, _NUM_LAYERS + 1):
            for block in self._layer(number).children():
                field = field.then(ReceptiveField.of(block))
            if self._endpoint_channels is not None and number >= _FIRST_ENDPOINT:
                # upsampled output t reads position t // factor
                scale = self._out_scale()
                endpoint = ReceptiveField(field.left + field.stride - scale, field.right, scale)
                merged = endpoint if merged is None else merged.beside(endpoint)
        return merged or field

    def _encode(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, item_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        if x.dim() == 3:
            x = x.unsqueeze(1)
        if self.in_bn is not None:
            x = self.in_bn(x, padding)
        x, padding = self.in_block(x, padding)
        if self.maxpool is not None:
            x, padding = self.maxpool(x, padding)
        taps.record("in_block", x, padding)
        endpoints: list[torch.Tensor] = []
        out_padding = padding
        for number in range(1, _NUM_LAYERS + 1):
            for block in self._layer(number).children():
                x, padding = block(x, padding)
            taps.record(f"layer{number}", x, padding)
            if self._endpoint_channels is not None and number >= _FIRST_ENDPOINT:
                endpoints.append(apply_endpoint(self.get_submodule(f"endpoint{number}"), x, padding))
                out_padding = padding if number == _FIRST_ENDPOINT else out_padding
        if not endpoints:
            return x, padding
        # rounding up only makes deeper outputs longer: the shortest of an item is always the first
        return upsampled_mean(endpoints, self._upsampling()), out_padding


def _stem_block(spec: BlockSpec, in_channels: int, kernel_size: int, stride: int) -> ConvNormAct:
    conv = make_conv(2, in_channels, spec.in_channels, kernel_size, stride, bias=spec.conv_bias)
    return ConvNormAct(conv, spec.norm(spec.in_channels), spec.act(), spec.norm_after)
