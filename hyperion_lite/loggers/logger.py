"""What a logger is told, and when.

Each event comes with ``logs``: metrics under their names (``train_loss``, ``val_acc``, ``lr``), and beside them, in the same mapping or as
keyword arguments, under the reserved names of :data:`POSITION_KEYS`, where training stands:

================= =============================================================================================
``epoch``         number of the present epoch, from 0
``step``          optimizer updates so far
``batch``         batches of this epoch so far, on this rank
``num_batches``   batches of a whole epoch; ``batches`` is another name of it
``num_epochs``    epochs of the whole training; ``epochs`` is another name of it
``max_steps``     updates after which training ends
``num_items``     items since the last ``on_batch_end``, over all ranks
``audio_seconds`` seconds of audio since the last ``on_batch_end``, over all ranks
================= =============================================================================================

All of them are optional. A logger remembers ``epoch``, ``num_batches``, ``num_epochs`` and ``max_steps`` from event to event; the others
hold for one event.

Order of the events: ``on_train_begin`` (with the position that a resumed run continues from), then for each epoch ``on_epoch_begin``,
``on_batch_end`` and ``on_validation_end`` as they happen, ``on_epoch_end``; at last ``on_train_end``. A run that is killed has no last
event, so nothing may depend on it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

POSITION_KEYS = ("epoch", "step", "batch", "num_batches", "num_epochs", "max_steps", "num_items", "audio_seconds")
"""Keys of ``logs`` that are no metrics."""

Logs = Mapping[str, Any]

_REMEMBERED = ("epoch", "num_batches", "num_epochs", "max_steps")
_OTHER_NAMES = {"batches": "num_batches", "epochs": "num_epochs"}


def is_main_rank() -> bool:
    """Whether this process is the one that logs: rank 0, or the only one."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def metrics_of(logs: Logs) -> dict[str, float]:
    """The numbers in ``logs`` that are metrics, in their order; tensors and numpy scalars become Python numbers."""
    metrics = {}
    for key, value in logs.items():
        if key in POSITION_KEYS or key in _OTHER_NAMES or value is None:
            continue
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            value = value.item()
        if isinstance(value, (bool, int, float)):
            metrics[str(key)] = value
    return metrics


def merged_logs(logs: Logs | int | None, position: Mapping[str, Any]) -> dict[str, Any]:
    """What an event was given, as one mapping. A number in place of ``logs`` is the epoch."""
    merged = {"epoch": logs} if isinstance(logs, int) else dict(logs or {})
    merged.update(position)
    for other, name in _OTHER_NAMES.items():
        if other in merged:
            merged[name] = merged.pop(other)
    return merged


def position_of(logs: Logs, key: str) -> float | None:
    """The value of one of :data:`POSITION_KEYS`, or ``None`` if it is not known."""
    value = logs.get(key)
    return None if value is None else float(value) if isinstance(value, float) else int(value)


def format_metrics(metrics: Mapping[str, float]) -> dict[str, str]:
    """Metrics as short texts for a line on the screen."""
    return {key: f"{value:.4g}" if math.isfinite(value) else str(value) for key, value in metrics.items()}


class Logger:
    """Base of the loggers. Every event does nothing here; a subclass overrides the ``on_*(self, logs)`` that it needs.

    What a subclass defines is called on rank 0 only, whether the logger is told alone or in a list, and always with one mapping that
    holds the metrics, the position, and what is remembered of the position.
    """

    _EVENTS = ("on_train_begin", "on_epoch_begin", "on_batch_end", "on_validation_end", "on_epoch_end", "on_train_end")

    _remembered: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for event in Logger._EVENTS:
            if event in vars(cls):
                setattr(cls, event, _on_main_rank(vars(cls)[event]))

    def on_train_begin(self, logs: Logs | int | None = None, **position: Any) -> None:
        """Training begins or is resumed at the ``epoch`` and ``step`` that are given."""

    def on_epoch_begin(self, logs: Logs | int | None = None, **position: Any) -> None:
        """An epoch begins or is continued."""

    def on_batch_end(self, logs: Logs | int | None = None, **position: Any) -> None:
        """A batch, or several since the last time, are done; metrics are averages of the epoch so far."""

    def on_validation_end(self, logs: Logs | int | None = None, **position: Any) -> None:
        """A validation inside an epoch is done."""

    def on_epoch_end(self, logs: Logs | int | None = None, **position: Any) -> None:
        """An epoch is complete, its validation included."""

    def on_train_end(self, logs: Logs | int | None = None, **position: Any) -> None:
        """Training is over or was interrupted; files and connections are closed."""


def _on_main_rank(method: Any) -> Any:
    @functools.wraps(method)
    def told(self: Logger, logs: Logs | int | None = None, **position: Any) -> None:
        if not is_main_rank():
            return
        merged = {**self._remembered, **merged_logs(logs, position)}
        self._remembered = {key: merged[key] for key in _REMEMBERED if key in merged}
        method(self, merged)

    return told


for _event in Logger._EVENTS:
    setattr(Logger, _event, _on_main_rank(vars(Logger)[_event]))
