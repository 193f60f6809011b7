"""Time-delay networks: dilated convolutions along time, the encoders of the first x-vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conv import ConvNormAct, NoNorm, make_conv
from hyperion_lite.layer_blocks.drop_connect import check_rate
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.layers.norm import make_norm
from hyperion_lite.narchs.conv_encoder import ConvEncoder, Taps
from hyperion_lite.narchs.resnet1d_layout import per_superblock
from hyperion_lite.narchs.weight_init import init_conv_weights


class TDNNEncoder(ConvEncoder):
    """Time-delay network, by default that of the x-vectors of Snyder et al. (2018, doi:10.1109/ICASSP.2018.8461375, table 1).

    A chain of dilated convolutions, each followed by activation and norm. The default layers see the frames t-2 ... t+2 of the input,
    then {t-2, t, t+2}, {t-3, t, t+3}, {t} and {t} of the layer before, 15 input frames altogether. The number of frames stays: beyond the
    ends of an item there are zeros. Frames are (channels,). Tensors: ``blocks.<i>.conv``, ``blocks.<i>.bn``.

    Args:
        in_feats: features per input frame.
        channels: output channels of the layers; their number is the number of layers.
        kernel_sizes: kernel sizes, one value or one for each layer. 1 makes a layer on single frames.
        dilations: dilations, one value or one for each layer. Every layer has to see as far back as ahead: kernel sizes are odd, or
            dilations even.
        hid_act: activation, a name or a dict with ``name`` and its arguments.
        norm_layer: batch-norm, group-norm, instance-norm, instance-norm-affine or layer-norm; ``None`` means batch-norm.
        use_norm: whether layers have norms.
        norm_before: norm before the activation, else after, as in Kaldi.
        dropout_rate: dropout of whole channels after every layer.

    Raises:
        ValueError: arguments that do not fit together; says which and why.
    """

    alignment = 1

    def __init__(
        self,
        in_feats: int,
        channels: Sequence[int] = (512, 512, 512, 512, 1500),
        kernel_sizes: int | Sequence[int] = (5, 3, 3, 1, 1),
        dilations: int | Sequence[int] = (1, 2, 3, 1, 1),
        hid_act: str | dict[str, Any] | None = "relu",
        norm_layer: str | None = None,
        use_norm: bool = True,
        norm_before: bool = False,
        dropout_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_feats = in_feats
        widths = [int(width) for width in channels]
        if in_feats < 1 or not widths or min(widths) < 1:
            raise ValueError(
                f"in_feats must be positive and channels hold a positive number for each layer, got {in_feats}, {channels}"
            )
        layers = f"layers of channels = {list(channels)}"
        kernels = per_superblock(kernel_sizes, len(widths), "kernel_sizes", layers)
        spreads = per_superblock(dilations, len(widths), "dilations", layers)
        self.blocks = nn.ModuleList()
        for into, out, kernel, dilation in zip([in_feats, *widths], widths, kernels, spreads, strict=False):
            if dilation * (kernel - 1) % 2:
                raise ValueError(
                    f"kernel size {kernel} with dilation {dilation} sees further on one side than on the other: use odd kernel sizes"
                )
            conv = make_conv(1, into, out, kernel, dilation=dilation, bias=not (use_norm and norm_before))
            # as many groups as the original toolkit gives its encoders of that width
            norm = make_norm(norm_layer, out, 1, max(min(min(widths) // 2, 32), 1)) if use_norm else NoNorm()
            self.blocks.append(ConvNormAct(conv, norm, make_activation(hid_act), use_norm and not norm_before))
        self.dropout = nn.Dropout1d(check_rate(dropout_rate, "dropout_rate"))
        self.out_channels = widths[-1]
        self.stage_names = self.layer_names = tuple(f"blocks_{i}" for i in range(len(widths)))
        init_conv_weights(self)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return (self.out_channels,)

    @cached_property
    def receptive_field(self) -> ReceptiveField:  # type: ignore[override]
        field = ReceptiveField()
        for block in self.blocks:
            field = field.then(ReceptiveField.of(block))
        return field

    def _encode(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, item_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        for name, block in zip(self.stage_names, self.blocks, strict=True):
            x, padding = block(x, padding)
            x = self.dropout(x)
            taps.record(name, x, padding)
        return x, padding
