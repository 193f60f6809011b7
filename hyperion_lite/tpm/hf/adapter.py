"""Convolutional adapters behind an encoder, which reduce its frame rate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length


class ConvAdapterLayer(nn.Module):
    """Strided convolution and gated linear unit."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.conv = source.conv

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, features, time) to the same at the lower rate; the convolution sees zeros beyond the end of an item."""
        if padding is not None:
            x = padding.fill(x)
            padding = padding.conv(self.conv.kernel_size[0], self.conv.stride[0], padding=self.conv.padding[0])
        return F.glu(self.conv(x), dim=1), padding


class ConvAdapter(nn.Module):
    """Optional projection, then adapter layers.

    Args:
        source: the transformers module whose parts are taken over, under the same names.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.proj = source.proj
        self.proj_layer_norm = source.proj_layer_norm
        self.layers = nn.ModuleList(ConvAdapterLayer(layer) for layer in source.layers)

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Valid frames behind the adapter for (batch,) valid frames in front of it."""
        for layer in self.layers:
            conv: Any = layer.conv
            lengths = conv_out_length(lengths, conv.kernel_size[0], conv.stride[0], padding=conv.padding[0])
        return lengths

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, time, features) to the same at the lower rate, and its valid positions."""
        if self.proj is not None:
            x = self.proj_layer_norm(self.proj(x))
        x = x.transpose(1, 2)
        for layer in self.layers:
            x, padding = layer(x, padding)
        return x.transpose(1, 2), padding
