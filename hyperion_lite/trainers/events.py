"""What interrupts the steps: signals, and schedules in steps and hours."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from hyperion_lite.core.errors import ConfigError

logger = logging.getLogger(__name__)


class SignalListener:
    """Remembers SIGTERM and SIGINT instead of dying from them, so that training can stop between two steps. A context manager.

    A second SIGINT interrupts at once. Outside the main thread, where Python has no signal handlers, nothing is listened to.

    Attributes:
        received: number of the first signal, or ``None``.
    """

    signals = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> SignalListener:
        self.received = None
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # a handler that was not set from Python cannot be set back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None:
            self.received = number


class Schedule:
    """Something that happens every so many steps, or every so many hours.

    Args:
        steps: optimizer steps in between; ``None`` or 0 for not by steps.
        hours: hours in between; ``None`` or 0 for not by the clock. Only rank 0 asks its clock.
        name: of the options, for messages.
        clock: seconds that only grow.

    Raises:
        ConfigError: a negative number.
    """

    def __init__(
        self,
        steps: int | None,
        hours: float | None,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for value, unit in ((steps, "steps"), (hours, "hours")):
            if value is not None and value < 0:
                raise ConfigError(f"{name}_{unit} must not be negative, got {value}")
        self.steps = steps or 0
        self.seconds = (hours or 0.0) * 3600.0
        self._clock = clock
        self._since = clock()
        self._last_step: int | None = None

    def due_by_steps(self, step: int) -> bool:
        """Whether ``step`` is one at which it happens; not twice at the same one."""
        return self.steps > 0 and step > 0 and step % self.steps == 0 and step != self._last_step

    def due_by_clock(self) -> bool:
        """Whether enough time has passed since the last time."""
        return self.seconds > 0 and self._clock() - self._since >= self.seconds

    def done(self, step: int) -> None:
        """It has happened at ``step``."""
        self._last_step = step
        self._since = self._clock()
