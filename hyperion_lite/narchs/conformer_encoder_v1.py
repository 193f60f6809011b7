"""The Conformer encoder, with full, local or block attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.layer_blocks.conformer_block import ConformerBlock, ConformerBlockSpec
from hyperion_lite.layer_blocks.conformer_in_layer import IN_LAYER_TYPES, make_in_layer
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layers.attention_pattern import AttentionPlan, FramePositions, make_pattern
from hyperion_lite.layers.pos_encoding import POS_ENC_TYPES, make_pos_encoder
from hyperion_lite.narchs.conv_encoder import ConvEncoder, Taps
from hyperion_lite.narchs.net_arch import Shape
from hyperion_lite.narchs.weight_init import init_conv_weights

_NONE = (None, "None")


class ConformerEncoderV1(ConvEncoder):
    """Conformer (Gulati et al., 2020) over feature sequences: an input layer that may subsample, then blocks of attention and convolution.

    Args:
        in_feats: features per input frame; size of the vocabulary for ``in_layer_type`` embed.
        d_model: features per frame inside, and of the output.
        num_heads: attention heads; a divisor of ``d_model``.
        num_blocks: number of blocks.
        att_type: scaled-dot-prod-v1 (all frames), local-scaled-dot-prod-v1 (overlapping blocks) or block-scaled-dot-prod-v1 (blocks).
        att_context: size of the blocks of local and block attention, in frames after the input layer.
        conv_repeats: convolution parts in each block, one value or one for each block.
        conv_kernel_sizes: their odd kernel sizes, one value or one for each block.
        conv_strides: strides of the first convolution part of each block, one value or one for each block.
        ff_type: feed-forward parts: linear, conv1dx2 or conv1d-linear.
        d_ff: their hidden features.
        ff_kernel_size: odd kernel size of the convolution kinds.
        dropout_rate: dropout of the parts of a block.
        pos_dropout_rate: dropout of encoded positions.
        att_dropout_rate: dropout of attention weights.
        in_layer_type: conv2d-sub, conv1d-sub, linear, embed, or null for none.
        in_stride: subsampling of the input layer, 1, 2 or 4.
        pos_enc_type: rel (relative attention), abs, conv, or no.
        causal_pos_enc: relative attention has no position part towards later frames.
        pos_kernel_size: kernel size of the conv encoding.
        pos_num_groups: its groups.
        hid_act: activation, a name or a dict with ``name`` and its arguments.
        conv_norm_layer: norm of the convolution parts, null for batch-norm.
        se_r: reduction of squeeze-excitation in the convolution parts; none if null or not above 1.
        ff_macaron: half a feed-forward part at both ends of a block.
        red_lnorms: layer norm at the end of every block; else one at the end of the encoder.
        concat_after: mix input and output of the attention by a linear map.
        padding_idx: of embed: the token whose vector is not trained; negative ones count from the end.
        in_time_dim: 2 or -1, the time axis of the input.
        out_time_dim: 2 or -1, the time axis of the output.

    Raises:
        ValueError: arguments that do not fit together; says which and why.
    """

    def __init__(
        self,
        in_feats: int,
        d_model: int = 256,
        num_heads: int = 4,
        num_blocks: int = 6,
        att_type: str = "scaled-dot-prod-v1",
        att_context: int = 25,
        conv_repeats: int | Sequence[int] = 1,
        conv_kernel_sizes: int | Sequence[int] = 31,
        conv_strides: int | Sequence[int] = 1,
        ff_type: str = "linear",
        d_ff: int = 2048,
        ff_kernel_size: int = 1,
        dropout_rate: float = 0.1,
        pos_dropout_rate: float = 0.1,
        att_dropout_rate: float = 0.0,
        in_layer_type: str | None = "conv2d-sub",
        in_stride: int = 4,
        pos_enc_type: str | None = "rel",
        causal_pos_enc: bool = False,
        pos_kernel_size: int = 128,
        pos_num_groups: int = 16,
        hid_act: str | dict[str, Any] | None = "swish",
        conv_norm_layer: str | None = None,
        se_r: float | None = None,
        ff_macaron: bool = True,
        red_lnorms: bool = True,
        concat_after: bool = False,
        padding_idx: int = -1,
        in_time_dim: int = 2,
        out_time_dim: int = 2,
    ) -> None:
        super().__init__()
        pos_enc_type = "no" if pos_enc_type in _NONE else pos_enc_type
        _check_arguments(in_feats, d_model, num_blocks, in_layer_type, pos_enc_type)
        for name, axis in (("in_time_dim", in_time_dim), ("out_time_dim", out_time_dim)):
            if axis not in (2, -1):
                raise ValueError(f"{name} must be 2: sequences are (batch, features, time), got {axis}")
        self.in_feats = in_feats
        self._d_model = d_model
        self._pattern = make_pattern(att_type, att_context, relative=pos_enc_type == "rel")
        pos_encoder = make_pos_encoder(
            str(pos_enc_type), d_model, pos_dropout_rate, pos_kernel_size, pos_num_groups, hid_act
        )
        self._takes_tokens = in_layer_type == "embed"
        self.in_layer = make_in_layer(
            in_layer_type, in_feats, d_model, in_stride, hid_act, dropout_rate, padding_idx, pos_encoder
        )
        spec = ConformerBlockSpec(
            d_model=d_model,
            num_heads=num_heads,
            ff_type=ff_type,
            d_ff=d_ff,
            ff_kernel_size=ff_kernel_size,
            hid_act=hid_act,
            dropout_rate=dropout_rate,
            att_dropout_rate=att_dropout_rate,
            pos_dropout_rate=pos_dropout_rate,
            relative=pos_enc_type == "rel",
            causal_pos_enc=causal_pos_enc,
            conv_norm_layer=None if conv_norm_layer in _NONE else conv_norm_layer,
            se_r=se_r,
            ff_macaron=ff_macaron,
            red_lnorms=red_lnorms,
            concat_after=concat_after,
        )
        repeats = _PerBlock("conv_repeats", conv_repeats, num_blocks)
        kernel_sizes = _PerBlock("conv_kernel_sizes", conv_kernel_sizes, num_blocks)
        strides = _PerBlock("conv_strides", conv_strides, num_blocks)
        self.blocks = nn.ModuleList()
        for index in range(num_blocks):
            self.blocks.append(ConformerBlock(spec, repeats[index], kernel_sizes[index], strides[index]))
        self.norm_out = None if red_lnorms else nn.LayerNorm(d_model)
        self.alignment = math.prod(stride for _, stride, _ in self._time_convs())
        self.layer_names = ("in_layer", *(f"blocks_{index}" for index in range(num_blocks)))
        self.stage_names = self.layer_names if self.norm_out is None else (*self.layer_names, "norm_out")
        init_conv_weights(self)

    def _blocks(self) -> list[ConformerBlock]:
        # no look at their classes: a block may be wrapped (compiled, sharded)
        return cast("list[ConformerBlock]", list(self.blocks))

    def _time_convs(self) -> list[tuple[int, int, int]]:
        """Kernel size, stride and padding of what changes the resolution."""
        return [*self.in_layer.time_convs, *(conv for block in self._blocks() for conv in block.time_convs)]

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return (self._d_model,)

    def in_shape(self) -> Shape:
        return (None, None) if self._takes_tokens else (None, self.in_feats, None)

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        for kernel_size, stride, padding in self._time_convs():
            lengths = conv_out_length(lengths, kernel_size, stride, 1, padding)
        return lengths

    @cached_property
    def receptive_field(self) -> ReceptiveField:  # type: ignore[override]
        """What an output sees along time: attention in blocks is counted, attention over all frames is not."""
        field = self.in_layer.receptive_field
        for block in self._blocks():
            field = field.then(block.receptive_field(self._pattern.reach or 0))
        return field

    @property
    def is_convolutional(self) -> bool:
        """Whether outputs depend on :meth:`in_context` alone: with local or block attention, and no other part with global reach."""
        return self._pattern.reach is not None and super().is_convolutional

    def _check_input(self, x: torch.Tensor, x_lengths: torch.Tensor | None, minimum: int) -> Padding | None:
        if self._takes_tokens and (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"in_layer_type embed takes integer tokens, got {x.dtype}")
        return super()._check_input(x, x_lengths, minimum)

    def _encode(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, item_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        if item_lengths is not None:
            lengths = item_lengths.tolist()
        else:
            lengths = [x.size(-1)] * x.size(0) if padding is None else padding.host_lengths
        return self._run(x, padding, taps, FramePositions(0, tuple(lengths)))

    def _encode_window(
        self, x: torch.Tensor, padding: Padding | None, item_lengths: torch.Tensor, start: int
    ) -> torch.Tensor:
        x = x if padding is None else padding.fill(x)
        positions = FramePositions(start, tuple(item_lengths.tolist()))
        return self._run(x, padding, Taps(frozenset()), positions)[0]

    def _run(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, positions: FramePositions
    ) -> tuple[torch.Tensor, Padding | None]:
        for conv in self.in_layer.time_convs:
            positions = positions.conv(*conv)
        x, padding = self.in_layer(x, padding, positions.start)
        taps.record("in_layer", x.transpose(1, 2), padding)
        plan = AttentionPlan(self._pattern, positions, padding, x.size(1), x.device)
        for index, block in enumerate(self._blocks()):
            x, padding = block(x, plan, padding)
            taps.record(f"blocks_{index}", x.transpose(1, 2), padding)
            for conv in block.time_convs:
                positions = positions.conv(*conv)
                plan = AttentionPlan(self._pattern, positions, padding, x.size(1), x.device)
        if self.norm_out is not None:
            x = self.norm_out(x)
            taps.record("norm_out", x.transpose(1, 2), padding)
        return x.transpose(1, 2), padding


class _PerBlock:
    """A configuration value of each block, from one value or a list. Nothing is allocated for blocks that a file only claims to have."""

    def __init__(self, name: str, value: int | Sequence[int], num_blocks: int) -> None:
        self._values = [value] if isinstance(value, int) else list(value)
        if len(self._values) not in (1, num_blocks):
            raise ValueError(f"{name} has {len(self._values)} values for the {num_blocks} blocks")

    def __getitem__(self, index: int) -> int:
        return int(self._values[0 if len(self._values) == 1 else index])


def _check_arguments(
    in_feats: int, d_model: int, num_blocks: int, in_layer_type: str | None, pos_enc_type: str | None
) -> None:
    if min(in_feats, d_model, num_blocks) < 1:
        raise ValueError("in_feats, d_model and num_blocks must be positive")
    if in_layer_type is not None and in_layer_type not in IN_LAYER_TYPES:
        raise ValueError(unknown_choice("in_layer_type", in_layer_type, IN_LAYER_TYPES))
    if pos_enc_type not in POS_ENC_TYPES:
        raise ValueError(unknown_choice("pos_enc_type", pos_enc_type, POS_ENC_TYPES))
