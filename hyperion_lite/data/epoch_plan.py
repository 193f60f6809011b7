"""The plan of an epoch: its global batches, any of which can be had at once, and the account of what it does with the segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from hyperion_lite.data.batch_packing import Packing
from hyperion_lite.data.batch_split import num_dealt


@dataclass(frozen=True)
class GlobalBatch:
    """The items of one batch, over all ranks.

    Attributes:
        segments: (n,) segment numbers.
        lengths: (n,) lengths of the items.
        starts: (n,) begins of the chunks, or None where items are whole segments.
        occurrences: (n,) what tells apart the uses of one segment in the epoch, or None where there is one use.
        last: whether the batch ended because the items did.
        pad_to: length that shorter items are to be padded to, or None.
    """

    segments: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray | None = None
    occurrences: np.ndarray | None = None
    last: bool = False
    pad_to: float | None = None

    def take(self, positions: np.ndarray) -> GlobalBatch:
        """The items at ``positions``."""
        return replace(
            self,
            segments=self.segments[positions],
            lengths=self.lengths[positions],
            starts=None if self.starts is None else self.starts[positions],
            occurrences=None if self.occurrences is None else self.occurrences[positions],
        )


@dataclass(frozen=True)
class EpochAccount:
    """What an epoch does with the segments; the same on every rank.

    Attributes:
        epoch: its number.
        num_batches: batches that each rank yields.
        num_items: items of the plan, repeats not counted.
        segments_total: segments in the manifest.
        segments_used: segments that occur at least once.
        repeated: items added to fill up the ranks.
        dropped: items left out, by reason; in units of what is sampled (segments, or chunks).
        short: chunks shorter than the minimum chunk length, taken whole or padded.
        padded_share: share of padding if every global batch is padded to its longest item.
    """

    epoch: int
    num_batches: int
    num_items: int
    segments_total: int
    segments_used: int
    repeated: int
    dropped: dict[str, int] = field(default_factory=dict)
    short: int = 0
    padded_share: float = 0.0

    def __str__(self) -> str:
        dropped = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items()) or "none"
        return (
            f"epoch {self.epoch}: {self.num_batches} batches, {self.num_items} items from {self.segments_used} of "
            f"{self.segments_total} segments, {self.repeated} repeated to fill up ranks, dropped: {dropped}, "
            f"{self.short} short, {100 * self.padded_share:.2f} % padding"
        )


class EpochPlan(ABC):
    """All global batches of an epoch. :meth:`batch` takes the same time for every batch."""

    num_batches: int
    dropped: dict[str, int]
    short: int = 0

    @abstractmethod
    def batch(self, index: int) -> GlobalBatch:
        """The global batch ``index``."""

    @abstractmethod
    def account(self, epoch: int, segments_total: int, world_size: int, per_rank: int) -> EpochAccount:
        """Count what the plan does."""


class DrawnPlan(EpochPlan):
    """A plan whose batches are drawn when they are asked for.

    It counts what it draws, so that the account of an epoch that was run through costs nothing more.

    Args:
        num_batches: number of batches, all of them full.
        num_segments: segments of the manifest.
        short_below: items below this length count as short.
    """

    def __init__(self, num_batches: int, num_segments: int, short_below: float) -> None:
        self.num_batches = num_batches
        self.short_below = short_below
        self._counted = np.zeros(num_batches, dtype=bool)
        self._used = np.zeros(num_segments, dtype=bool)
        self._sizes = np.zeros(num_batches, dtype=np.int64)
        self._occupied = np.zeros(num_batches)
        self._padded = np.zeros(num_batches)
        self._short = np.zeros(num_batches, dtype=np.int64)

    @abstractmethod
    def draw(self, index: int) -> GlobalBatch:
        """The global batch ``index``, a function of its number alone."""

    def batch(self, index: int) -> GlobalBatch:
        """The global batch ``index``."""
        batch = self.draw(index)
        if not self._counted[index]:
            self._counted[index] = True
            self._used[batch.segments] = True
            self._sizes[index] = len(batch.segments)
            self._occupied[index] = batch.lengths.sum()
            self._padded[index] = len(batch.segments) * max(float(batch.lengths.max()), batch.pad_to or 0.0)
            self._short[index] = (batch.lengths < self.short_below).sum()
        return batch

    def account(self, epoch: int, segments_total: int, world_size: int, per_rank: int) -> EpochAccount:
        """Count what the plan does, drawing the batches that were not drawn yet."""
        for index in np.flatnonzero(~self._counted).tolist():
            self.batch(index)
        dealt = np.where(self._sizes < world_size * per_rank, world_size * per_rank, self._sizes)
        return EpochAccount(
            epoch,
            self.num_batches,
            int(self._sizes.sum()),
            segments_total,
            int(self._used.sum()),
            int((dealt - self._sizes).sum()),
            dict(self.dropped),
            int(self._short.sum()),
            1.0 - float(self._occupied.sum() / self._padded.sum()),
        )


class ItemBatch(NamedTuple):
    """Items by number: what they are cut from and where.

    Attributes:
        segments: (n,) segment numbers.
        lengths: (n,) lengths.
        starts: (n,) begins of the chunks, or None for whole segments.
        occurrences: (n,) numbers of the chunks in their segment, or None.
    """

    segments: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray | None = None
    occurrences: np.ndarray | None = None


class Items(Protocol):
    """What an epoch samples from: segments, or chunks of them.

    Attributes:
        lengths: (n,) lengths, which batches are made by.
        dropped: what was left out, by reason.
        short: number of items below the minimum chunk length.
    """

    lengths: np.ndarray
    dropped: dict[str, int]
    short: int

    def take(self, items: np.ndarray) -> ItemBatch:
        """Items by number."""

    def segments_of(self, items: np.ndarray) -> np.ndarray:
        """Segment numbers of items."""


class WholeSegments:
    """All segments of a manifest: item ``i`` is segment ``i``.

    Args:
        lengths: (n,) lengths of the segments.
    """

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths
        self.dropped: dict[str, int] = {}
        self.short = 0

    def take(self, items: np.ndarray) -> ItemBatch:
        """Segments by number."""
        return ItemBatch(items, self.lengths[items])

    def segments_of(self, items: np.ndarray) -> np.ndarray:
        """The numbers themselves."""
        return items


class PackedPlan(EpochPlan):
    """A plan that is a sequence of items cut into batches.

    Args:
        items: what is sampled from.
        packing: their order and the cuts.
        pad_to: length that shorter items are padded to, or None.
    """

    def __init__(self, items: Items, packing: Packing, pad_to: float | None = None) -> None:
        self.items = items
        self.packing = packing
        self.pad_to = pad_to
        self.num_batches = packing.num_batches
        self.dropped = {**items.dropped, **packing.dropped}
        self.short = items.short

    def batch(self, index: int) -> GlobalBatch:
        """The global batch ``index``."""
        packing = self.packing
        items = self.items.take(packing.order[packing.offsets[index] : packing.offsets[index + 1]])
        return GlobalBatch(
            segments=items.segments,
            lengths=items.lengths,
            starts=items.starts,
            occurrences=items.occurrences,
            last=bool(packing.last[index]),
            pad_to=self.pad_to,
        )

    def account(self, epoch: int, segments_total: int, world_size: int, per_rank: int) -> EpochAccount:
        """Count what the plan does, all batches at once."""
        packing, items = self.packing, self.items
        chosen = packing.order[: packing.offsets[-1]]
        lengths = items.lengths[chosen]
        longest = np.maximum(np.maximum.reduceat(lengths, packing.offsets[:-1]), self.pad_to or 0.0)
        ranks = Ranks(segments_total, world_size, per_rank)
        segments = items.segments_of(chosen)
        return count_items(self, epoch, ranks, np.diff(packing.offsets), packing.last, segments, lengths, longest)


class Ranks(NamedTuple):
    """What an account needs to know beside the plan.

    Attributes:
        segments_total: segments in the manifest.
        world_size: number of ranks.
        per_rank: smallest part of a batch.
    """

    segments_total: int
    world_size: int
    per_rank: int


def count_items(
    plan: EpochPlan,
    epoch: int,
    ranks: Ranks,
    sizes: np.ndarray,
    last: np.ndarray,
    segments: np.ndarray,
    lengths: np.ndarray,
    longest: np.ndarray,
) -> EpochAccount:
    """The account of a plan whose items are all known.

    Args:
        plan: gives what was dropped and what is short.
        epoch: its number.
        ranks: how the batches are dealt.
        sizes: (num_batches,) numbers of items.
        last: (num_batches,) bool, batches that ended because the items did.
        segments: (num_items,) segment number of each item.
        lengths: (num_items,) lengths of the items.
        longest: (num_batches,) length that each batch is padded to.
    """
    used = np.zeros(ranks.segments_total, dtype=bool)
    used[segments] = True
    # few batches need filling up; the others have as many items as planned
    odd = np.flatnonzero(last | (sizes < ranks.world_size * ranks.per_rank)).tolist()
    repeated = sum(
        num_dealt(int(sizes[b]), ranks.world_size, ranks.per_rank, bool(last[b])) - int(sizes[b]) for b in odd
    )
    padded = float((longest * sizes).sum(dtype=np.float64))
    return EpochAccount(
        epoch,
        plan.num_batches,
        len(segments),
        ranks.segments_total,
        int(used.sum()),
        repeated,
        dict(plan.dropped),
        plan.short,
        1.0 - float(lengths.sum(dtype=np.float64)) / padded,
    )
