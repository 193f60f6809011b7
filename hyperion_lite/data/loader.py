"""Batches for a training loop, with a position that means *consumed*.

Workers read ahead: when the training loop has taken batch 10, they may be at batch 18. What a checkpoint needs is 10. The loader
counts what it hands out, so that its state gives exactly the remaining batches, whatever the number of workers and their prefetch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from hyperion_lite.core.config import Configurable
from hyperion_lite.data.epoch_plan import EpochAccount
from hyperion_lite.data.hyper_sampler import HyperSampler
from hyperion_lite.data.parcel import Parcel, ParcelCollate
from hyperion_lite.data.shared_blocks import BlockReceiver

Collate = Callable[[list[Any]], Any]


class ResumableLoader:
    """Iterates over the collated batches of one epoch after another. Made by :func:`make_loader`.

    Each ``iter()`` runs through the current epoch, from the restored position on the first time. Choose the next epoch with
    :meth:`set_epoch`. An iterator that is given up leaves the position where it was; the next one begins the epoch anew, unless
    :meth:`set_epoch` or :meth:`load_state_dict` is called. There is one position, that of the newest iterator: an older one cannot be
    continued.

    Attributes:
        dataset: what is read.
        sampler: what decides on the batches.
    """

    def __init__(self, dataset: Any, sampler: HyperSampler, loader_options: Mapping[str, Any]) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self._consumed = sampler.batch
        self._newest = 0
        self._blocks = BlockReceiver()
        # a generator of its own, so that making an iterator draws nothing from the random state that training uses
        generator = torch.Generator().manual_seed(sampler.seed)
        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_sampler=sampler, generator=generator, **loader_options
        )

    def __len__(self) -> int:
        """Number of batches of a whole epoch."""
        return len(self.sampler)

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self.sampler.epoch

    @property
    def batch(self) -> int:
        """Number of batches of the current epoch that the training loop has taken."""
        return self._consumed

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return self._loader.num_workers

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Choose the epoch, and the batch that the next iterator begins with.

        Raises:
            ValueError: a number is negative or not whole.
        """
        self.sampler.set_epoch(epoch, batch)
        self._consumed = self.sampler.start_batch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.sampler.epoch)  # for keys that carry no epoch; those of the sampler do

    def __iter__(self) -> Iterator[Any]:
        begin = self.sampler.start_batch
        self._consumed = begin
        self._newest += 1
        if isinstance(self._loader.collate_fn, ParcelCollate) and self._loader._iterator is None:
            # new workers have new blocks
            self._blocks = self._loader.collate_fn.new_receiver()
        return self._iterate(begin, iter(self._loader), self._newest, self._blocks)

    def _iterate(self, begin: int, batches: Iterator[Any], number: int, blocks: BlockReceiver) -> Iterator[Any]:
        while True:
            if number != self._newest:
                # the workers that are kept serve one iterator: two would silently share the batches between them
                raise RuntimeError(
                    "this iterator of the loader was replaced by a newer one; make a second loader to read two at a time"
                )
            blocks.release()
            try:
                batch = next(batches)
            except StopIteration:
                return
            begin += 1
            self._consumed = begin
            # handed over without keeping it: the memory of a batch is free when the training loop lets go of it
            taken = [batch.open() if isinstance(batch, Parcel) else batch]
            del batch
            yield taken.pop()

    def stop_workers(self) -> None:
        """End worker processes that are kept from epoch to epoch; the next iterator starts new ones."""
        self._loader._iterator = None

    def account(self) -> EpochAccount:
        """What the current epoch uses, repeats, drops and pads."""
        return self.sampler.account()

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state at the position consumed, in plain JSON types. This is what a checkpoint should hold."""
        return self.sampler.state_dict(batch=self._consumed)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch that was consumed when ``state`` was saved.

        Raises:
            ValueError: the state of another configuration or manifest (names what differs), or one that this number of ranks cannot
                continue.
        """
        self.sampler.load_state_dict(state)
        self._consumed = self.sampler.start_batch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.sampler.epoch)


def seed_worker(worker_id: int) -> None:
    """Seed the global generators of a worker process.

    A safety net for code that draws from them: what the package draws for an item depends on the item alone.
    """
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)


def _start_worker(collate: ParcelCollate, worker_id: int) -> None:
    seed_worker(worker_id)
    collate.start_worker()


def make_loader(
    dataset: Any,
    sampler: HyperSampler,
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool | Literal["auto"] = "auto",
    persistent_workers: bool | None = None,
    timeout: float = 0.0,
    multiprocessing_context: str | None = None,
    collate_fn: Collate | None = None,
) -> ResumableLoader:
    """A loader whose position is what the training loop has consumed.

    Args:
        dataset: maps a sampler's keys to items; its ``collate`` makes batches of them.
        sampler: yields the keys of each batch.
        num_workers: processes that read; 0 reads in this one.
        prefetch_factor: batches that each worker reads ahead; by default 2.
        pin_memory: copy batches to page-locked memory; ``"auto"`` where CUDA is available.
        persistent_workers: keep the workers from epoch to epoch; by default yes.
        timeout: seconds to wait for a worker before giving up; 0 for no limit.
        multiprocessing_context: how workers are started (``fork``, ``spawn``, ``forkserver``); by default as the platform does.
        collate_fn: makes a batch of items; by default ``dataset.collate``, else torch's.

    Raises:
        ValueError: an option is out of range.
    """
    if num_workers < 0:
        raise ValueError(f"num_workers must be at least 0, got {num_workers}")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor must be at least 1, got {prefetch_factor}")
    if pin_memory not in (True, False, "auto"):
        raise ValueError(f"pin_memory must be true, false or 'auto', got {pin_memory!r}")
    if collate_fn is None:
        collate_fn = getattr(dataset, "collate", default_collate)
    prefetch_factor = prefetch_factor or 2
    parcels = ParcelCollate(collate_fn, depth=prefetch_factor + 2)
    options: dict[str, Any] = {
        "num_workers": num_workers,
        "pin_memory": torch.cuda.is_available() if pin_memory == "auto" else pin_memory,
        "collate_fn": parcels if num_workers else collate_fn,
        "timeout": timeout if num_workers else 0.0,
    }
    if num_workers:
        options["prefetch_factor"] = prefetch_factor
        options["persistent_workers"] = True if persistent_workers is None else persistent_workers
        options["worker_init_fn"] = partial(_start_worker, parcels)
        options["multiprocessing_context"] = multiprocessing_context
    return ResumableLoader(dataset, sampler, options)


class LoaderFactory(Configurable):
    """:func:`make_loader` as a configurable class, for command lines and configuration files."""

    config_method: ClassVar[str] = "create"
    config_exclude = ("dataset", "sampler", "collate_fn")

    create = staticmethod(make_loader)
