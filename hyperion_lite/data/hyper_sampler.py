"""The contract of every sampler, and what they share.

**Plan.** An epoch is a plan: a sequence of global batches that is a pure function of (manifest, options, seed, epoch) and, where hard
prototypes are mined, of the prototype table, which is part of the sampler's state. Nothing is drawn while iterating. The plan is the
same for every rank, and for every number of ranks that divides the limits.

**Limits** are global. ``max_batch_size`` is rounded down to a multiple of the number of ranks. ``max_batch_length`` bounds (number of
items) x (longest item) of a global batch; an item that is longer than a rank's share of it cannot be placed. How many items it allows
does not depend on the number of ranks, so that a rank's part can have one item more than its share holds; ``size_multiple``, set to a
multiple of the number of ranks, rules that out. ``max_batches_per_epoch`` counts the batches of all ranks together.

**Ranks.** Every rank yields its part of every global batch, so that all yield the same number. The parts have like cost and differ by
at most one item. The last batch is filled up to equal parts, and so is any batch too small to give each rank its smallest part, by
repeating items; the keys of such items have ``repeat`` set, and validation metrics leave them out.

**Batches of one.** While training (``shuffle=True``, or random chunks) a rank never gets a single item, unless ``min_batch_size`` or
``max_batch_size`` asks for it: segments that only fit alone are left out and counted, a last batch takes over items of the one before.

**Position.** ``set_epoch(epoch, batch=b)`` makes the next iterator yield batches b, b + 1, ... of that epoch, in a time that does not
depend on b. Later iterators begin at 0, in the same epoch until ``set_epoch`` is called again. ``len()`` is the number of batches of
the whole epoch, exactly. ``state_dict()`` holds the position up to which the newest iterator was taken; a loader with workers takes
batches ahead of the training loop, so with workers save :meth:`hyperion_lite.data.loader.ResumableLoader.state_dict`.

**Account.** :meth:`HyperSampler.account` says what an epoch uses, repeats, drops and pads; rank 0 logs it when an epoch ends.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch.distributed as dist
from torch.utils.data import Sampler

from hyperion_lite.core.config import Configurable
from hyperion_lite.data.batch_limits import (
    BatchOptions,
    EmptySamplerError,
    Limits,
    check_resumable,
    items_per_rank,
    resolve_limits,
)
from hyperion_lite.data.batch_split import deal
from hyperion_lite.data.epoch_plan import EpochAccount, EpochPlan, GlobalBatch
from hyperion_lite.data.keys import ChunkKey, SamplerKey, SegmentKey
from hyperion_lite.data.numbers import whole_number
from hyperion_lite.data.rng import item_rng
from hyperion_lite.data.sampler_state import PLAN_VERSION, STATE_VERSION, check_state, config_hash
from hyperion_lite.data.segment_view import SegmentView

__all__ = ["EmptySamplerError", "EpochAccount", "HyperSampler"]

logger = logging.getLogger(__name__)


class HyperSampler(Configurable, Sampler[list[SamplerKey]]):
    """Base of the samplers: positions, ranks, state and account of a plan that a subclass makes. The contract is above.

    An instance is a ``batch_sampler`` for ``torch.utils.data.DataLoader``.

    Args:
        segments: a ``SegmentSet``, or a data set that has one.
        options: the batch limits.
        length_name: column of the lengths.
        shuffle: whether epochs differ and their order is random.
        training: whether batches of one item a rank are to be avoided.
        seed: of the plans.
        rank: of this process; by default that of ``torch.distributed``.
        num_replicas: number of ranks; by default that of ``torch.distributed``.

    Raises:
        EmptySamplerError: no segments, or limits that leave some rank without a batch.
        ValueError: an option is out of range, a length is NaN or not positive, a column is missing.
    """

    config_exclude: ClassVar[Collection[str]] = ("segments", "rank", "num_replicas")

    def __init__(
        self,
        segments: Any,
        options: BatchOptions,
        length_name: str,
        shuffle: bool,
        training: bool,
        seed: int,
        rank: int | None = None,
        num_replicas: int | None = None,
    ) -> None:
        if (rank is None) != (num_replicas is None):
            raise ValueError("give both rank and num_replicas, or neither to take them from torch.distributed")
        if rank is not None and num_replicas is not None and not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be in 0 ... {num_replicas - 1} (num_replicas={num_replicas}), got {rank}")
        self._rank, self._num_replicas = rank, num_replicas
        self.view = SegmentView(segments)
        self.options = options
        self.length_name = length_name
        self.shuffle = bool(shuffle)
        self.training = training
        self.seed = int(seed)
        if len(self.view) == 0:
            raise EmptySamplerError(f"{self.view.name} has no segments to sample from")
        self.lengths = self.view.lengths(length_name)
        self.longest_length = float(self.lengths.max())
        self.epoch = 0
        self._start = 0
        self._position = 0
        self._adopted_limits: Limits | None = None
        self._plan_cache: tuple[Any, EpochPlan] | None = None
        self._manifest: dict[str, Any] | None = None
        self.limits()

    # ---- what subclasses define -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _make_plan(self, epoch: int, limits: Limits) -> EpochPlan:
        """The plan of ``epoch``; a pure function of the arguments and what the constructor got (and the prototype table)."""

    def _plan_inputs(self) -> Any:
        """Hashable stand-in for what a plan depends on beside epoch and limits; another value discards the cached plan."""
        return None

    sorts_batches: bool = False
    """Whether the items of a rank's batch are ordered by decreasing length."""

    # ---- ranks and limits -------------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Rank of this process."""
        if self._rank is not None:
            return self._rank
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        if self._num_replicas is not None:
            return self._num_replicas
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    def limits(self) -> Limits:
        """Limits of the current epoch: those of the number of ranks, or of the interrupted epoch that is continued.

        Raises:
            EmptySamplerError: some rank would get no batch.
        """
        if self._adopted_limits is not None:
            return self._adopted_limits
        return resolve_limits(self.options, self.world_size, self.training)

    @property
    def items_per_rank(self) -> int:
        """Smallest number of items that a rank gets in a batch."""
        return items_per_rank(self.options, self.world_size, self.training)

    def rng(self, epoch: int, stream: str, counter: int = 0) -> np.random.Generator:
        """Generator for one purpose of a plan. Without ``shuffle`` all epochs share the numbers of epoch 0."""
        return item_rng(self.seed, epoch if self.shuffle else 0, "", counter, f"sampler.{stream}")

    # ---- plan -------------------------------------------------------------------------------------------------------------------

    def plan(self) -> EpochPlan:
        """The plan of the current epoch; made once, then kept until the epoch changes.

        Raises:
            EmptySamplerError: the limits leave no batch.
        """
        limits = self.limits()
        key = (self.epoch if self.shuffle else 0, limits, self._plan_inputs())
        if self._plan_cache is None or self._plan_cache[0] != key:
            self._plan_cache = None  # one plan at a time: an epoch of many segments is large
            plan = self._make_plan(self.epoch, limits)
            if plan.num_batches == 0:
                why = ", ".join(f"{count} items {reason}" for reason, count in plan.dropped.items())
                raise EmptySamplerError(
                    f"{type(self).__name__} has no batch to yield for {self.world_size} rank(s): {why or 'no items'}. "
                    "Raise max_batch_length or max_batch_size, lower min_batch_size, or turn drop_last off"
                )
            self._plan_cache = (key, plan)
        return self._plan_cache[1]

    def __len__(self) -> int:
        """Number of batches that each rank yields in a whole epoch."""
        return self.plan().num_batches

    def global_batch(self, index: int) -> GlobalBatch:
        """Batch ``index`` of the current epoch over all ranks."""
        return self.plan().batch(index)

    def rank_batch(self, index: int) -> list[SamplerKey]:
        """The keys of this rank's part of batch ``index`` of the current epoch."""
        return self._keys(self.plan().batch(index), self.epoch)

    def _keys(self, batch: GlobalBatch, epoch: int) -> list[SamplerKey]:
        positions, repeats = deal(
            batch.lengths, self.world_size, self.rank, self.items_per_rank, batch.last, self.sorts_batches
        )
        part = batch.take(positions)
        ids = self.view.take_ids(part.segments)
        first_repeat = len(ids) - repeats
        occurrences = [0] * len(ids) if part.occurrences is None else part.occurrences.tolist()
        if part.starts is None:
            return [SegmentKey(id, epoch, occurrences[i], i >= first_repeat) for i, id in enumerate(ids)]
        starts, lengths = part.starts.tolist(), part.lengths.tolist()
        return [
            ChunkKey(id, starts[i], lengths[i], epoch, occurrences[i], i >= first_repeat, part.pad_to)
            for i, id in enumerate(ids)
        ]

    # ---- iteration --------------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Choose the epoch, and the batch that the next iterator begins with.

        Raises:
            ValueError: a number is negative or not whole.
        """
        epoch, batch = whole_number("epoch", epoch), whole_number("batch", batch)
        if epoch != self.epoch:
            self._adopted_limits = None  # the interrupted epoch is over
            self._epoch_changes()
        self.epoch = epoch
        self._start = self._position = batch

    def _epoch_changes(self) -> None:
        """Called when another epoch is chosen."""

    @property
    def batch(self) -> int:
        """Position in the epoch: the batch that follows the last one taken from the newest iterator."""
        return self._position

    @property
    def start_batch(self) -> int:
        """The batch that the next iterator begins with."""
        return self._start

    def __iter__(self) -> Iterator[list[SamplerKey]]:
        """This rank's batches of the current epoch, from :attr:`start_batch` on.

        Raises:
            ValueError: the epoch has fewer batches than that.
        """
        plan, begin = self.plan(), self._start
        if begin > plan.num_batches:
            raise ValueError(f"epoch {self.epoch} has {plan.num_batches} batches; it cannot begin with batch {begin}")
        self._position = begin
        return self._iterate(plan, begin, self.epoch)

    def _iterate(self, plan: EpochPlan, begin: int, epoch: int) -> Iterator[list[SamplerKey]]:
        # Only an iterator that is used takes the start position: torch's DataLoader makes two and uses the second.
        self._start = 0
        for index in range(begin, plan.num_batches):
            keys = self._keys(plan.batch(index), epoch)
            self._position = index + 1
            yield keys
        if self.rank == 0 and begin < plan.num_batches and logger.isEnabledFor(logging.INFO):
            logger.info("%s", self._account_of(plan, epoch))

    def account(self) -> EpochAccount:
        """What the current epoch uses, repeats, drops and pads. It is a property of the plan, not of how far it was taken."""
        return self._account_of(self.plan(), self.epoch)

    def _account_of(self, plan: EpochPlan, epoch: int) -> EpochAccount:
        return plan.account(epoch, len(self.view), self.world_size, self.items_per_rank)

    # ---- state ------------------------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        # what has to be equal for a position to mean the same batches
        if self._manifest is None:
            self._manifest = {
                "num_segments": len(self.view),
                "segments": self.view.fingerprint(*self._fingerprint_columns()),
            }
        return {"sampler": type(self).__name__, "plan_version": PLAN_VERSION, **self.get_config(), **self._manifest}

    def _fingerprint_columns(self) -> list[np.ndarray]:
        return [self.lengths]

    def state_dict(self, batch: int | None = None) -> dict[str, Any]:
        """The position and what it refers to, in plain JSON types.

        Args:
            batch: position to save instead of :attr:`batch`; a loader gives the one that the training loop has reached.
        """
        identity = self._identity()
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "batch": self._position if batch is None else int(batch),
            "world_size": self.world_size,
            "limits": self.limits().to_state(),
            "config": identity,
            "config_hash": config_hash(identity),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was saved: the next iterator yields the batches that followed.

        With another number of ranks the epoch is finished as it was planned, if the limits can be shared by that number.

        Raises:
            ValueError: another configuration or manifest (names what differs), or limits that the ranks cannot share.
        """
        check_state(state, self._identity(), type(self).__name__)
        saved = Limits.from_state(state["limits"])
        check_resumable(saved, self.options, self.world_size, int(state["world_size"]), self._longest_item())
        self.set_epoch(int(state["epoch"]), int(state["batch"]))
        self._adopted_limits = saved

    def _longest_item(self) -> float:
        return self.longest_length
