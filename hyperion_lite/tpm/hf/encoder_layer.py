"""One layer of the transformer encoders, and what is in front of the first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.batch_norm import BatchNorm1d

_LOADING_HOOKS = "_load_state_dict_pre_hooks"


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward with residuals.

    Args:
        source: the transformers layer whose parts are taken over, under the same names.
        attention: makes our attention of the source's.
        norm_first: normalise before the parts ("stable layer norm") instead of after them.
    """

    def __init__(self, source: Any, attention: Callable[[Any], nn.Module], norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = attention(source.attention)
        self.dropout = source.dropout
        self.layer_norm = source.layer_norm
        self.feed_forward = source.feed_forward
        self.final_layer_norm = source.final_layer_norm
        self.adapter_layer = getattr(source, "adapter_layer", None)

    def forward(
        self, x: torch.Tensor, padding: Padding | None = None, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(batch, time, features) to the same, and the position bias for the next layer."""
        if self.norm_first:
            h, bias = self.attention(self.layer_norm(x), padding, bias)
            x = x + self.dropout(h)
            x = x + self.feed_forward(self.final_layer_norm(x))
            return (x if self.adapter_layer is None else x + self.adapter_layer(x)), bias
        h, bias = self.attention(x, padding, bias)
        x = self.layer_norm(x + self.dropout(h))
        return self.final_layer_norm(x + self.feed_forward(x)), bias


class PositionalConv(nn.Module):
    """The convolution over time whose output tells the encoder the positions.

    Args:
        source: the transformers module whose parts are taken over, under the same names.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.conv = source.conv
        self.activation = source.activation
        norm = getattr(source, "batch_norm", None)
        self.batch_norm: BatchNorm1d | None = None
        if norm is not None:
            self.batch_norm = BatchNorm1d(norm.num_features, eps=norm.eps, momentum=norm.momentum)
            self.batch_norm.load_state_dict(norm.state_dict())

    @property
    def reach(self) -> int:
        """Frames to either side that an output sees, at most."""
        return self.conv.padding[0]

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """(batch, time, features) to the same; the convolution sees zeros beyond the end of every item."""
        length = x.size(1)
        x = x.transpose(1, 2)
        if self.batch_norm is not None:
            x = self.batch_norm(x, padding)
        if padding is not None:
            x = padding.fill(x)
        # a kernel of even size gives one frame too many
        return self.activation(self.conv(x)[..., :length]).transpose(1, 2)

    # a convolution with weight norm is of a class, and has a hook, that torch makes on the spot: pickle finds neither

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if parametrize.is_parametrized(self.conv):
            state["_modules"] = {**state["_modules"], "conv": None}
            state["weight_normed"] = {k: v for k, v in self.conv.__dict__.items() if k != _LOADING_HOOKS}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        content = state.pop("weight_normed", None)
        super().__setstate__(state)
        if content is not None:
            conv = parametrizations.weight_norm(nn.Conv1d(1, 1, 1, device="meta"), dim=2)
            hooks = conv.__dict__[_LOADING_HOOKS]
            conv.__dict__.clear()
            conv.__dict__.update(content, **{_LOADING_HOOKS: hooks})
            self.conv = conv
