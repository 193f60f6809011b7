"""Mean and variance of an item that is seen in pieces."""

from __future__ import annotations

import torch

from hyperion_lite.layers.norm import GroupNorm


class ItemStats:
    """Mean and biased variance over time, of every channel of one item, collected piece by piece.

    Counts, means and sums of squared deviations are merged (Chan, Golub and LeVeque 1983) in float64, so that the result is that of the
    whole item whatever the pieces are.

    Attributes:
        collecting: whether pieces are still to come; set to ``False`` before :meth:`normalise`.
    """

    def __init__(self) -> None:
        self.collecting = True
        self._count = 0
        self._mean = torch.zeros(())
        self._squares = torch.zeros(())

    def add(self, piece: torch.Tensor) -> None:
        """Take in (1, channels, time)."""
        piece = piece.double()
        count = piece.size(-1)
        mean = piece.mean(-1, keepdim=True)
        squares = (piece - mean).square().sum(-1, keepdim=True)
        if self._count:
            total = self._count + count
            delta = mean - self._mean
            squares = self._squares + squares + delta.square() * (self._count * count / total)
            mean = self._mean + delta * (count / total)
            count = total
        self._count, self._mean, self._squares = count, mean, squares

    def normalise(self, x: torch.Tensor, norm: GroupNorm) -> torch.Tensor:
        """What ``norm``, with one group a channel, makes of the piece ``x`` (1, channels, time) of the item."""
        if norm.num_groups != norm.num_channels:
            raise AssertionError("statistics are kept for every channel of its own")
        exact = x if x.dtype == torch.float64 else x.float()
        centred = exact - self._mean.to(exact.dtype)
        scale = torch.rsqrt(self._squares / self._count + norm.eps).to(exact.dtype)
        y = centred * scale
        if norm.weight is not None and norm.bias is not None:
            y = y * norm.weight[:, None] + norm.bias[:, None]
        return y.to(x.dtype)
