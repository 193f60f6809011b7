"""Items whose waveforms lie in one array already, as the rows of the batch that will be made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from hyperion_lite.data.shared_blocks import SMALL_BYTES, worker_pool


class ItemList(list[dict[str, Any]]):
    """A list of items, with the array that their waveforms were read into.

    Reading each waveform into memory of its own and copying it into the batch would touch twice the memory, which for uncompressed
    files takes as long as the reading.

    Args:
        items: the items.
        rows: (num_items, num_samples) float32; the waveforms of the items are its rows, where they were read into it.
    """

    def __init__(self, items: Iterable[dict[str, Any]], rows: torch.Tensor) -> None:
        super().__init__(items)
        self.rows = rows


def joined_rows(items: Sequence[Mapping[str, Any]], field: str, order: Sequence[int]) -> torch.Tensor | None:
    """The batch of a field, if the values are the rows of one array from first to last; else ``None``."""
    if not isinstance(items, ItemList) or len(items) != len(items.rows) or list(order) != list(range(len(items))):
        return None
    rows, step = items.rows, items.rows.stride(0) * items.rows.element_size()
    for index, item in enumerate(items):
        value = item.get(field)
        if not isinstance(value, torch.Tensor) or value.dtype != rows.dtype or value.shape != rows.shape[1:]:
            return None
        if value.data_ptr() != rows.data_ptr() + index * step:
            return None
    return rows


class RowAllocator:
    """Rows of one array for the waveforms of a batch, whose common length the first waveform tells.

    Args:
        num_rows: number of waveforms.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.rows: torch.Tensor | None = None
        self._array: np.ndarray | None = None

    def row(self, index: int, num_samples: int) -> np.ndarray:
        """Row ``index``; another new array where ``num_samples`` is not the length of the rows."""
        if self._array is None:
            self.rows = new_cpu_tensor((self.num_rows, num_samples), torch.float32)
            self._array = self.rows.numpy()
        if num_samples != self._array.shape[1]:
            return np.empty(num_samples, np.float32)
        return self._array[index]


def new_cpu_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor for a batch, in shared memory in the worker process of a loader."""
    num_bytes, pool = math.prod(shape) * dtype.itemsize, worker_pool()
    small = SMALL_BYTES if pool is not None else 0
    if num_bytes <= small or torch.utils.data.get_worker_info() is None:
        # numpy asks for huge pages for large arrays, torch does not
        return torch.from_numpy(np.empty(shape, dtype=torch.empty(0, dtype=dtype).numpy().dtype))
    memory = None if pool is None else pool.take(num_bytes)
    if memory is not None:
        return memory.view(dtype).view(*shape)
    # A batch leaves its worker in shared memory. Made there, as torch's own collation does it, it needs no copy.
    storage = torch.UntypedStorage._new_shared(num_bytes)
    return torch.empty(0, dtype=dtype).set_(storage).view(*shape)
