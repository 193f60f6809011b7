"""How fast training is, and when it will be over."""

from __future__ import annotations

import time
from collections.abc import Callable

from hyperion_lite.loggers.logger import Logs, position_of


class ThroughputMeter:
    """Items, seconds of audio and updates per second, and the remaining time.

    Rates are averages since :meth:`begin`. Time between :meth:`pause` and the next :meth:`add` (validation, saving) counts for the
    remaining time of training, not for the throughput.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin({})

    def begin(self, logs: Logs) -> None:
        """Start at the position in ``logs``."""
        self._start = self._since = self._clock()
        self._start_step = position_of(logs, "step") or 0
        self._busy = 0.0
        self.num_items = 0.0
        self.audio_seconds = 0.0

    def resume(self) -> None:
        """Batches follow from now on; what lies between the last one and now is not their time."""
        self._since = self._clock()

    def add(self, logs: Logs) -> None:
        """A batch is done."""
        now = self._clock()
        self._busy += now - self._since
        self._since = now
        self.num_items += position_of(logs, "num_items") or 0
        self.audio_seconds += position_of(logs, "audio_seconds") or 0.0

    def rates(self) -> dict[str, float]:
        """``utt/s`` and ``audio_s/s``, as far as they are known."""
        if self._busy <= 0:
            return {}
        rates = {"utt/s": self.num_items / self._busy, "audio_s/s": self.audio_seconds / self._busy}
        return {key: value for key, value in rates.items() if value > 0}

    def remaining(self, logs: Logs) -> float | None:
        """Seconds until training is over, or ``None`` where that cannot be known yet.

        The end is at ``max_steps`` updates or at ``num_epochs`` epochs of ``num_batches`` batches, whichever comes first.
        """
        step, elapsed = position_of(logs, "step") or 0, self._clock() - self._start
        done = step - self._start_step
        if done <= 0 or elapsed <= 0:
            return None
        left = [
            value for value in (self._left_by_steps(logs, step), self._left_by_epochs(logs, step)) if value is not None
        ]
        return max(min(left), 0.0) * elapsed / done if left else None

    @staticmethod
    def _left_by_steps(logs: Logs, step: float) -> float | None:
        max_steps = position_of(logs, "max_steps")
        return max_steps - step if max_steps else None

    @staticmethod
    def _left_by_epochs(logs: Logs, step: float) -> float | None:
        epoch, batch = position_of(logs, "epoch"), position_of(logs, "batch")
        num_epochs, num_batches = position_of(logs, "num_epochs"), position_of(logs, "num_batches")
        if epoch is None or batch is None or not num_epochs or not num_batches:
            return None
        epochs_done = epoch + batch / num_batches
        # updates are not batches when gradients are accumulated: their ratio so far holds for the rest
        return (num_epochs - epochs_done) * step / epochs_done if epochs_done > 0 else None


def format_seconds(seconds: float | None) -> str:
    """``1:02:03``, or ``?`` where it is not known."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
