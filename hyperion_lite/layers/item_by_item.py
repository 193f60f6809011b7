"""Computing a padded batch one item at a time, where that is the faster way."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from hyperion_lite.core.padding import Padding

DEVICE_TYPES = frozenset({"cpu"})
"""Where: nothing is spent on padding, an utterance fits the cache, and the result is the same to the last bit alone and in a batch."""


def is_item_by_item(x: torch.Tensor, padding: Padding | None) -> bool:
    """Whether the batch ``x`` is to be computed item by item."""
    return x.device.type in DEVICE_TYPES and (x.size(0) > 1 or padding is not None)


def map_items(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, padding: Padding | None, out_length: int
) -> torch.Tensor:
    """Apply ``function`` to the valid part of each item.

    Args:
        function: (1, length, ...) to (1, frames, features), frames <= ``out_length``.
        x: (batch, time, ...).
        padding: valid positions of axis 1.
        out_length: frames of the result.

    Returns:
        (batch, out_length, features), 0 after an item's frames.
    """
    lengths = [x.size(1)] * x.size(0) if padding is None else padding.host_lengths
    items = [function(item[None, :length])[0] for item, length in zip(x.unbind(0), lengths, strict=True)]
    return torch.stack([F.pad(item, (0, 0, 0, out_length - item.size(0))) for item in items])
