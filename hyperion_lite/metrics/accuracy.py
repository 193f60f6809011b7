"""Classification accuracy."""

from __future__ import annotations

import torch


def categorical_accuracy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Share of items whose largest logit is the target's.

    Args:
        logits: (batch, num_classes) floating point.
        y: (batch,) integer classes.

    Returns:
        0-dim float32 on the device of ``logits``.

    Raises:
        ValueError: shapes that do not fit, or an empty batch.
    """
    if logits.dim() != 2 or y.shape != logits.shape[:1] or y.numel() == 0:
        raise ValueError(
            f"logits must be (batch, num_classes) and y (batch,) with batch >= 1, got {tuple(logits.shape)} and {tuple(y.shape)}"
        )
    return (logits.argmax(dim=1) == y).float().mean()
