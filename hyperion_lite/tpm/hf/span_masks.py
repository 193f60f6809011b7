"""The masks that wav2vec 2.0 models put over their hidden sequences in training."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def draw_spans(sizes: Sequence[int], total: int, probability: float, width: int, least: int) -> torch.Tensor:
    """Spans of ``width`` positions for each item, within its own size.

    An item of ``n`` positions gets ``floor(probability * n / width + u)`` spans, u uniform in [0, 1), but at least ``least`` and at most
    ``n // width``; their starts are drawn without replacement, they may overlap. An item shorter than ``width`` gets none.
    Random numbers are torch's, drawn on the CPU.

    Args:
        sizes: positions of every item.
        total: size of the axis.

    Returns:
        (batch, total) bool on the CPU, True = masked.

    Reference: Baevski et al., "wav2vec 2.0: a framework for self-supervised learning of speech representations", 2020.
    """
    mask = torch.zeros(len(sizes), total, dtype=torch.bool)
    for row, size in zip(mask, sizes, strict=True):
        wanted = int(probability * size / width + float(torch.rand((), dtype=torch.float64)))
        number = min(max(wanted, least), size // width)
        if number > 0:
            starts = torch.randperm(size - width + 1)[:number]
            row[(starts[:, None] + torch.arange(width)).flatten()] = True
    return mask
