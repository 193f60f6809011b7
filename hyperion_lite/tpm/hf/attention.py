"""Self-attention of the transformer encoders, for padded batches.

Every projection is called as a module: what wraps or replaces it (an adapter, a quantised layer) takes effect and gets its gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.padding import Padding


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding: Padding | None,
    bias: torch.Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention in which padded positions are never attended to.

    Args:
        query, key, value: (batch, heads, time, features).
        padding: valid positions; every item has at least one.
        bias: added to the scaled products, broadcastable to (batch, heads, time, time).
        dropout: of the attention weights.
        scale: of the products; by default one over the square root of the features.

    Returns:
        (batch, time, heads * features); finite at padded positions where ``value`` is.
    """
    mask = None if padding is None else padding.mask[:, None, None, :]
    if bias is not None:
        bias = bias.to(query.dtype)
        mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
    y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)
    return y.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head self-attention with the projections ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``.

    Args:
        source: the transformers module whose parameters are taken over.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.num_heads = int(source.num_heads)
        self.dropout = float(source.dropout)
        self.k_proj = source.k_proj
        self.v_proj = source.v_proj
        self.q_proj = source.q_proj
        self.out_proj = source.out_proj

    def forward(
        self, x: torch.Tensor, padding: Padding | None = None, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(batch, time, features) to the same, and the position bias that the next layer takes over (none here)."""
        return self._attend(x, padding, None), None

    def _attend(self, x: torch.Tensor, padding: Padding | None, bias: torch.Tensor | None) -> torch.Tensor:
        query, key, value = (self._heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        dropout = self.dropout if self.training else 0.0
        return self.out_proj(attend(query, key, value, padding, bias, dropout))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class GatedPositionAttention(SelfAttention):
    """Self-attention with WavLM's gated relative position bias.

    The first layer has the table of the bias and makes (heads, time, time) of it; each layer gates it by its input, for every head and
    query on its own. The bias depends on distances only, so it serves every item of a batch.

    Reference: Chen et al., "WavLM: large-scale self-supervised pre-training for full stack speech processing", 2022.
    """

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.num_buckets = int(source.num_buckets)
        self.max_distance = int(source.max_distance)
        self.gru_rel_pos_const = source.gru_rel_pos_const
        self.gru_rel_pos_linear = source.gru_rel_pos_linear
        self.rel_attn_embed = getattr(source, "rel_attn_embed", None)

    def forward(
        self, x: torch.Tensor, padding: Padding | None = None, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As in the base class; ``bias`` (heads, time, time) comes from the layer before, or is made here."""
        if bias is None:
            bias = self.position_bias(x.size(1))
        return self._attend(x, padding, self._gate(x) * bias), bias

    def position_bias(self, length: int) -> torch.Tensor:
        """(heads, length, length): the table's entry for the distance from query to key.

        Raises:
            RuntimeError: this is not the first layer.
        """
        if self.rel_attn_embed is None:
            raise RuntimeError("only the first layer of the encoder has the table of the position bias")
        distance = torch.arange(1 - length, length, device=self.rel_attn_embed.weight.device)
        values = self.rel_attn_embed(self._bucket(distance)).t()
        # row i of the matrix is the slice of the distances -i ... length - 1 - i
        return values.unfold(-1, length, 1).flip(1)

    def _bucket(self, distance: torch.Tensor) -> torch.Tensor:
        """Short distances one by one, long ones in logarithmic steps up to the largest; the two directions apart."""
        half = self.num_buckets // 2
        exact = half // 2
        size = distance.abs()
        steps = torch.log(size.float() / exact) / math.log(self.max_distance / exact) * (half - exact)
        far = (exact + steps).long().clamp(max=half - 1)
        return (distance > 0).long() * half + torch.where(size < exact, size, far)

    def _gate(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, heads, time, 1)."""
        sums = self.gru_rel_pos_linear(self._heads(x)).unflatten(-1, (2, 4)).sum(-1)
        a, b = torch.sigmoid(sums).chunk(2, dim=-1)
        return a * (b * self.gru_rel_pos_const - 1.0) + 2.0
