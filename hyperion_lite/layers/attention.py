"""Multi-head self-attention over frames, dense or in blocks, with or without relative positions."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.layers.attention_pattern import AttentionPlan
from hyperion_lite.layers.pos_encoding import sinusoids

_SCORES_AT_ONCE = 1 << 25
"""Position scores that are held at a time, 128 MiB in float32."""
_MOST_ROWS = 256
"""Rows at a time where memory allows for more. n rows need the scores of n + time positions, each row another part of them."""


class SelfAttention(nn.Module):
    """Scaled dot-product attention: softmax over j of ``q_i . k_j / sqrt(d_k)``.

    Which pairs count is the plan's affair: dense attention costs O(time²) operations, and O(time) memory, because no matrix of scores is
    built; in blocks of c frames both are O(time · c).

    Args:
        d_model: features per frame, of which every head has ``d_k = d_model / num_heads``.
        num_heads: number of heads.
        dropout_rate: dropout of the attention weights.

    Raises:
        ValueError: heads that do not divide the features.
    """

    def __init__(self, d_model: int, num_heads: int, dropout_rate: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"num_heads = {num_heads} does not divide d_model = {d_model}")
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.linear_q = nn.Linear(d_model, d_model)
        self.linear_k = nn.Linear(d_model, d_model)
        self.linear_v = nn.Linear(d_model, d_model)
        self.linear_out = nn.Linear(d_model, d_model)

    def forward(self, x: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """Attend.

        Args:
            x: (batch, time, d_model), finite also in the padding.
            plan: which frames attend to which.

        Returns:
            A tensor like ``x``; finite numbers without meaning in the padding.
        """
        q, k, v = self.linear_q(x), self.linear_k(x), self.linear_v(x)
        return self.linear_out(self._dense(q, k, v, plan) if plan.is_dense else self._in_blocks(q, k, v, plan))

    def _dense(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        q, k, v = (self._heads(part) for part in (q, k, v))
        return self._merge(self._attend(q, k, v, plan.key_mask, None))

    def _in_blocks(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        layout = plan.blocks
        q = self._heads(_take(q, layout.queries))
        k, v = (self._heads(_take(part, layout.keys)) for part in (k, v))
        bias = self._block_bias(q, layout.lead, k.size(-2))
        shape = q.shape[:2]
        mask = layout.mask.expand(shape[0], -1, -1, -1).flatten(0, 1).unsqueeze(1)
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        y = self._merge(self._attend(q, k, v, mask, None if bias is None else bias.flatten(0, 1)))
        return _take(y.unflatten(0, shape).flatten(1, 2), layout.inverse)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """(batch, heads, queries or keys, d_k) -> the shape of ``q``; ``mask`` and ``bias`` broadcast to (batch, heads, queries, keys)."""
        q = self._content_query(q)
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, mask, self.dropout_rate if self.training else 0.0)

    def _block_bias(self, q: torch.Tensor, lead: torch.Tensor, width: int) -> torch.Tensor | None:
        """Scores of positions for blocks of queries (batch, blocks, heads, C, d_k), whose ``width`` keys begin ``lead`` frames earlier."""
        return None

    def _content_query(self, q: torch.Tensor) -> torch.Tensor:
        """Queries (..., heads, time, d_k) as they meet the keys."""
        return q

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """(..., time, d_model) -> (..., heads, time, d_k)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def _merge(self, x: torch.Tensor) -> torch.Tensor:
        """(..., heads, time, d_k) -> (..., time, d_model)."""
        return x.transpose(-3, -2).flatten(-2)


