"""The 1-D ConvNeXt encoder: convolutions along time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyperion_lite.narchs.convnext_encoder import ConvNextEncoder, ConvNextLayout, EndpointOptions
from hyperion_lite.narchs.convnext_sizes import SIZES_1D, find_size


class ConvNext1dEncoder(ConvNextEncoder):
    """ConvNeXt V2 over feature sequences (Liu et al., 2022, arXiv:2201.03545; Woo et al., 2023, arXiv:2301.00808).

    A strided convolution, then superblocks of ConvNeXt blocks with strided convolutions between them, then optionally endpoints: outputs
    of superblocks brought to one scale and averaged or concatenated. Frames are (channels,).

    Args:
        in_feats: features per input frame.
        in_kernel_size: kernel size of the first convolution; at least its stride is used.
        in_stride: stride of the first convolution.
        short_name: a size with a name (atto, femto, pico, pico2 to pico7, nano, tiny, small, base, large, huge): it overrides
            ``convb_repeats``, ``convb_channels`` and ``downb_strides``, and the configuration says the fixed values then.
        convb_repeats: number of blocks in each superblock.
        convb_channels: channels of the superblocks, one value or one for each.
        convb_kernel_sizes: odd kernel sizes of the depth-wise convolutions, one value or one for each superblock.
        convb_dilations: their dilations, one value or one for each superblock.
        downb_strides: strides between superblocks, one value or one for each gap. A stride of 1 between superblocks of the same width is
            no convolution; between others it is one of size 2, which takes one frame away.
        head_channels: mean over time, norm and a linear map to this many values; 0 for frames, which is what x-vectors need.
        hid_act: activation, a name or a dict with ``name`` and its arguments.
        head_act: activation of the head, ``None`` for none.
        drop_path_rate: probability of leaving out the branch of a block, growing linearly to this value at the last block.
        norm_layer: layer-norm; ``None`` means the same.
        multilayer: whether to merge endpoints.
        multilayer_concat: concatenate them on channels and mix with a 1x1 convolution; else take their mean.
        endpoint_channels: channels of the merged output; ``None`` takes those of the superblock ``endpoint_scale_layer``.
        endpoint_layers: superblocks to merge, counted from 1; ``None`` for all.
        endpoint_scale_layer: index of the superblock whose time resolution the merged output gets.

    Raises:
        ValueError: arguments that do not fit together; says which and why.
    """

    _ndim = 1

    def __init__(
        self,
        in_feats: int,
        in_kernel_size: int = 4,
        in_stride: int = 4,
        short_name: str | None = None,
        convb_repeats: int | Sequence[int] = (3, 3, 27, 3),
        convb_channels: int | Sequence[int] = (384, 512, 768, 1024),
        convb_kernel_sizes: int | Sequence[int] = (7,),
        convb_dilations: int | Sequence[int] = (1,),
        downb_strides: int | Sequence[int] = (2,),
        head_channels: int = 0,
        hid_act: str | dict[str, Any] | None = "gelu",
        head_act: str | dict[str, Any] | None = None,
        drop_path_rate: float = 0.0,
        norm_layer: str | None = "layer-norm",
        multilayer: bool = False,
        multilayer_concat: bool = False,
        endpoint_channels: int | None = None,
        endpoint_layers: Sequence[int] | None = None,
        endpoint_scale_layer: int = -1,
    ) -> None:
        super().__init__()
        if in_feats < 1:
            raise ValueError(f"in_feats must be positive, got {in_feats}")
        self.in_feats = in_feats
        sizes = {"convb_repeats": convb_repeats, "convb_channels": convb_channels, "downb_strides": downb_strides}
        if short_name is not None:
            sizes = find_size(SIZES_1D, short_name).forced()
            self._update_config(**sizes)
        layout = ConvNextLayout.create(
            in_kernel_size,
            in_stride,
            sizes["convb_repeats"],
            sizes["convb_channels"],
            convb_kernel_sizes,
            convb_dilations,
            sizes["downb_strides"],
        )
        endpoints = EndpointOptions(
            multilayer, multilayer_concat, endpoint_channels, endpoint_layers, endpoint_scale_layer
        )
        self._build(layout, endpoints, hid_act, drop_path_rate, norm_layer, head_channels, head_act)

    @property
    def in_channels_of_stem(self) -> int:
        return self.in_feats

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return (self.frame_channels,)
