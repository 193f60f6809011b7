"""The 2-D ConvNeXt encoder: convolutions over frequency and time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch

from hyperion_lite.core.padding import Padding
from hyperion_lite.narchs.conv_encoder import Taps
from hyperion_lite.narchs.convnext_encoder import ConvNextEncoder, ConvNextLayout, EndpointOptions
from hyperion_lite.narchs.convnext_sizes import SIZES_2D, find_size
from hyperion_lite.narchs.net_arch import Shape

_KERNEL_SIZE = 7


class ConvNext2dEncoder(ConvNextEncoder):
    """ConvNeXt V2 over (frequency, time) (Liu et al., 2022, arXiv:2201.03545; Woo et al., 2023, arXiv:2301.00808).

    A strided convolution, then superblocks of ConvNeXt blocks of kernel size 7 with strided convolutions between them, then optionally
    endpoints: outputs of superblocks brought to one scale and averaged or concatenated. Strides hold for both axes. Frames are
    (channels, freq); :meth:`flatten` joins the two with index ``channel * num_freqs + freq``.

    Args:
        in_feats: frequencies, or features, of the input. Files of the original toolkit have it beside the encoder's configuration.
        in_channels: channels of the input; with 1 the input is (batch, in_feats, time) or (batch, 1, in_feats, time).
        in_kernel_size: kernel size of the first convolution; at least its stride is used.
        in_stride: stride of the first convolution.
        short_name: a size with a name (atto, femto, pico, nano, tiny, small, base, large, xlarge, huge): it overrides ``convb_repeats``,
            ``convb_channels`` and ``downb_strides``, and the configuration says the fixed values then.
        convb_repeats: number of blocks in each superblock.
        convb_channels: channels of the superblocks, one value or one for each.
        downb_strides: strides between superblocks, one value or one for each gap. A stride of 1 is a convolution of size 2, which takes
            one frequency and one frame away.
        head_channels: mean over frequency and time, norm and a linear map to this many values; 0 for frames, which is what x-vectors need.
        hid_act: activation, a name or a dict with ``name`` and its arguments.
        head_act: activation of the head, ``None`` for none.
        drop_path_rate: probability of leaving out the branch of a block, growing linearly to this value at the last block.
        norm_layer: layer-norm; ``None`` means the same.
        multilayer: whether to merge endpoints.
        multilayer_concat: concatenate them on channels and mix with a 1x1 convolution; else take their mean.
        endpoint_channels: channels of the merged output; ``None`` takes those of the superblock ``endpoint_scale_layer``.
        endpoint_layers: superblocks to merge, counted from 1; ``None`` for all.
        endpoint_scale_layer: index of the superblock whose resolution the merged output gets.

    Raises:
        ValueError: arguments that do not fit together; says which and why.
    """

    own_config_keys: ClassVar[Collection[str]] = ("in_feats",)
    _ndim = 2

    def __init__(
        self,
        in_feats: int | None = None,
        in_channels: int = 1,
        in_kernel_size: int = 4,
        in_stride: int = 4,
        short_name: str | None = None,
        convb_repeats: int | Sequence[int] = (3, 3, 27, 3),
        convb_channels: int | Sequence[int] = (128, 256, 512, 1024),
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
        if in_feats is None:
            raise ValueError("in_feats is missing: the frequencies of the output follow from those of the input")
        if min(in_feats, in_channels) < 1:
            raise ValueError(f"in_feats and in_channels must be positive, got {in_feats} and {in_channels}")
        self.in_feats = in_feats
        self.in_channels = in_channels
        sizes = {"convb_repeats": convb_repeats, "convb_channels": convb_channels, "downb_strides": downb_strides}
        if short_name is not None:
            sizes = find_size(SIZES_2D, short_name).forced()
            self._update_config(**sizes)
        layout = ConvNextLayout.create(
            in_kernel_size,
            in_stride,
            sizes["convb_repeats"],
            sizes["convb_channels"],
            _KERNEL_SIZE,
            1,
            sizes["downb_strides"],
        )
        endpoints = EndpointOptions(
            multilayer, multilayer_concat, endpoint_channels, endpoint_layers, endpoint_scale_layer
        )
        self._build(layout, endpoints, hid_act, drop_path_rate, norm_layer, head_channels, head_act)
        # every convolution does to frequencies what it does to frames
        self._freqs = int(self.out_lengths(torch.tensor([in_feats], device="cpu"))[0])
        if self._freqs < 1:
            raise ValueError(
                f"in_feats = {in_feats} is too small for the strides of the encoder: no frequency is left, use at least {self.min_length}"
            )

    @property
    def in_channels_of_stem(self) -> int:
        return self.in_channels

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return self.frame_channels, self._freqs

    def _input_shapes(self) -> list[Shape]:
        with_channels: Shape = (None, self.in_channels, self.in_feats, None)
        return [with_channels] if self.in_channels > 1 else [self.in_shape(), with_channels]

    def _encode(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, item_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        return super()._encode(x if x.dim() == 4 else x.unsqueeze(1), padding, taps, item_lengths)
