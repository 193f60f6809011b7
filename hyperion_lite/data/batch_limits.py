"""How large a batch may be: the options, which are global, and what they mean for a number of ranks."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

_SLACK = 1e-9  # so that 8 chunks of 0.1 s fill a budget of 0.8 s in spite of rounding


class EmptySamplerError(ValueError):
    """The limits leave nothing to yield, or give some rank no batch."""


@dataclass(frozen=True)
class BatchOptions:
    """The limits as the user wrote them, for a whole global batch.

    Attributes:
        min_batch_size: smallest number of items, or None for "two a rank while training".
        max_batch_size: largest number of items, or None.
        max_batch_length: largest number of items times the longest of them, in the unit of the lengths, or None.
        max_batches_per_epoch: batches in an epoch, counted over all ranks, or None.
        size_multiple: sizes of batches that ``max_batch_length`` limits are multiples of this.

    Raises:
        ValueError: a limit is not positive, or they contradict each other.
    """

    min_batch_size: int | None = None
    max_batch_size: int | None = None
    max_batch_length: float | None = None
    max_batches_per_epoch: int | None = None
    size_multiple: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            kind = "number" if name == "max_batch_length" else "whole number"
            wanted = (int, float, np.integer, np.floating) if kind == "number" else (int, np.integer)
            if value is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
                raise ValueError(f"{name} must be a {kind}, got {value!r}")
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be positive, got {value}; leave it out for no limit")
        for name in ("min_batch_size", "size_multiple"):
            value = getattr(self, name)
            if value and self.max_batch_size and value > self.max_batch_size:
                raise ValueError(
                    f"{name}={value} is larger than max_batch_size={self.max_batch_size}; lower the former"
                )


@dataclass(frozen=True)
class Limits:
    """The limits that a plan obeys: those options that a number of ranks leaves in force.

    Two numbers of ranks that give equal limits share every plan.

    Attributes:
        size: largest number of items of a global batch, a multiple of the number of ranks, or None.
        length: largest padded length of a global batch, or None.
        smallest: smallest number of items of a full batch.
        step: sizes of full batches under ``length`` are multiples of this.
        longest: items longer than this cannot be placed, or None.
        batches: global batches in an epoch, or None.
    """

    size: int | None
    length: float | None
    smallest: int
    step: int
    longest: float | None
    batches: int | None

    def to_state(self) -> dict[str, Any]:
        """Plain types, for a sampler's state."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Limits:
        """What :meth:`to_state` gave.

        Raises:
            ValueError: it is not that.
        """
        names = {field.name for field in fields(cls)}
        if set(state) != names:
            raise ValueError(f"the limits of a sampler's state must be {sorted(names)}, found {sorted(state)}")
        return cls(**state)

    @property
    def max_items(self) -> int:
        """Upper bound of the number of items, for arrays; 2**31 when only the length limits it."""
        return self.size if self.size is not None else 2**31

    def items_of(self, length: float | np.ndarray) -> Any:
        """How many items of ``length`` a full batch holds (int or int64 array); at least ``step``."""
        if self.length is None:
            return np.full(np.shape(length), self.max_items, dtype=np.int64)
        count = np.floor(self.length / np.asarray(length) + _SLACK).astype(np.int64)
        count = np.minimum(count, self.max_items)
        return np.maximum(count // self.step * self.step, 1)


def items_per_rank(options: BatchOptions, world_size: int, training: bool) -> int:
    """Smallest number of items that a rank's part of a batch has.

    Two while training, because statistics over a batch of one item are degenerate, unless one was asked for by a ``min_batch_size``
    or ``max_batch_size`` that leaves one item a rank. One otherwise.
    """
    if options.max_batch_size is not None and options.max_batch_size < 2 * world_size:
        return 1
    if options.min_batch_size is not None:
        return max(1, min(2, options.min_batch_size // world_size)) if training else 1
    return 2 if training else 1


def resolve_limits(options: BatchOptions, world_size: int, training: bool) -> Limits:
    """The limits in force for ``world_size`` ranks.

    ``max_batch_size`` is rounded down to a multiple of the number of ranks; ``max_batch_length`` is shared, so that an item longer
    than a rank's share cannot be placed; ``max_batches_per_epoch`` counts the parts of all ranks.

    Raises:
        EmptySamplerError: some rank would get no item or no batch; says which number to change.
    """
    size = options.max_batch_size
    if size is not None:
        if size < world_size:
            raise EmptySamplerError(
                f"max_batch_size={size} is for all {world_size} ranks together and leaves some of them without an item; "
                f"raise it to at least {world_size}, or use fewer ranks"
            )
        size = size // world_size * world_size
    batches = options.max_batches_per_epoch
    if batches is not None:
        if batches < world_size:
            raise EmptySamplerError(
                f"max_batches_per_epoch={batches} is for all {world_size} ranks together and leaves some of them without a batch; "
                f"raise it to at least {world_size}"
            )
        batches //= world_size
    longest = None
    if options.max_batch_length is not None:
        fewest = max(
            world_size, items_per_rank(options, 1, training), options.min_batch_size or 1, options.size_multiple
        )
        longest = options.max_batch_length / fewest * (1 + _SLACK)
    smallest = options.min_batch_size or (2 if training else 1)
    return Limits(size, options.max_batch_length, smallest, options.size_multiple, longest, batches)


def check_resumable(
    saved: Limits, options: BatchOptions, world_size: int, saved_world_size: int, longest_item: float
) -> None:
    """Whether a plan made for another number of ranks can be dealt to ``world_size`` ranks.

    Raises:
        ValueError: it cannot; says what to change.
    """
    if saved.size is not None and saved.size % world_size:
        raise ValueError(
            f"the saved epoch has batches of {saved.size} items for {saved_world_size} ranks, which {world_size} ranks cannot share "
            f"evenly (max_batch_size={options.max_batch_size}): resume with a number of ranks that divides {saved.size}, or start "
            f"a new epoch with max_batch_size={max(1, saved.size // world_size) * world_size}"
        )
    placed = longest_item if saved.longest is None else min(longest_item, saved.longest)
    if saved.length is not None and placed * world_size > saved.length * (1 + 1e-6):
        raise ValueError(
            f"max_batch_length={saved.length} shared by {world_size} ranks is below the longest item of the saved epoch "
            f"({placed:g}): resume with at most {int(saved.length // placed)} ranks, or start a new epoch with "
            f"max_batch_length={placed * world_size:g} or more"
        )
