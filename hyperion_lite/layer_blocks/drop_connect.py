"""Randomly leaving out the branch of a residual block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def check_rate(rate: float, name: str) -> float:
    """``rate`` if it is in [0, 1).

    Raises:
        ValueError: it is not.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {rate}")
    return rate


def linear_rates(max_rate: float, num_blocks: int) -> Iterator[float]:
    """Rates that grow linearly from 0 at the first block to ``max_rate`` at the last; a single block gets ``max_rate``."""
    # one at a time: the number of blocks can come from a file that nobody vouches for
    return (max_rate * index / (num_blocks - 1) if num_blocks > 1 else max_rate for index in range(num_blocks))


class DropConnect(nn.Module):
    """In ``train()``, zeroes whole items with probability ``rate`` and scales the others by ``1 / (1 - rate)``.

    Args:
        rate: probability, in [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = check_rate(rate, "drop_connect_rate")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, ...) -> the same shape; identity in ``eval()``."""
        if not self.training or self.rate == 0.0:
            return x
        keep = torch.rand(x.size(0), *[1] * (x.dim() - 1), device=x.device) >= self.rate
        return x * (keep.to(x.dtype) / (1.0 - self.rate))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
