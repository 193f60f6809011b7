"""The micro-batches of one optimizer step.

An update takes ``grad_acc_steps`` micro-batches, or what is left of the epoch. They are fetched before the first forward pass, so that
each knows its share of the update: its number of items among those of all its micro-batches on all ranks.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hyperion_lite.trainers.distribution import Distribution

logger = logging.getLogger(__name__)


@dataclass
class MicroBatch:
    """A part of an update.

    Attributes:
        data: the batch on the host, preprocessed.
        num_items: its number of items.
        share: its part of the loss of the update. The shares of a rank times the number of ranks average to 1, because gradients are
            averaged over ranks.
        last: whether it ends the update.
    """

    data: Any
    num_items: int
    share: float
    last: bool


class UpdateBatches:
    """Groups the batches of an epoch into updates, the same number on every rank.

    Where the ranks have unequal numbers of batches, all stop with the one that has the fewest, and what the others hold is counted.

    Args:
        batches: of this rank.
        grad_acc_steps: micro-batches of an update.
        distribution: the ranks.
        size_of: number of items of a batch.

    Attributes:
        wait_seconds: time spent waiting for data so far.
        num_dropped: batches of this rank that found no partner on other ranks.
        num_items: items of the present update, over all ranks.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        grad_acc_steps: int,
        distribution: Distribution,
        size_of: Callable[[Any], int],
    ) -> None:
        self._batches = batches
        self._steps = grad_acc_steps
        self._distribution = distribution
        self._size_of = size_of
        self.wait_seconds = 0.0
        self.num_dropped = 0
        self.num_items = 0

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        while True:
            begin = time.perf_counter()
            group = list(islice(self._batches, self._steps))
            self.wait_seconds += time.perf_counter() - begin
            sizes = [self._size_of(batch) for batch in group]
            agreed = self._agree(sizes)
            if agreed is None:
                return
            count, self.num_items = agreed
            world = self._distribution.world_size
            yield [
                MicroBatch(batch, size, world * size / max(self.num_items, 1), index == count - 1)
                for index, (batch, size) in enumerate(zip(group[:count], sizes[:count], strict=True))
            ]
            if count < self._steps:
                return

    def _agree(self, sizes: list[int]) -> tuple[int, int] | None:
        """Micro-batches that every rank has, and items of all ranks in them; ``None`` when some rank has none."""
        padded = sizes + [0] * (self._steps - len(sizes))
        rows = self._distribution.gather_ints([len(sizes), *padded])
        count = min(row[0] for row in rows)
        if len(sizes) > count:
            self.num_dropped += len(sizes) - count
            logger.warning(
                "rank %d has more batches than another rank and leaves out %d; samplers of hyperion_lite give all ranks the same number",
                self._distribution.rank,
                len(sizes) - count,
            )
        total = sum(sum(row[1 : 1 + count]) for row in rows)
        return None if count == 0 else (count, total)


def steps_for(eff_batch_size: int, batch_size: float) -> int:
    """Micro-batches of ``batch_size`` items (over all ranks) that make an update of at least ``eff_batch_size`` items.

    Raises:
        ValueError: ``eff_batch_size`` is not positive.
    """
    if eff_batch_size < 1:
        raise ValueError(f"eff_batch_size must be positive, got {eff_batch_size}")
    # average batch sizes are quotients: 64 / 15.999 is 4
    return max(1, math.ceil(eff_batch_size / max(batch_size, 1e-9) - 1e-3))
