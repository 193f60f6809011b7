"""What turns features into the frames of a Conformer: subsampling convolutions or a linear map, then the encoding of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.layer_blocks.conv import apply_conv
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.layers.pos_encoding import ConvPosEncoder, PosEncoder

IN_LAYER_TYPES = ("conv2d-sub", "conv1d-sub", "linear", "embed", "None")
_STRIDES: Mapping[int, tuple[int, int]] = {1: (1, 1), 2: (2, 1), 4: (2, 2)}
_KERNEL_SIZE = 3

Frames = tuple[torch.Tensor, Padding | None]


def frame_activation(spec: str | Mapping[str, Any] | None) -> nn.Module:
    """:func:`make_activation` for (batch, time, features): the softmax kinds are over features, never over time."""
    options = {"name": spec} if isinstance(spec, str) else dict(spec or {})
    if options.get("name") in ("softmax", "softmin", "logsoftmax"):
        return make_activation({"dim": -1, **options})
    return make_activation(spec)


def pos_field(encoder: PosEncoder) -> ReceptiveField:
    """What the encoding of a position sees."""
    return ReceptiveField(*encoder.context) if isinstance(encoder, ConvPosEncoder) else ReceptiveField()


class Subsampling(nn.Module):
    """Two convolutions of size 3 with activations, a linear map, and the encoding of positions.

    Tensors: ``conv.0``, ``conv.2``, ``out.0``, and ``out.1`` for what the encoding of positions has.

    Args:
        ndim: 2 for an image of features and time (no zeros beyond the first and last feature), 1 for features as channels.
        in_feats: features per input frame.
        d_model: features per output frame.
        stride: input frames per output frame, 1, 2 or 4.
        act: activation.
        pos_encoder: encoding of positions.

    Raises:
        ValueError: another stride, or features that the convolutions use up.
    """

    def __init__(
        self,
        ndim: int,
        in_feats: int,
        d_model: int,
        stride: int,
        act: str | dict[str, Any] | None,
        pos_encoder: PosEncoder,
    ) -> None:
        super().__init__()
        if stride not in _STRIDES:
            raise ValueError(f"in_stride must be 1, 2 or 4, got {stride}")
        strides = _STRIDES[stride]
        self.ndim = ndim
        out_feats = d_model
        if ndim == 2:
            freqs = in_feats
            for step in strides:
                freqs = conv_out_length(freqs, _KERNEL_SIZE, step)
            if freqs < 1:
                raise ValueError(f"in_feats = {in_feats} are too few for conv2d-sub with in_stride {stride}")
            out_feats = d_model * freqs
        channels = (1 if ndim == 2 else in_feats, d_model, d_model)
        convs: list[nn.Module] = []
        for index, step in enumerate(strides):
            convs += [_conv(ndim, channels[index], channels[index + 1], step), make_activation(act)]
        self.conv = nn.Sequential(*convs)
        self.out = nn.Sequential(nn.Linear(out_feats, d_model), pos_encoder)

    @property
    def pos_encoder(self) -> PosEncoder:
        """The encoding of positions."""
        found = self.out[1]
        assert isinstance(found, PosEncoder)
        return found

    @property
    def receptive_field(self) -> ReceptiveField:
        return ReceptiveField.of(self.conv[0]).then(ReceptiveField.of(self.conv[2])).then(pos_field(self.pos_encoder))

    @property
    def time_convs(self) -> list[tuple[int, int, int]]:
        """Kernel size, stride and padding along time of each convolution."""
        return [(_KERNEL_SIZE, conv.stride[-1], 1) for conv in self.conv if isinstance(conv, (nn.Conv1d, nn.Conv2d))]

    def forward(self, x: torch.Tensor, padding: Padding | None = None, start: int = 0) -> Frames:
        """(batch, in_feats, time), the first frame of the output at position ``start`` -> (batch, time', d_model), padding."""
        if self.ndim == 2:
            x = x.unsqueeze(1)
        for index in (0, 2):
            x, padding = apply_conv(self.conv[index], x, padding)
            x = self.conv[index + 1](x)
        # index channel * freqs + freq
        x = x.flatten(1, -2) if self.ndim == 2 else x
        return self.pos_encoder(self.out[0](x.transpose(1, 2)), padding, start), padding


class FrameByFrame(nn.Sequential):
    """Layers that treat every frame by itself, then the encoding of positions.

    Args:
        layers: for (batch, time, features).
        pos_encoder: encoding of positions.
        tokens: whether the input is (batch, time) integers.
    """

    def __init__(self, layers: Sequence[nn.Module], pos_encoder: PosEncoder, tokens: bool = False) -> None:
        super().__init__(*layers, pos_encoder)
        self.tokens = tokens
        self.time_convs: list[tuple[int, int, int]] = []

    @property
    def receptive_field(self) -> ReceptiveField:
        encoder = self[-1]
        assert isinstance(encoder, PosEncoder)
        return pos_field(encoder)

    def forward(self, x: torch.Tensor, padding: Padding | None = None, start: int = 0) -> Frames:  # type: ignore[override]
        """(batch, in_feats, time) or (batch, time) tokens -> (batch, time, d_model), padding."""
        x = x.long() if self.tokens else x.transpose(1, 2)
        *layers, pos_encoder = self
        for layer in layers:
            x = layer(x)
        return pos_encoder(x, padding, start), padding


def make_in_layer(
    kind: str | None,
    in_feats: int,
    d_model: int,
    stride: int,
    act: str | dict[str, Any] | None,
    dropout_rate: float,
    padding_idx: int,
    pos_encoder: PosEncoder,
) -> Subsampling | FrameByFrame:
    """The first layer.

    Args:
        kind: one of :data:`IN_LAYER_TYPES` or ``None``.
        in_feats: features per input frame; size of the vocabulary for ``embed``.
        d_model: features per output frame.
        stride: of the subsampling kinds.
        act: activation; ``embed`` and ``None`` have none.
        dropout_rate: of ``linear``, before its activation.
        padding_idx: of ``embed``: the token whose vector stays as it is.
        pos_encoder: encoding of positions.

    Raises:
        ValueError: sizes that do not fit together.
    """
    if kind in ("conv2d-sub", "conv1d-sub"):
        return Subsampling(2 if kind == "conv2d-sub" else 1, in_feats, d_model, stride, act, pos_encoder)
    if kind == "linear":
        layers = [nn.Linear(in_feats, d_model), nn.LayerNorm(d_model), nn.Dropout(dropout_rate), frame_activation(act)]
        return FrameByFrame(layers, pos_encoder)
    if kind == "embed":
        if not -in_feats <= padding_idx < in_feats:
            raise ValueError(f"padding_idx = {padding_idx} is none of the in_feats = {in_feats} tokens")
        return FrameByFrame([nn.Embedding(in_feats, d_model, padding_idx)], pos_encoder, tokens=True)
    if in_feats != d_model:
        raise ValueError(f"without an input layer, in_feats = {in_feats} has to be d_model = {d_model}")
    return FrameByFrame([], pos_encoder)


def _conv(ndim: int, in_channels: int, out_channels: int, stride: int) -> nn.Conv1d | nn.Conv2d:
    if ndim == 1:
        return nn.Conv1d(in_channels, out_channels, _KERNEL_SIZE, stride, padding=1)
    return nn.Conv2d(in_channels, out_channels, _KERNEL_SIZE, stride, padding=(0, 1))
