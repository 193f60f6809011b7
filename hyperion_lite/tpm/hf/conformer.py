"""The Conformer layers of w2v-BERT, for padded batches.

The modules take over the parts of the transformers modules, under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.tpm.hf.attention import attend


def relative_sinusoids(length: int, size: int, like: torch.Tensor) -> torch.Tensor:
    """(2 * length - 1, size): sines and cosines of the distances length - 1 ... 1 - length, query minus key."""
    distance = torch.arange(length - 1, -length, -1, dtype=torch.float32, device=like.device)
    rate = torch.exp(torch.arange(0, size, 2, dtype=torch.float32, device=like.device) * (-math.log(10000.0) / size))
    angle = distance[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(like.dtype)


def rotations(length: int, size: int, base: float, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each (length, size), by which rotary positions turn heads of ``size`` features."""
    rate = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32, device=like.device) / size)
    angle = torch.arange(length, dtype=torch.float32, device=like.device)[:, None] * rate
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


class ConformerAttention(nn.Module):
    """Self-attention with one of three kinds of positions, or none: ``relative_key``, ``relative``, ``rotary``.

    Args:
        source: the transformers module.
        rotary_base: base of the wavelengths of rotary positions.
    """

    def __init__(self, source: Any, rotary_base: float = 10000.0) -> None:
        super().__init__()
        self.num_heads = int(source.num_heads)
        self.kind: str | None = source.position_embeddings_type
        self.rotary_base = rotary_base
        self.linear_q = source.linear_q
        self.linear_k = source.linear_k
        self.linear_v = source.linear_v
        self.linear_out = source.linear_out
        self.dropout = source.dropout
        if self.kind == "relative":
            self.linear_pos = source.linear_pos
            self.pos_bias_u = source.pos_bias_u
            self.pos_bias_v = source.pos_bias_v
        if self.kind == "relative_key":
            self.reach = (int(source.left_max_position_embeddings), int(source.right_max_position_embeddings))
            self.distance_embedding = source.distance_embedding

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """(batch, time, features) to the same."""
        turned = self._turn(x) if self.kind == "rotary" else x
        query, key = self._heads(self.linear_q(turned)), self._heads(self.linear_k(turned))
        value = self._heads(self.linear_v(x))
        bias: torch.Tensor | None = None
        if self.kind == "relative_key":
            bias = self._key_bias(query)
        elif self.kind == "relative":
            bias = self._relative_bias(query)
            query = query + self.pos_bias_u[:, None, :]
        dropout = self.dropout.p if self.training else 0.0
        return self.linear_out(attend(query, key, value, padding, bias, dropout))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _key_bias(self, query: torch.Tensor) -> torch.Tensor:
        """Product of each query with the embedding of its clipped distance to each key."""
        left, right = self.reach
        position = torch.arange(query.size(2), device=query.device)
        index = (position[None, :] - position[:, None]).clamp(-left, right) + left
        # few distances, so all products are made first, and then laid out
        products = query @ self.distance_embedding.weight.to(query.dtype).t()
        return products.gather(-1, index.expand(*query.shape[:2], -1, -1)) / math.sqrt(query.size(-1))

    def _relative_bias(self, query: torch.Tensor) -> torch.Tensor:
        """Position part of the scores of Transformer-XL (Dai et al. 2019, section 3.3)."""
        length = query.size(2)
        table = relative_sinusoids(length, self.num_heads * query.size(-1), query)
        keys = self._heads(self.linear_pos(table)[None])
        products = (query + self.pos_bias_v[:, None, :]) @ keys.transpose(-1, -2)
        position = torch.arange(length, device=query.device)
        index = length - 1 - position[:, None] + position[None, :]
        return products.gather(-1, index.expand(*query.shape[:2], -1, -1)) / math.sqrt(query.size(-1))

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (self.num_heads, -1))
        cos, sin = rotations(x.size(1), heads.size(-1), self.rotary_base, x)
        first, second = heads.chunk(2, dim=-1)
        return (heads * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]).flatten(2)


class ConformerLayer(nn.Module):
    """Half a feed-forward part, self-attention, causal convolution, half a feed-forward part.

    The convolution looks back only, so padding at the end does not reach valid frames.

    Args:
        source: the transformers layer.
        rotary_base: see :class:`ConformerAttention`.
    """

    def __init__(self, source: Any, rotary_base: float) -> None:
        super().__init__()
        self.ffn1_layer_norm = source.ffn1_layer_norm
        self.ffn1 = source.ffn1
        self.self_attn_layer_norm = source.self_attn_layer_norm
        self.self_attn = ConformerAttention(source.self_attn, rotary_base)
        self.self_attn_dropout = source.self_attn_dropout
        self.conv_module = source.conv_module
        self.ffn2_layer_norm = source.ffn2_layer_norm
        self.ffn2 = source.ffn2
        self.final_layer_norm = source.final_layer_norm

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """(batch, time, features) to the same."""
        x = x + 0.5 * self.ffn1(self.ffn1_layer_norm(x))
        x = x + self.self_attn_dropout(self.self_attn(self.self_attn_layer_norm(x), padding))
        x = x + self.conv_module(x)
        x = x + 0.5 * self.ffn2(self.ffn2_layer_norm(x))
        return self.final_layer_norm(x)


class ConformerAdapterLayer(nn.Module):
    """Self-attention and feed-forward at a lower frame rate, on what two strided convolutions make of the input."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.residual_layer_norm = source.residual_layer_norm
        self.residual_conv = source.residual_conv
        self.self_attn_layer_norm = source.self_attn_layer_norm
        self.self_attn_conv = source.self_attn_conv
        self.self_attn = ConformerAttention(source.self_attn)
        self.self_attn_dropout = source.self_attn_dropout
        self.ffn_layer_norm = source.ffn_layer_norm
        self.ffn = source.ffn

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, time, features) to the same at the lower rate, and its valid positions."""
        residual, _ = self._reduce(self.residual_layer_norm(x), self.residual_conv, padding)
        h, padding = self._reduce(self.self_attn_layer_norm(x), self.self_attn_conv, padding)
        x = residual + self.self_attn_dropout(self.self_attn(h, padding))
        return x + self.ffn(self.ffn_layer_norm(x)), padding

    @staticmethod
    def _reduce(
        x: torch.Tensor, conv: Callable[[torch.Tensor], torch.Tensor], padding: Padding | None
    ) -> tuple[torch.Tensor, Padding | None]:
        settings: Any = conv
        if padding is not None:
            x = padding.fill(x, dim=1)
            padding = padding.conv(settings.kernel_size[0], settings.stride[0], padding=settings.padding[0])
        return F.glu(conv(x.transpose(1, 2)), dim=1).transpose(1, 2), padding


class ConformerAdapter(nn.Module):
    """Optional projection, then adapter layers.

    Args:
        source: the transformers module.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.proj = source.proj
        self.proj_layer_norm = source.proj_layer_norm
        self.layers = nn.ModuleList(ConformerAdapterLayer(layer) for layer in source.layers)

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Valid frames behind the adapter for (batch,) valid frames in front of it."""
        for layer in self.layers:
            conv: Any = layer.self_attn_conv
            lengths = conv_out_length(lengths, conv.kernel_size[0], conv.stride[0], padding=conv.padding[0])
        return lengths

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, time, features) to the same at the lower rate, and its valid positions."""
        if self.proj is not None:
            x = self.proj_layer_norm(self.proj(x))
        for layer in self.layers:
            x, padding = layer(x, padding)
        return x, padding
