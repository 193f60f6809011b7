"""Several loggers as one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from hyperion_lite.loggers.logger import Logger, Logs, merged_logs

logger = logging.getLogger(__name__)


class LoggerList(Logger):
    """Passes every event on to its loggers, on rank 0 only.

    A logger that cannot write (a full disk, a lost server: an ``OSError``) does not end training: it is reported once and tried again
    at the next event.

    Args:
        loggers: in the order in which they are told.
    """

    def __init__(self, loggers: Iterable[Logger] = ()) -> None:
        self.loggers: list[Logger] = list(loggers)
        self._failing: set[int] = set()

    def append(self, one: Logger) -> None:
        """Add a logger at the end."""
        self.loggers.append(one)

    def __iter__(self) -> Iterator[Logger]:
        return iter(self.loggers)

    def __len__(self) -> int:
        return len(self.loggers)

    def on_train_begin(self, logs: Logs | int | None = None, **position: Any) -> None:
        """See the base class."""
        self._tell("on_train_begin", merged_logs(logs, position))

    def on_epoch_begin(self, logs: Logs | int | None = None, **position: Any) -> None:
        """See the base class."""
        self._tell("on_epoch_begin", merged_logs(logs, position))

    def on_batch_end(self, logs: Logs | int | None = None, **position: Any) -> None:
        """See the base class."""
        self._tell("on_batch_end", merged_logs(logs, position))

    def on_validation_end(self, logs: Logs | int | None = None, **position: Any) -> None:
        """See the base class."""
        self._tell("on_validation_end", merged_logs(logs, position))

    def on_epoch_end(self, logs: Logs | int | None = None, **position: Any) -> None:
        """See the base class."""
        self._tell("on_epoch_end", merged_logs(logs, position))

    def on_train_end(self, logs: Logs | int | None = None, **position: Any) -> None:
        """See the base class."""
        self._tell("on_train_end", merged_logs(logs, position))

    def _tell(self, event: str, logs: dict[str, Any]) -> None:
        for index, one in enumerate(self.loggers):
            try:
                getattr(one, event)(dict(logs))
                self._failing.discard(index)
            except OSError as error:
                if index not in self._failing:
                    logger.warning("%s cannot write (%s); training goes on", type(one).__name__, error)
                self._failing.add(index)