class RelativeSelfAttention(SelfAttention):
    """Attention by content and relative position (Dai et al., 2019).

    Scores are ``((q_i + u) . k_j + (q_i + v) . p_{i-j}) / sqrt(d_k)``, where p_r is a linear map of the sinusoids of r. In dense
    attention the position scores need O(time²) memory while a graph is kept, else a bounded number of rows at a time.

    Args:
        d_model: features per frame.
        num_heads: number of heads.
        dropout_rate: dropout of the attention weights.
        causal: leave out the position part for frames j > i; they are attended to by their content.
        pos_dropout_rate: dropout of the sinusoids.
    """

    bias_like: ClassVar[Collection[str]] = ("u", "v")
    """Parameters that count as biases for weight decay, though their shape does not tell: they are added to the queries."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout_rate: float = 0.0,
        causal: bool = False,
        pos_dropout_rate: float = 0.0,
    ) -> None:
        super().__init__(d_model, num_heads, dropout_rate)
        self.causal = causal
        self.linear_pos = nn.Linear(d_model, d_model)
        self.pos_dropout = nn.Dropout(pos_dropout_rate)
        self.u = nn.Parameter(torch.empty(num_heads, d_model // num_heads))
        self.v = nn.Parameter(torch.empty(num_heads, d_model // num_heads))
        nn.init.xavier_uniform_(self.u)
        nn.init.xavier_uniform_(self.v)

    def _dense(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        q, k, v = (self._heads(part) for part in (q, k, v))
        frames = q.size(-2)
        # relative positions T - 1 ... -T
        table = self._pos_heads(torch.arange(frames - 1, -frames - 1, -1, device=q.device), q.dtype)
        rows = _SCORES_AT_ONCE // (q.size(0) * self.num_heads * (frames + _MOST_ROWS))
        rows = min(max(rows, 16), _MOST_ROWS)
        parts = []
        for first in range(0, frames, rows):
            part = q[..., first : first + rows, :]
            count = part.size(-2)
            bias = self._bias(part, table[:, frames - first - count : 2 * frames - first], first, frames)
            parts.append(self._attend(part, k, v, plan.key_mask, bias))
        return self._merge(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2))

    def _block_bias(self, q: torch.Tensor, lead: torch.Tensor, width: int) -> torch.Tensor | None:
        size = q.size(-2)
        positions = lead.view(-1, 1) + size - 1 - torch.arange(size + width, device=q.device)
        table = self._pos_heads(positions, q.dtype).unsqueeze(1)
        return self._bias(q, table, lead.view(-1, 1, 1, 1, 1), width)

    def _pos_heads(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Relative positions (..., P) -> their vectors (..., heads, P, d_k)."""
        weight = self.linear_pos.weight
        table = self.pos_dropout(sinusoids(positions, weight.size(1), weight.dtype))
        return self._heads(self.linear_pos(table)).to(dtype)

    def _bias(self, q: torch.Tensor, table: torch.Tensor, lead: int | torch.Tensor, width: int) -> torch.Tensor:
        """Scores of positions.

        Args:
            q: (..., heads, C, d_k).
            table: (..., heads, C + width, d_k), of the relative positions ``lead + C - 1`` downwards.
            lead: position of the first query relative to the first key.
            width: number of keys.

        Returns:
            (..., heads, C, width).
        """
        scores = (q + self.v.unsqueeze(-2).to(q.dtype)) @ table.transpose(-1, -2)
        scores = _relative_shift(scores, width) / math.sqrt(q.size(-1))
        if self.causal:
            rows = torch.arange(q.size(-2), device=q.device).unsqueeze(-1)
            future = rows + lead < torch.arange(width, device=q.device)
            scores = scores.masked_fill(future, 0.0)
        return scores.to(q.dtype)

    def _content_query(self, q: torch.Tensor) -> torch.Tensor:
        return q + self.u.unsqueeze(-2).to(q.dtype)


def _relative_shift(scores: torch.Tensor, width: int) -> torch.Tensor:
    """(..., C, C + width) with column n for the distance ``n - (C - 1)`` of key and query -> (..., C, width) with a column for each key.

    Row l begins C - 1 - l columns later than the last one: in the flattened matrix, at a constant distance from the row before.
    """
    rows, columns = scores.shape[-2:]
    flat = scores.flatten(-2)[..., rows - 1 : rows - 1 + rows * (columns - 1)]
    return flat.unflatten(-1, (rows, columns - 1))[..., :width]


def _take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Frames of ``x`` (batch, time, features) at ``index`` (batch or 1, ...) -> (batch, ..., features)."""
    if index.size(0) == 1:
        return x[:, index[0]]
    items = torch.arange(x.size(0), device=x.device).view(-1, *[1] * (index.dim() - 1))
    return x[items, index]
