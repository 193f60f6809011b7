"""Where an epoch stands, for loaders of this package and for any other iterable."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

logger = logging.getLogger(__name__)


class DataPosition:
    """Chooses the epoch and the batch that ``data`` continues with.

    Three kinds of ``data`` are understood, in this order: a loader of :func:`hyperion_lite.data.loader.make_loader` (or anything with
    ``set_epoch(epoch, batch)`` and ``state_dict``), a ``torch.utils.data.DataLoader`` over one of the samplers of this package, and any
    iterable of batches. An iterable may have ``set_epoch(epoch)``. Of one that cannot begin in the middle, the batches before are
    fetched and left out.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self._sampler = _find_positioned(data)

    def state_dict(self, batch: int) -> dict[str, Any] | None:
        """State of the sampler with ``batch`` batches consumed, or ``None`` where there is none."""
        if self._sampler is None or not hasattr(self._sampler, "state_dict"):
            return None
        if self._sampler is self.data:
            return self._sampler.state_dict()
        return self._sampler.state_dict(batch=batch)

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Check that ``state`` belongs to this data, and take what it has beside a position.

        Raises:
            ValueError: another data set, other options, or limits that this number of ranks cannot continue; says what differs.
        """
        if state is not None and self._sampler is not None and hasattr(self._sampler, "load_state_dict"):
            self._sampler.load_state_dict(state)

    def begin(self, epoch: int, batch: int) -> Iterator[Any]:
        """The batches of ``epoch`` from number ``batch`` on."""
        if self._sampler is not None:
            self._sampler.set_epoch(epoch, batch)
            if self._sampler is not self.data and hasattr(getattr(self.data, "dataset", None), "set_epoch"):
                self.data.dataset.set_epoch(epoch)
            return iter(self.data)
        for part in (self.data, getattr(self.data, "sampler", None), getattr(self.data, "dataset", None)):
            if part is not None and hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        batches = iter(self.data)
        if batch:
            logger.info(
                "the data cannot begin in the middle of an epoch: its first %d batches are read and left out", batch
            )
            for _ in islice(batches, batch):
                pass
        return batches

    def num_batches(self) -> int | None:
        """Batches of a whole epoch, where the data knows."""
        try:
            return len(self.data)
        except TypeError:
            return None

    def mean_batch_size(self) -> float | None:
        """Items of a batch of all ranks together, on average; ``None`` where the data does not say."""
        if hasattr(self._sampler, "account"):
            account = self._sampler.account()
            return (account.num_items + account.repeated) / max(account.num_batches, 1)
        return None


def _find_positioned(data: Any) -> Any:
    """``data`` or its sampler, whichever can be set to a batch."""
    for part in (data, getattr(data, "batch_sampler", None), getattr(data, "sampler", None)):
        if hasattr(part, "set_epoch") and hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            return part
    return None
