"""Multi-head factorised attention: pooling over time and over the layers of a pretrained encoder."""

from __future__ import annotations

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.pool_attention import softmax_over_time
from hyperion_lite.layers.pool_stats import GlobalPool1d


class MHFAPool1d(GlobalPool1d):
    """Multi-head factorised attention pooling.

    Keys and values each mix the L layers with weights of their own and are then compressed: k_t = W_k sum_l softmax(a)_l h_lt, v_t likewise
    with a bias. Head i weights the frames by softmax_t(q_i . k_t) and sums the values, which all heads share; the output is the sums of
    the heads, one after the other. The linear layer to the embedding is that of the classification head behind the pooling. Biases of
    keys and queries would cancel in the softmax; there are none.

    Tensors: ``layer_weights_k`` and ``layer_weights_v`` (num_layers,), equal weights at first; ``linear_k``, ``linear_v``, ``att``.

    Args:
        in_feats: number of input features, those of all layers together: feature ``d`` of layer ``l`` is input ``l * D + d``, as a fuser of
            type ``stack`` gives them.
        num_layers: number of layers; with 1 it is attention over any frames.
        num_heads: number of heads.
        d_k: dimension of the compressed keys.
        d_v: dimension of the compressed values; out_feats is ``num_heads * d_v``.
        dim: time axis, -1 or 1.
        keepdim: keep the time axis with size one.

    Raises:
        ConfigError: ``in_feats`` is no multiple of ``num_layers``.

    Reference: Peng et al., "An attention-based backend allowing efficient fine-tuning of transformer models for speaker verification",
    SLT 2022, arXiv:2210.01273.
    """

    pool_type = "mhfa"

    def __init__(
        self,
        in_feats: int,
        num_layers: int = 1,
        num_heads: int = 8,
        d_k: int = 256,
        d_v: int = 256,
        dim: int = -1,
        keepdim: bool = False,
    ) -> None:
        super().__init__(dim, keepdim)
        if num_layers < 1 or in_feats % num_layers:
            raise ConfigError(
                f"mhfa pooling: in_feats = {in_feats} cannot be the features of num_layers = {num_layers} layers"
            )
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.d_v = d_v
        self.layer_weights_k = nn.Parameter(torch.zeros(num_layers))
        self.layer_weights_v = nn.Parameter(torch.zeros(num_layers))
        self.linear_k = nn.Linear(in_feats // num_layers, d_k, bias=False)
        self.linear_v = nn.Linear(in_feats // num_layers, d_v)
        self.att = nn.Linear(d_k, num_heads, bias=False)

    def out_feats(self, in_feats: int) -> int:
        return self.num_heads * self.d_v

    def pool(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        # the softmax is float32 also in a model of half precision; its layers are not
        dtype = self.linear_k.weight.dtype
        layers = x.unflatten(1, (self.num_layers, -1)).to(dtype)
        # one pass over the layers for both mixtures
        weights = torch.stack([self.layer_weights_k, self.layer_weights_v]).softmax(-1).to(dtype)
        for_keys, for_values = torch.einsum("ml,bldt->mbtd", weights, layers)
        keys, values = self.linear_k(for_keys), self.linear_v(for_values)
        # (batch, heads, time)
        scores = self.att(keys).transpose(1, 2).to(x.dtype)
        return (softmax_over_time(scores, padding) @ values.to(x.dtype)).flatten(1)
