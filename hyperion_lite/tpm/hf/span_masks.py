"""The masks that wav2vec 2.0 models put over their hidden sequences in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hyperion_lite.core.padding import Padding


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


def mask_spans(
    x: torch.Tensor, padding: Padding | None, settings: Mapping[str, Any], embedding: torch.Tensor | float
) -> torch.Tensor:
    """Mask spans of frames, and of features, of a batch in training.

    Args:
        x: (batch, frames, features).
        padding: valid frames; spans lie within them.
        settings: architecture keys of the model, ``mask_time_*`` and ``mask_feature_*``.
        embedding: (features,), what masked frames become. Masked features become 0.

    Returns:
        A tensor like ``x``. Also where no span was drawn it depends on ``embedding``, which then gets a gradient of zero: distributed
        training waits for one.
    """
    batch, frames, features = x.shape
    if settings["mask_time_prob"] > 0:
        sizes = [frames] * batch if padding is None else padding.host_lengths
        spans = _draw(sizes, frames, settings, "time").to(x.device)
        value = embedding.to(x.dtype) if isinstance(embedding, torch.Tensor) else embedding
        x = torch.where(spans[:, :, None], value, x)
    if settings["mask_feature_prob"] > 0:
        spans = _draw([features] * batch, features, settings, "feature").to(x.device)
        x = torch.where(spans[:, None, :], 0.0, x)
    return x


def _draw(sizes: Sequence[int], total: int, settings: Mapping[str, Any], axis: str) -> torch.Tensor:
    prob, length, least = (settings[f"mask_{axis}_{what}"] for what in ("prob", "length", "min_masks"))
    return draw_spans(sizes, total, prob, length, least)
