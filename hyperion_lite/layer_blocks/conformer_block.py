"""The block that a Conformer repeats: feed-forward, attention, convolution, feed-forward, each with a residual connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conformer_conv import ConformerConvBlock
from hyperion_lite.layer_blocks.conformer_feed_forward import FeedForward
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layers.attention import RelativeSelfAttention, SelfAttention
from hyperion_lite.layers.attention_pattern import AttentionPlan


@dataclass(frozen=True)
class ConformerBlockSpec:
    """What the blocks of an encoder have in common. The fields are the arguments of the encoder."""

    d_model: int
    num_heads: int
    ff_type: str
    d_ff: int
    ff_kernel_size: int
    hid_act: str | dict[str, Any] | None
    dropout_rate: float
    att_dropout_rate: float
    pos_dropout_rate: float
    relative: bool
    causal_pos_enc: bool
    conv_norm_layer: str | None
    se_r: float | None
    ff_macaron: bool
    red_lnorms: bool
    concat_after: bool

    def attention(self) -> SelfAttention:
        """A new attention layer."""
        if not self.relative:
            return SelfAttention(self.d_model, self.num_heads, self.att_dropout_rate)
        return RelativeSelfAttention(
            self.d_model, self.num_heads, self.att_dropout_rate, self.causal_pos_enc, self.pos_dropout_rate
        )

    def feed_forward(self) -> FeedForward:
        """A new feed-forward part."""
        return FeedForward(self.ff_type, self.d_model, self.d_ff, self.ff_kernel_size, self.hid_act, self.dropout_rate)


class ConformerBlock(nn.Module):
    """One block.

    Args:
        spec: what all blocks have in common.
        conv_repeats: number of convolution parts, 0 for none.
        conv_kernel_size: their kernel size.
        conv_stride: stride of the first of them.

    Raises:
        ValueError: see the parts; a stride without a convolution.
    """

    def __init__(self, spec: ConformerBlockSpec, conv_repeats: int, conv_kernel_size: int, conv_stride: int) -> None:
        super().__init__()
        if conv_repeats < 0 or (conv_repeats == 0 and conv_stride != 1):
            raise ValueError(f"conv_repeats = {conv_repeats} with conv_strides = {conv_stride} is impossible")
        self.stride = conv_stride
        self.ff_scale = 0.5 if spec.ff_macaron else 1.0
        if spec.ff_macaron:
            self.norm_ff_macaron = nn.LayerNorm(spec.d_model)
            self.feed_forward_macaron = spec.feed_forward()
        self.ff_macaron = spec.ff_macaron
        self.norm_att = nn.LayerNorm(spec.d_model)
        self.self_attn = spec.attention()
        self.concat_linear = nn.Linear(2 * spec.d_model, spec.d_model) if spec.concat_after else None
        self.conv_blocks = nn.ModuleList()
        for index in range(conv_repeats):
            self.conv_blocks.append(
                ConformerConvBlock(
                    spec.d_model,
                    conv_kernel_size,
                    conv_stride if index == 0 else 1,
                    spec.hid_act,
                    spec.conv_norm_layer,
                    spec.se_r,
                    spec.dropout_rate,
                )
            )
        self.norm_ff = nn.LayerNorm(spec.d_model)
        self.feed_forward = spec.feed_forward()
        self.norm_out = nn.LayerNorm(spec.d_model) if spec.red_lnorms else None
        self.dropout = nn.Dropout(spec.dropout_rate)

    @property
    def time_convs(self) -> list[tuple[int, int, int]]:
        """Kernel size, stride and padding of the convolutions that change the resolution."""
        return [(1, self.stride, 0)] if self.stride > 1 else []

    def receptive_field(self, attention_reach: int) -> ReceptiveField:
        """What an output sees when a frame attends to those up to ``attention_reach`` frames away."""
        parts = [ReceptiveField.of(self.feed_forward_macaron)] if self.ff_macaron else []
        parts.append(ReceptiveField(attention_reach, attention_reach))
        parts += [ReceptiveField.of(part) for part in (*self.conv_blocks, self.feed_forward)]
        field = ReceptiveField()
        for part in parts:
            field = field.then(part)
        return field

    def forward(
        self, x: torch.Tensor, plan: AttentionPlan, padding: Padding | None = None
    ) -> tuple[torch.Tensor, Padding | None]:
        """(batch, time, d_model), finite in the padding too -> (batch, time', d_model) and the padding at the new resolution."""
        if self.ff_macaron:
            x = x + self.ff_scale * self.dropout(self.feed_forward_macaron(self.norm_ff_macaron(x), padding))
        y = self.norm_att(x)
        z = self.self_attn(y, plan)
        if self.concat_linear is None:
            x = x + self.dropout(z)
        else:
            x = x + self.concat_linear(torch.cat([y, z], dim=-1))
        for conv_block in self.conv_blocks:
            x, padding = conv_block(x, padding)
        x = x + self.ff_scale * self.dropout(self.feed_forward(self.norm_ff(x), padding))
        return x if self.norm_out is None else self.norm_out(x), padding
