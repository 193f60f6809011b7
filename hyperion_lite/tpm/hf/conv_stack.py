"""The convolutional feature extractor of wav2vec 2.0 and its relatives, for padded batches.

The modules take over the parameters of the transformers modules, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.layers.norm import ChannelLayerNorm, GroupNorm
from hyperion_lite.layers.precision import at_least_float32
from hyperion_lite.tpm.hf.running_stats import ItemStats


class ConvGeometry:
    """Length arithmetic of a stack of convolutions without padding.

    Attributes:
        kernels: kernel sizes.
        strides: strides.
        hop: input samples per frame.
        receptive_field: input samples that one frame sees, the shortest input that gives a frame.
    """

    def __init__(self, kernels: Iterable[int], strides: Iterable[int]) -> None:
        self.kernels = tuple(kernels)
        self.strides = tuple(strides)
        self.hop = 1
        self.receptive_field = 1
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            self.receptive_field += (kernel - 1) * self.hop
            self.hop *= stride

    @overload
    def out_length(self, length: int) -> int: ...
    @overload
    def out_length(self, length: torch.Tensor) -> torch.Tensor: ...
    def out_length(self, length: int | torch.Tensor) -> int | torch.Tensor:
        """Frames of ``length`` samples; 0 below the receptive field."""
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            length = conv_out_length(length, kernel, stride)
        return length

    def samples_of(self, first: int, last: int) -> tuple[int, int]:
        """Samples that the frames ``first`` ... ``last - 1`` see, as a half-open interval."""
        return first * self.hop, (last - 1) * self.hop + self.receptive_field


class ConvLayer(nn.Module):
    """Convolution, normalisation if there is one, activation.

    Args:
        source: the transformers module whose parameters are taken over.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.conv = source.conv
        self.activation = source.activation
        norm = getattr(source, "layer_norm", None)
        self.layer_norm = None if norm is None else _masked_norm(norm)

    def forward(
        self, x: torch.Tensor, padding: Padding | None = None, stats: ItemStats | None = None
    ) -> tuple[torch.Tensor, Padding | None]:
        """(batch, channels, time) and its valid positions to the same of the next resolution.

        Args:
            x: input; a valid output position sees valid input positions only, so what the padding holds does not matter.
            padding: valid positions.
            stats: statistics of the whole item that ``x`` is a part of, where the normalisation is over time. While they are being
                collected, that is all that happens.
        """
        x = _convolve(self.conv, x)
        if stats is not None and stats.collecting:
            stats.add(x)
            return x, padding
        if padding is not None:
            padding = padding.conv(self.conv.kernel_size[0], self.conv.stride[0])
        if stats is not None and isinstance(self.layer_norm, GroupNorm):
            x = stats.normalise(x, self.layer_norm)
        elif padding is None and isinstance(self.layer_norm, GroupNorm):
            x = _normalise_over_time(x, self.layer_norm)
        elif self.layer_norm is not None:
            x = self.layer_norm(x, padding)
        return self.activation(x), padding


def _convolve(conv: Any, x: torch.Tensor) -> torch.Tensor:
    """``conv(x)``; of a single channel on the CPU as matrix products, which take a fraction of the time of torch's convolution."""
    if type(conv) is not nn.Conv1d or conv.in_channels != 1 or x.device.type != "cpu":
        return conv(x)
    windows = x[:, 0].unfold(-1, conv.kernel_size[0], conv.stride[0])
    # item by item: torch's product of batches is many times slower for so few rows
    items = [conv.weight[:, 0] @ item.t() for item in windows.unbind(0)]
    y = items[0][None] if len(items) == 1 else torch.stack(items)
    return y if conv.bias is None else y + conv.bias[:, None]


def _normalise_over_time(x: torch.Tensor, norm: GroupNorm) -> torch.Tensor:
    """``norm(x)`` without padding, by torch's kernel, which is fast but exact for centred values only."""
    exact = at_least_float32(x)
    # every channel is a group, in all models there are
    assert norm.num_groups == norm.num_channels
    centred = exact - exact.mean(-1, keepdim=True)
    weight, bias = (None if p is None else p.to(exact.dtype) for p in (norm.weight, norm.bias))
    return F.group_norm(centred, norm.num_groups, weight, bias, norm.eps).to(x.dtype)


def _masked_norm(norm: nn.Module) -> nn.Module:
    if isinstance(norm, nn.GroupNorm):
        masked: nn.Module = GroupNorm(norm.num_groups, norm.num_channels, norm.eps)
    elif isinstance(norm, nn.LayerNorm):
        masked = ChannelLayerNorm(norm.normalized_shape[0], norm.eps)
    else:
        raise AssertionError(f"a feature extractor with a {type(norm).__name__} is not known")
    masked.weight, masked.bias = norm.weight, norm.bias  # type: ignore[assignment]
    return masked


class ConvStack(nn.Module):
    """All convolutions of the feature extractor.

    Args:
        source: the transformers module, with ``conv_layers``.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.conv_layers = nn.ModuleList(ConvLayer(layer) for layer in source.conv_layers)

    @property
    def has_global_norm(self) -> bool:
        """Whether the first layer normalises over the time of the whole item."""
        return isinstance(self.conv_layers[0].layer_norm, GroupNorm)

    def forward(
        self, x: torch.Tensor, padding: Padding | None = None, stats: ItemStats | None = None
    ) -> tuple[torch.Tensor, Padding | None]:
        """(batch, samples) to (batch, channels, frames), and the valid frames."""
        x = x[:, None]
        for index, layer in enumerate(self.conv_layers):
            x, padding = layer(x, padding, stats if index == 0 else None)
        return x, padding

    def collect_stats(self, x: torch.Tensor, stats: ItemStats) -> None:
        """Take what the first normalisation gets of the samples ``x`` (1, samples) into ``stats``."""
        # through the layer, not past it: a wrapper may have to gather its parameters first
        self.conv_layers[0](x[:, None], None, stats)
