"""Batches on their way from a worker process to the main one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from hyperion_lite.data.shared_blocks import (
    SMALL_BYTES,
    BlockPool,
    BlockReceiver,
    Delivery,
    receive,
    start_worker_pool,
    worker_pool,
)


class Parcel:
    """A batch whose small tensors travel as bytes, and large ones in blocks that are used again where there is a pool of them.

    torch passes each tensor in a file of shared memory of its own, for which the two processes shake hands: some tenths of a
    millisecond, worth it for the audio of a batch but not for its lengths and labels.

    Args:
        batch: what the collating function made; only the tensors right in a dictionary are packed.
        pool: the blocks of the worker process.
    """

    def __init__(self, batch: Any, pool: BlockPool | None = None) -> None:
        self.batch, self._packed = batch, frozenset[str]()
        self._delivery: Delivery | None = None
        self._tensors: dict[str, torch.Tensor] | None = {}
        if type(batch) is dict:
            plain = {name: value for name, value in batch.items() if _is_plain(value)}
            self._packed = frozenset(name for name, value in plain.items() if value.nbytes <= SMALL_BYTES)
            self.batch = {name: value.numpy() if name in self._packed else value for name, value in batch.items()}
            if pool is not None:
                self._delivery = pool.send({name: plain[name] for name in plain.keys() - self._packed})
        if self._delivery is not None:
            self.batch.update(dict.fromkeys(self._delivery.places))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._delivery is not None:
            self._tensors, self._delivery = receive(self._delivery), None

    def open(self) -> Any:
        """The batch.

        Raises:
            RuntimeError: the loader that the batch was made for is gone.
        """
        if self._tensors is None:
            raise RuntimeError("a batch of a loader that is gone cannot be opened")
        if not self._packed and not self._tensors:
            return self.batch
        batch = {name: torch.from_numpy(v) if name in self._packed else v for name, v in self.batch.items()}
        return batch | self._tensors

    def pin_memory(self) -> Parcel:
        """The batch in page-locked memory; torch's loader calls this."""
        pinned = copy.copy(self)
        pinned.batch, pinned._packed, pinned._tensors = pin_memory(self.open()), frozenset(), {}
        return pinned


class ParcelCollate:
    """A collating function whose batches are parcels.

    Args:
        collate: the collating function.
        depth: number of batches of each worker that are on their way or in use at a time; more are possible but made in new memory.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], depth: int = 4) -> None:
        self.collate, self.depth = collate, depth
        self._receiver: str | None = None

    def new_receiver(self) -> BlockReceiver:
        """The receiver of the batches of workers that will be started."""
        receiver = BlockReceiver()
        self._receiver = receiver.token
        return receiver

    def start_worker(self) -> None:
        """Called in a worker process before its first batch."""
        if self._receiver is not None:
            start_worker_pool(self._receiver, self.depth)

    def __call__(self, items: list[Any]) -> Parcel:
        """A parcel of the batch of ``items``."""
        return Parcel(self.collate(items), worker_pool())


def _is_plain(value: Any) -> bool:
    # a tensor that its values, shape and dtype tell all about
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.dtype is not torch.bfloat16
        and not value.requires_grad
        and not (value.is_conj() or value.is_neg())
        and value.numel() > 0
    )
