"""Pooling over time with learned weights."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.norm import BatchNorm1d
from hyperion_lite.layers.pool_stats import VAR_FLOOR, GlobalPool1d, mean_and_stddev
from hyperion_lite.layers.precision import autocast_disabled


def softmax_over_time(scores: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    """Softmax over the valid frames of the last axis; the weight of padding is exactly zero.

    The lowest finite number stands for minus infinity, because an item without any valid frame would turn NaN and take the gradients of
    shared parameters with it.
    """
    if padding is None:
        return scores.softmax(-1)
    weights = padding.fill(scores, torch.finfo(scores.dtype).min).softmax(-1)
    return padding.fill(weights)


class LDEPool1d(GlobalPool1d):
    """Learnable dictionary encoding (Cai et al., 2018).

    With deltas d_tk = x_t - mu_k and responsibilities r_t = softmax_k(-prec_k^2 * |d_tk|^dist_pow + bias_k), the output is the weighted
    mean sum_t r_tk d_tk / (sum_t r_tk + 1e-6) of every component, component after component.

    Args:
        in_feats: number of input features.
        num_comp: number of dictionary components; out_feats is ``num_comp * in_feats``.
        dist_pow: power of the Euclidean distance, 1 or 2.
        use_bias: whether components have a bias.
        dim: time axis, -1 or 1.
        keepdim: keep the time axis with size one.
    """

    pool_type = "lde"

    def __init__(
        self,
        in_feats: int,
        num_comp: int = 64,
        dist_pow: Literal[1, 2] = 2,
        use_bias: bool = False,
        dim: int = -1,
        keepdim: bool = False,
    ) -> None:
        super().__init__(dim, keepdim)
        self.num_comp = num_comp
        self.dist_pow = dist_pow
        self.mu = nn.Parameter(torch.randn(num_comp, in_feats))
        self.prec = nn.Parameter(torch.ones(num_comp))
        self.bias = nn.Parameter(torch.zeros(num_comp)) if use_bias else None

    def out_feats(self, in_feats: int) -> int:
        return in_feats * self.num_comp

    def pool(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        batch, num_feats, num_frames = x.shape
        mu = self.mu.to(x.dtype)
        frames = x.transpose(1, 2)
        # exact distances, not |x|^2 - 2 x mu + |mu|^2: that loses the digits that the softmax depends on
        distance = torch.cdist(frames.reshape(-1, num_feats), mu, compute_mode="donot_use_mm_for_euclid_dist").view(
            batch, num_frames, self.num_comp
        )
        scores = -self.prec.to(x.dtype).square() * (distance.square() if self.dist_pow == 2 else distance)
        if self.bias is not None:
            scores = scores + self.bias
        weights = scores.softmax(-1).transpose(1, 2)
        if padding is not None:
            weights = padding.fill(weights)
        # sum_t r_tk (x_t - mu_k) without the (batch, time, components, features) tensor of deltas; a difference of large sums
        mass = weights.sum(-1, keepdim=True)
        with autocast_disabled(x):
            pooled = (weights.to(x.dtype) @ frames - mass * mu) / (mass + 1e-6)
        return pooled.flatten(1)


class ScaledDotProdAttV1Pool1d(GlobalPool1d):
    """Scaled dot-product attention of learned queries, one per head, over time.

    Weights of head h are softmax_t(q_h . k_th / sqrt(d_k)), or with ``bin_attn`` sigmoid(score + bias) / (sum over t + 1e-9); the output
    is the weighted sum of the values, heads concatenated.

    Args:
        in_feats: number of input features.
        num_heads: number of heads.
        d_k: dimension of the keys of a head.
        d_v: dimension of the values of a head; out_feats is ``num_heads * d_v``.
        bin_attn: independent (sigmoid) weights in place of the softmax.
        dim: time axis, -1 or 1.
        keepdim: keep the time axis with size one.
    """

    pool_type = "scaled-dot-prod-att-v1"

    def __init__(
        self,
        in_feats: int,
        num_heads: int = 8,
        d_k: int = 256,
        d_v: int = 256,
        bin_attn: bool = False,
        dim: int = -1,
        keepdim: bool = False,
    ) -> None:
        super().__init__(dim, keepdim)
        self.num_heads = num_heads
        self.d_k = d_k
        self.d_v = d_v
        self.q = nn.Parameter(torch.randn(1, num_heads, 1, d_k))
        self.bias = nn.Parameter(torch.zeros(1, num_heads, 1, 1)) if bin_attn else None
        self.linear_k = nn.Linear(in_feats, num_heads * d_k)
        self.linear_v = nn.Linear(in_feats, num_heads * d_v)

    def out_feats(self, in_feats: int) -> int:
        return self.num_heads * self.d_v

    def pool(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        # the statistics are float32 also in a model of half precision; its layers are not
        frames = x.transpose(1, 2).to(self.linear_k.weight.dtype)
        keys = self.linear_k(frames).unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2)
        values = self.linear_v(frames).unflatten(-1, (self.num_heads, self.d_v)).transpose(1, 2)
        # (batch, heads, 1, time); at least float32 for the softmax, whatever autocast made of the keys
        scores = (self.q.to(x.dtype) @ keys.to(x.dtype).transpose(2, 3)).to(x.dtype) / math.sqrt(self.d_k)
        if self.bias is None:
            weights = softmax_over_time(scores, padding)
        else:
            weights = torch.sigmoid(scores + self.bias)
            if padding is not None:
                weights = padding.fill(weights)
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-9)
        return (weights @ values.to(weights.dtype)).flatten(1)


class GlobalChWiseAttMeanStdPool1d(GlobalPool1d):
    """Channel- and context-dependent attentive statistics, the pooling of ECAPA-TDNN (Desplanques et al., 2020).

    Every channel has its own weights over time, from a bottleneck that may also see the plain mean and standard deviation of the item:
    h = conv1(x) + lin_global([mean; stddev]); weights = softmax_t(conv2(tanh(norm(h)))), or with ``bin_attn`` max(sigmoid(. + bias), 1e-6).
    Output: [m; s], m = sum(w x) / sum(w), s = sqrt(max(sum(w (x - m)^2) / sum(w), 1e-5)).

    Args:
        in_feats: number of input features.
        inner_feats: dimension of the bottleneck.
        bin_attn: independent (sigmoid) weights in place of the softmax.
        use_global_context: whether the bottleneck sees the item's mean and standard deviation.
        dim: time axis, -1 or 1.
        keepdim: keep the time axis with size one.
    """

    pool_type = "ch-wise-att-mean+stddev"
    multiplier = 2

    def __init__(
        self,
        in_feats: int,
        inner_feats: int = 128,
        bin_attn: bool = False,
        use_global_context: bool = True,
        dim: int = -1,
        keepdim: bool = False,
    ) -> None:
        super().__init__(dim, keepdim)
        self.bias = nn.Parameter(torch.ones(1, in_feats, 1)) if bin_attn else None
        self.conv1 = nn.Conv1d(in_feats, inner_feats, 1, bias=False)
        self.lin_global = nn.Linear(2 * in_feats, inner_feats, bias=False) if use_global_context else None
        self.norm_layer = BatchNorm1d(inner_feats)
        self.conv2 = nn.Conv1d(inner_feats, in_feats, 1)

    def pool(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        dtype = self.conv1.weight.dtype
        hidden = self.conv1(x.to(dtype))
        if self.lin_global is not None:
            hidden = hidden + self.lin_global(mean_and_stddev(x, padding).to(dtype)).unsqueeze(-1)
        scores = self.conv2(torch.tanh(self.norm_layer(hidden, padding))).to(x.dtype)
        if self.bias is None:
            weights = softmax_over_time(scores, padding)
        else:
            weights = torch.sigmoid(scores + self.bias).clamp(min=1e-6)
            if padding is not None:
                weights = padding.fill(weights)
        # the floor matters only to an item without valid frames
        mass = weights.sum(-1).clamp(min=torch.finfo(weights.dtype).tiny)
        mean = (weights * x).sum(-1) / mass
        var = (weights * (x - mean.unsqueeze(-1)).square()).sum(-1) / mass
        return torch.cat([mean, var.clamp(min=VAR_FLOOR).sqrt()], dim=1)
