"""What the 1-D and the 2-D ConvNeXt encoder share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.layer_blocks.conv import Dims
from hyperion_lite.layer_blocks.convnext_block import NORM_EPS, ConvNextBlock, ConvNextDownsample, ConvNextEndpoint
from hyperion_lite.layer_blocks.drop_connect import check_rate, linear_rates
from hyperion_lite.layer_blocks.receptive_field import time_settings
from hyperion_lite.layer_blocks.resample import ConvSequence
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.narchs.conv_encoder import StageOutputs
from hyperion_lite.narchs.multilayer_encoder import MultilayerEncoder
from hyperion_lite.narchs.net_arch import Shape
from hyperion_lite.narchs.resnet1d_layout import EndpointLayout, per_superblock
from hyperion_lite.narchs.weight_init import init_conv_weights_small

_NORMS = ("layer-norm",)


@dataclass(frozen=True)
class ConvNextLayout:
    """Sizes of an encoder, one value for each superblock, and one stride for each gap between two of them."""

    in_kernel_size: int
    in_stride: int
    repeats: list[int]
    channels: list[int]
    kernel_sizes: list[int]
    dilations: list[int]
    strides: list[int]

    @classmethod
    def create(
        cls,
        in_kernel_size: int,
        in_stride: int,
        repeats: int | Sequence[int],
        channels: int | Sequence[int],
        kernel_sizes: int | Sequence[int],
        dilations: int | Sequence[int],
        strides: int | Sequence[int],
    ) -> ConvNextLayout:
        """Check the arguments of the constructors of the encoders.

        Raises:
            ValueError: wrong number of values, or values below 1.
        """
        if min(in_kernel_size, in_stride) < 1:
            raise ValueError(f"in_kernel_size and in_stride must be positive, got {in_kernel_size} and {in_stride}")
        depths = [repeats] if isinstance(repeats, int) else [int(n) for n in repeats]
        if not depths or min(depths) < 1:
            raise ValueError(f"convb_repeats must hold at least one positive number, got {repeats}")
        values = partial(per_superblock, count=len(depths), what="superblocks of convb_repeats")
        return cls(
            in_kernel_size,
            in_stride,
            depths,
            values(channels, name="convb_channels"),
            values(kernel_sizes, name="convb_kernel_sizes"),
            values(dilations, name="convb_dilations"),
            per_superblock(strides, len(depths) - 1, "downb_strides", "gaps between the superblocks of convb_repeats"),
        )

    @property
    def scales(self) -> list[int]:
        """Input frames per output frame of each superblock."""
        scales = [self.in_stride]
        for stride in self.strides:
            scales.append(scales[-1] * stride)
        return scales


@dataclass(frozen=True)
class EndpointOptions:
    """The arguments of the constructors that concern endpoints, see there."""

    multilayer: bool
    concat: bool
    channels: int | None
    layers: Sequence[int] | None
    scale_layer: int


class ConvNextEncoder(MultilayerEncoder):
    """Base of the ConvNeXt encoders: a subclass has the constructor arguments and calls :meth:`_build` with them.

    Tensors: ``downsample_blocks.<i>`` (the first convolution, then the gaps), ``conv_blocks.<i>.<j>``, ``endpoint_blocks.<n>``,
    ``concat_endpoint_block``, ``head_norm``, ``head``.
    """

    _ndim: Dims = 1

    def _build(
        self,
        layout: ConvNextLayout,
        endpoints: EndpointOptions,
        hid_act: str | dict[str, Any] | None,
        drop_path_rate: float,
        norm_layer: str | None,
        head_channels: int,
        head_act: str | dict[str, Any] | None,
    ) -> None:
        if norm_layer not in (None, *_NORMS):
            raise ValueError(f"norm_layer {norm_layer!r} does not exist in ConvNeXt encoders, use 'layer-norm'")
        if norm_layer is None:
            self._update_config(norm_layer=_NORMS[0])
        if head_channels < 0:
            raise ValueError(f"head_channels must not be negative, got {head_channels}")
        check_rate(drop_path_rate, "drop_path_rate")
        count = len(layout.repeats)
        self.alignment = layout.scales[-1]
        self.downsample_blocks = self._make_downsampling(layout)
        self.conv_blocks = self._make_blocks(layout, hid_act, drop_path_rate)
        merged, channels = None, layout.channels[-1]
        if endpoints.multilayer:
            merged = EndpointLayout.create(endpoints.layers, endpoints.scale_layer, layout.scales)
            channels = endpoints.channels or layout.channels[merged.reference]
        self._set_endpoints(merged, layout.channels, channels, endpoints.concat, partial(ConvNextEndpoint, self._ndim))
        self.frame_channels = channels
        self.head_channels = head_channels
        if head_channels:
            self.head_norm = nn.LayerNorm(channels, eps=NORM_EPS)
            self.head = nn.Linear(channels, head_channels)
            self.head_act = make_activation(head_act)
        self.layer_names = ("downsample_blocks_0", *(f"conv_blocks_{i}" for i in range(count)))
        self.stage_names = (*self.layer_names, *self._endpoint_stages())
        init_conv_weights_small(self)

    def _make_downsampling(self, layout: ConvNextLayout) -> nn.ModuleList:
        kernel_size = max(layout.in_kernel_size, layout.in_stride)
        first = ConvNextDownsample(
            self._ndim, self.in_channels_of_stem, layout.channels[0], kernel_size, layout.in_stride, norm_first=False
        )
        blocks: list[nn.Module] = [first]
        for index, stride in enumerate(layout.strides):
            into, out = layout.channels[index : index + 2]
            if self._ndim == 1 and stride == 1 and into == out:
                # nothing to change: files have no tensors here
                blocks.append(ConvSequence())
            else:
                blocks.append(ConvNextDownsample(self._ndim, into, out, max(2, stride), stride))
        return nn.ModuleList(blocks)

    def _make_blocks(
        self, layout: ConvNextLayout, hid_act: str | dict[str, Any] | None, drop_path_rate: float
    ) -> nn.ModuleList:
        rates = linear_rates(drop_path_rate, sum(layout.repeats))
        superblocks = nn.ModuleList()
        for repeat, channels, kernel_size, dilation in zip(
            layout.repeats, layout.channels, layout.kernel_sizes, layout.dilations, strict=True
        ):
            superblock = nn.ModuleList()
            for _ in range(repeat):
                superblock.append(ConvNextBlock(self._ndim, channels, kernel_size, dilation, hid_act, next(rates)))
            superblocks.append(superblock)
        return superblocks

    @property
    def in_channels_of_stem(self) -> int:
        """Input channels of the first convolution."""
        raise NotImplementedError

    def _parts(self) -> list[list[nn.Module]]:
        first, *gaps = self.downsample_blocks
        before = [[], *([gap] for gap in gaps)]
        blocks = [list(superblock.children()) for superblock in self.conv_blocks]
        return [[first], *(gap + parts for gap, parts in zip(before, blocks, strict=True))]

    def encoder_layers(self) -> list[nn.Module]:
        """Blocks, and the convolutions between superblocks, from input to output."""
        return [part for parts in self._parts()[1:] for part in parts if any(True for _ in part.parameters())]

    def _superblock_lengths(self, lengths: torch.Tensor) -> list[torch.Tensor]:
        result = []
        for block in self.downsample_blocks:
            if isinstance(block, ConvNextDownsample):
                lengths = conv_out_length(lengths, *time_settings(block.conv))
            result.append(lengths)
        return result

    @property
    def _ragged(self) -> bool:
        # the convolutions of gaps and of endpoints round differently, and one of size 2 without a stride takes a frame away
        return self._endpoints is not None and len(self._endpoints.superblocks) > 1

    def out_shape(self, in_shape: Shape | None = None) -> Shape:
        """As in the base class; (batch, head_channels) with a head."""
        shape = super().out_shape(in_shape)
        return (shape[0], self.head_channels) if self.head_channels else shape

    def forward_hid_feats(
        self, x: torch.Tensor, x_lengths: torch.Tensor | None = None, layers: Sequence[int | str] | None = None
    ) -> StageOutputs:
        """As in the base class. With a head the output is one vector (batch, head_channels) an item, and there are no lengths."""
        outputs = super().forward_hid_feats(x, x_lengths, layers)
        if self.head_channels:
            outputs.output = self._apply_head(outputs.output, outputs.output_lengths)
            outputs.output_lengths = None
        return outputs

    def forward_chunked(
        self, x: torch.Tensor, x_lengths: torch.Tensor | None = None, chunk_length: int = 0, detach: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As in the base class, for encoders without a head.

        Raises:
            ValueError: as in the base class; the encoder has a head, whose mean is over the whole item.
        """
        if self.head_channels and chunk_length > 0:
            raise ValueError("an encoder with head_channels gives one vector an item, which has no chunks")
        return super().forward_chunked(x, x_lengths, chunk_length, detach)

    def _apply_head(self, h: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        padding = Padding.from_lengths(lengths, h.size(0), h.size(-1))
        # padded positions are zero: they add nothing to the sum
        total = h.flatten(2).sum(dim=-1, dtype=torch.promote_types(h.dtype, torch.float32))
        frames = h.size(-1) if padding is None else padding.lengths[:, None]
        mean = total / (frames * (h.size(2) if h.dim() > 3 else 1))
        return self.head_act(self.head(self.head_norm(mean.to(h.dtype))))
