"""What of a batch goes to the device, how many items it has, and which of them only fill it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def to_device(batch: Any, device: torch.device) -> Any:
    """A copy of ``batch`` with every tensor on ``device``; ids, numbers and other metadata stay as they are.

    Args:
        batch: tensors in mappings, lists and tuples, nested as you like. It is not changed.
        device: pinned tensors are copied without waiting.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)) and any(isinstance(v, (torch.Tensor, Mapping, list, tuple)) for v in batch):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def batch_size(batch: Any, input_key: str | None = None) -> int:
    """Number of items: the first axis of ``batch[input_key]``, or of the first tensor that has axes.

    Raises:
        ValueError: there is no such tensor.
    """
    if isinstance(batch, Mapping):
        chosen = batch.get(input_key) if input_key is not None else None
        values: Sequence[Any] = [chosen] if isinstance(chosen, torch.Tensor) else list(batch.values())
    elif isinstance(batch, torch.Tensor):
        values = [batch]
    else:
        values = list(batch)
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return int(value.size(0))
    raise ValueError(
        "the batch holds no tensor with a batch axis, so its number of items is unknown; override batch_size"
    )


def audio_seconds(batch: Any, input_key: str) -> float:
    """Seconds of audio in a batch of waveforms with ``<input_key>_lengths`` and ``sample_freq``; 0 for other batches."""
    if not isinstance(batch, Mapping):
        return 0.0
    lengths, frequency = batch.get(f"{input_key}_lengths"), batch.get("sample_freq")
    if not isinstance(lengths, torch.Tensor) or not isinstance(frequency, torch.Tensor) or lengths.is_cuda:
        return 0.0
    return float((lengths / frequency).sum())


def batch_ids(batch: Any, id_key: str = "id") -> list[str]:
    """Ids of the items, for messages; empty when the batch has none."""
    ids = batch.get(id_key) if isinstance(batch, Mapping) else None
    return [str(i) for i in ids] if isinstance(ids, (list, tuple)) else []


def without_repeats(batch: Any, repeat_key: str = "repeat") -> Any:
    """``batch`` without the items that only fill up the ranks; the same object when there are none.

    Args:
        batch: a mapping; its entry ``repeat_key`` is (batch,) bool, ``True`` for such an item. Every tensor and list with one entry per
            item is reduced.
    """
    repeat = batch.get(repeat_key) if isinstance(batch, Mapping) else None
    if not isinstance(repeat, torch.Tensor) or not bool(repeat.any()):
        return batch
    keep = torch.nonzero(~repeat.bool()).flatten()
    size = repeat.size(0)
    kept: dict[Any, Any] = {}
    for key, value in batch.items():
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.size(0) == size:
            kept[key] = value[keep.to(value.device)]
        elif isinstance(value, list) and len(value) == size:
            kept[key] = [value[i] for i in keep.tolist()]
        else:
            kept[key] = value
    return kept
