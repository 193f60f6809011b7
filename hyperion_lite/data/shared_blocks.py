"""Shared memory that carries one batch after another from a worker process to the main one.

The system clears each page of new shared memory and hands it out by itself, to the process that writes the batch and once more to the
one that reads it, which for uncompressed audio takes as long as reading the file. A :class:`BlockPool` in the worker therefore keeps the
memory of its batches, and takes a block again when nothing can reach what it held before.

Each block begins with a byte that says who has it. The worker sets it when the block leaves in a batch; the :class:`BlockReceiver` in the
main process clears it. Nothing else passes between the two: a block belongs to one worker of one loader, so that neither a worker that
ended nor an iterator that was given up can free a block of another. A block that gets lost on the way stays set and is not used again.
Neither is one whose batch was alive when the main process forked: the child may hold that batch, and nobody could tell.

"Nothing can reach it" is asked of the memory itself (:class:`Loan`), in both processes: there is no clean-up function that could run
early, late or in another thread.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

SMALL_BYTES = 1 << 16
"""Tensors up to this size travel as bytes: shared memory would not pay for them."""

_HEADER_BYTES = 64  # the byte that says who has the block, and what keeps the tensors behind it aligned
_FREE, _SENT, _GIVEN_UP = 0, 1, 2


class Loan:
    """A tensor over a part of a block, and whether anything can still reach that memory.

    Args:
        block: (capacity,) uint8.
        num_bytes: size of the tensor.
    """

    def __init__(self, block: torch.Tensor, num_bytes: int) -> None:
        # An array and a storage of its own for each loan. The storage keeps the array, every tensor keeps its storage, and every
        # numpy view of a tensor keeps the tensor.
        array = block.numpy()[_HEADER_BYTES : _HEADER_BYTES + num_bytes]
        tensor = torch.from_numpy(array)
        self._array, self._storage = weakref.ref(array), StorageWeakRef(tensor.untyped_storage())
        self._tensor: torch.Tensor | None = tensor

    def tensor(self) -> torch.Tensor:
        """(num_bytes,) uint8; handed out once, so that the loan itself keeps nothing."""
        tensor, self._tensor = self._tensor, None
        if tensor is None:
            raise RuntimeError("the tensor of this loan was handed out already")
        return tensor

    @property
    def expired(self) -> bool:
        """No tensor, storage or array over this memory lives any more."""
        # Both are needed: a storage that torch moves to other shared memory, to send it to another process, lets go of its array,
        # while numpy views made before still look at the old place and keep the storage.
        return self._tensor is None and self._array() is None and self._storage.expired()


@dataclass(frozen=True)
class Place:
    """Where in which block a tensor lies."""

    block: int
    first_byte: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Delivery:
    """What the main process must know to find the tensors of a batch.

    Attributes:
        receiver: who can open it.
        pool: the pool of the blocks.
        places: where each tensor lies.
        sizes: how many bytes of each block are used.
        new: the memory of blocks that come for the first time.
        dropped: blocks that will not come any more.
    """

    receiver: str
    pool: str
    places: dict[str, Place]
    sizes: dict[int, int]
    new: dict[int, torch.Tensor]
    dropped: list[int]


@dataclass(eq=False)
class _Block:
    number: int
    memory: torch.Tensor
    loan: Loan | None = None
    used_bytes: int = 0
    sent: bool = False
    known: bool = False
    _flags: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._flags = self.memory.numpy()

    @property
    def capacity(self) -> int:
        return len(self._flags) - _HEADER_BYTES

    def is_free(self) -> bool:
        return self._flags[0] == _FREE and (self.loan is None or self.loan.expired)

    def lend(self, num_bytes: int) -> torch.Tensor:
        self.loan, self.used_bytes, self.sent = Loan(self.memory, num_bytes), num_bytes, False
        return self.loan.tensor()

    def send(self) -> None:
        self._flags[0], self.sent = _SENT, True

    def is_given_up(self) -> bool:
        return self._flags[0] == _GIVEN_UP

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        # whatever lies in the memory is what was last lent: as long as anything of that lives, the block is not lent again
        offset = tensor.data_ptr() - self.memory.data_ptr() - _HEADER_BYTES
        return offset if 0 <= offset < self.used_bytes and tensor.is_contiguous() else None


class BlockPool:
    """The blocks of a worker process.

    Args:
        receiver: token of the receiver in the main process.
        depth: number of batches that are on their way or in use at a time.
    """

    def __init__(self, receiver: str, depth: int) -> None:
        self.receiver, self.depth = receiver, depth
        self.id = uuid.uuid4().hex
        self._blocks: list[_Block] = []
        self._dropped: list[int] = []
        self._count = 0
        self._taken, self._per_batch = 0, 1

    def take(self, num_bytes: int) -> torch.Tensor | None:
        """(num_bytes,) uint8, uninitialised; ``None`` where all blocks are in use."""
        self._taken += 1
        self._per_batch = max(self._per_batch, self._taken)
        for block in [block for block in self._blocks if block.is_given_up()]:
            self._remove(block)
        free = sorted((block for block in self._blocks if block.is_free()), key=lambda block: block.capacity)
        for block in free:
            if block.capacity >= num_bytes:
                return block.lend(num_bytes)
        if len(self._blocks) >= self.depth * self._per_batch:
            if not free:
                return None
            self._remove(free[0])
        self._blocks.append(_Block(self._count, _new_memory(num_bytes)))
        self._count += 1
        return self._blocks[-1].lend(num_bytes)

    def give_up(self) -> None:
        """Never use again the blocks that are not free now."""
        for block in [block for block in self._blocks if not block.is_free()]:
            self._remove(block)

    def _remove(self, block: _Block) -> None:
        self._blocks.remove(block)
        if block.known:
            self._dropped.append(block.number)

    def send(self, tensors: Mapping[str, torch.Tensor]) -> Delivery | None:
        """How those of ``tensors`` travel that lie in blocks. Called once for each batch.

        A block leaves once each time that it was taken. What else lies in it, in this batch or a later one, is an ordinary tensor for
        torch, which copies it.
        """
        self._taken = 0
        places: dict[str, Place] = {}
        used: dict[int, _Block] = {}
        for name, tensor in tensors.items():
            for block in self._blocks:
                offset = block.offset_of(tensor)
                if offset is not None and not block.sent:
                    places[name] = Place(block.number, offset, tuple(tensor.shape), tensor.dtype)
                    used[block.number] = block
        if not places:
            return None
        new = {number: block.memory for number, block in used.items() if not block.known}
        for block in used.values():
            block.send()
            block.known = True
        dropped, self._dropped = self._dropped, []
        sizes = {number: block.used_bytes for number, block in used.items()}
        return Delivery(self.receiver, self.id, places, sizes, new, dropped)


def _new_memory(num_bytes: int) -> torch.Tensor:
    # an eighth more at most, so that batches of similar sizes fit; pages that are never written take no memory
    step = 1 << max(num_bytes.bit_length() - 4, 12)
    storage = torch.UntypedStorage._new_shared(_HEADER_BYTES + -(-num_bytes // step) * step)
    memory = torch.empty(0, dtype=torch.uint8).set_(storage)
    memory[0] = _FREE
    return memory


class BlockReceiver:
    """The main process's end: knows the blocks of the workers of a loader, and frees them.

    Attributes:
        token: names the receiver in deliveries.
    """

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        self._memory: dict[tuple[str, int], torch.Tensor] = {}
        self._loans: list[tuple[np.ndarray, Loan]] = []
        self._lock = threading.Lock()  # batches arrive in the thread that pins them, too
        _RECEIVERS[self.token] = self

    def open(self, delivery: Delivery) -> dict[str, torch.Tensor]:
        """The tensors of a delivery."""
        with self._lock:
            for number in delivery.dropped:
                self._memory.pop((delivery.pool, number), None)
            for number, memory in delivery.new.items():
                self._memory[delivery.pool, number] = memory
            parts: dict[int, torch.Tensor] = {}
            for number, num_bytes in delivery.sizes.items():
                memory = self._memory[delivery.pool, number]
                loan = Loan(memory, num_bytes)
                self._loans.append((memory.numpy(), loan))
                parts[number] = loan.tensor()
        return {name: _at(parts[place.block], place) for name, place in delivery.places.items()}

    def release(self) -> None:
        """Free the blocks that nothing can reach any more."""
        with self._lock:
            kept = []
            for flags, loan in self._loans:
                if not loan.expired:
                    kept.append((flags, loan))
                elif flags[0] == _SENT:
                    flags[0] = _FREE
            self._loans = kept

    def give_up(self) -> None:
        """Never free the blocks of the batches that live now."""
        self.release()
        with self._lock:
            for flags, _ in self._loans:
                flags[0] = _GIVEN_UP


def _at(part: torch.Tensor, place: Place) -> torch.Tensor:
    num_bytes = place.dtype.itemsize
    for size in place.shape:
        num_bytes *= size
    return part[place.first_byte : place.first_byte + num_bytes].view(place.dtype).view(place.shape)


# Batches find their receiver when they are unpickled, so that those which nobody takes are freed, too.
_RECEIVERS: weakref.WeakValueDictionary[str, BlockReceiver] = weakref.WeakValueDictionary()


def receive(delivery: Delivery) -> dict[str, torch.Tensor] | None:
    """The tensors of a delivery; ``None`` where its loader is gone."""
    receiver = _RECEIVERS.get(delivery.receiver)
    return None if receiver is None else receiver.open(delivery)


class _Worker:
    """What this process has, if it is a worker."""

    pool: BlockPool | None = None


def worker_pool() -> BlockPool | None:
    """The pool of this process; ``None`` where it is not the worker of a loader that has one."""
    return _Worker.pool


def start_worker_pool(receiver: str, depth: int) -> None:
    """Give this worker process a pool."""
    _Worker.pool = BlockPool(receiver, depth)


def _before_fork() -> None:
    for receiver in list(_RECEIVERS.values()):
        receiver.give_up()
    if _Worker.pool is not None:
        _Worker.pool.give_up()


def _in_forked_child() -> None:
    # what was inherited belongs to the parent; a lock may even be held by a thread that is not here
    _RECEIVERS.clear()
    _Worker.pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_forked_child)
