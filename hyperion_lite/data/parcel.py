"""Batches on their way from a worker process to the main one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_SMALL_BYTES = 1 << 16


class Parcel:
    """A batch whose small tensors travel as bytes.

    torch passes each tensor in a file of shared memory of its own, for which the two processes shake hands: some tenths of a
    millisecond, worth it for the audio of a batch but not for its lengths and labels.

    Args:
        batch: what the collating function made; only the tensors right in a dictionary are packed.
    """

    def __init__(self, batch: Any) -> None:
        self.batch, self._packed = batch, frozenset[str]()
        if type(batch) is dict:
            self._packed = frozenset(name for name, value in batch.items() if _is_small(value))
            self.batch = {name: value.numpy() if name in self._packed else value for name, value in batch.items()}

    def open(self) -> Any:
        """The batch."""
        if not self._packed:
            return self.batch
        return {name: torch.from_numpy(v) if name in self._packed else v for name, v in self.batch.items()}

    def pin_memory(self) -> Parcel:
        """The batch in page-locked memory; torch's loader calls this."""
        pinned = Parcel.__new__(Parcel)
        pinned.batch, pinned._packed = torch.utils.data._utils.pin_memory.pin_memory(self.open()), frozenset()
        return pinned


class ParcelCollate:
    """A collating function whose batches are parcels.

    Args:
        collate: the collating function.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, items: list[Any]) -> Parcel:
        """A parcel of the batch of ``items``."""
        return Parcel(self.collate(items))


def _is_small(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.dtype is not torch.bfloat16
        and not value.requires_grad
        and 0 < value.numel() * value.element_size() <= _SMALL_BYTES
    )
