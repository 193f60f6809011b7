"""Global response normalisation: channels compete by their energy over the whole item."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.precision import autocast_disabled


class GlobalResponseNorm(nn.Module):
    """Scale every channel by its norm over the item relative to the mean norm of the channels.

    ``x -> gamma * x * n + beta + x``, where ``g`` is the Euclidean norm of a channel over time (and frequency) and
    ``n = g / (mean of g over channels + 1e-6)``. From ConvNeXt V2 (Woo et al., 2023, arXiv:2301.00808, algorithm 1), with its start at
    the identity, ``gamma = beta = 0``. Tensors: ``gamma``, ``beta`` (1, 1, channels), or (1, 1, 1, channels) in 2-D.

    Args:
        num_channels: number of channels.
        ndim: 1 for inputs (batch, time, channels), 2 for (batch, freq, time, channels).
        eps: added to the mean norm.
    """

    bias_like: ClassVar[Collection[str]] = ("gamma", "beta")
    """Parameters that count as those of a norm for weight decay, though their shape does not tell."""

    def __init__(self, num_channels: int, ndim: Literal[1, 2] = 1, eps: float = 1e-6) -> None:
        super().__init__()
        self.ndim = ndim
        self.eps = eps
        shape = (1, *[1] * ndim, num_channels)
        self.gamma = nn.Parameter(torch.zeros(shape))
        self.beta = nn.Parameter(torch.zeros(shape))

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """Normalise; the same in ``train()`` and ``eval()``.

        Args:
            x: (batch, time, channels), or (batch, freq, time, channels); floating point.
            padding: valid positions of the time axis; ``None`` when all are. Padded positions do not count.

        Returns:
            A tensor like ``x``; ``beta`` at padded positions.
        """
        x = x if padding is None else padding.fill(x, dim=-2)
        with autocast_disabled(x):
            # squares of half precision overflow; asking for the dtype keeps no copy in it for the gradient
            dtype = torch.promote_types(x.dtype, torch.float32)
            norms = torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim() - 1)), keepdim=True, dtype=dtype)
            scale = norms / (norms.mean(dim=-1, keepdim=True) + self.eps)
        return torch.addcmul(x + self.beta.to(x.dtype), x, (self.gamma * scale).to(x.dtype))

    def extra_repr(self) -> str:
        return f"{self.gamma.size(-1)}, ndim={self.ndim}, eps={self.eps}"
