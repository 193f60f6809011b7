"""Where the windows of a sliding-window extraction lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SlidingEmbeddings:
    """Embeddings of overlapping windows.

    Attributes:
        embeddings: (batch, max_windows, embed_dim); zeros beyond ``num_windows``.
        num_windows: (batch,) int64, windows of each item.
        times: (batch, max_windows, 2) float64 seconds, start and end of the stretch that each window stands for; zeros beyond
            ``num_windows``.
    """

    embeddings: torch.Tensor
    num_windows: torch.Tensor
    times: torch.Tensor


def window_starts(length: int, window: int, shift: int) -> list[int]:
    """First samples of the windows of an item of ``length`` samples: ``max(1, (length - window + shift) // shift)`` of them."""
    return [i * shift for i in range(max(1, (length - window + shift) // shift))]


def window_times(length: int, window: int, shift: int, sample_frequency: float) -> list[tuple[float, float]]:
    """Stretches of time that the windows stand for: centre +- shift/2; the first and last reach to the ends of the item."""
    starts = window_starts(length, window, shift)
    times = [
        ((s + (window - shift) / 2) / sample_frequency, (s + (window + shift) / 2) / sample_frequency) for s in starts
    ]
    times[0] = (0.0, times[0][1])
    times[-1] = (times[-1][0], length / sample_frequency)
    return times
