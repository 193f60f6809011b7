"""Progress on the screen: a bar in a terminal, lines of the log elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.loggers.logger import Logger, Logs, format_metrics, metrics_of, position_of
from hyperion_lite.loggers.meter import ThroughputMeter, format_seconds

logger = logging.getLogger(__name__)


class ProgLogger(Logger):
    """Metrics, utterances and seconds of audio per second, and the remaining time of the epoch and of training.

    Args:
        interval: batches, or updates, between two looks.
        bar: draw a bar; ``None`` when ``file`` is a terminal. Without one, the log (level info) gets a line.
        min_seconds: least time between two lines of the log.
        file: where the bar is drawn; ``None`` for standard error.
        clock: seconds that only grow.

    Raises:
        ConfigError: an ``interval`` below 1.
    """

    def __init__(
        self,
        interval: int = 10,
        bar: bool | None = None,
        min_seconds: float = 10.0,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if interval < 1:
            raise ConfigError(f"interval must be at least 1, got {interval}")
        self.interval = interval
        self.min_seconds = min_seconds
        self._file = file if file is not None else sys.stderr
        self._with_bar = self._file.isatty() if bar is None else bar
        self._clock = clock
        self._meter = ThroughputMeter(clock)
        self._bar: tqdm | None = None
        self._last_line = clock()
        self._last_batch = 0

    def on_train_begin(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._meter.begin(logs)

    def on_epoch_begin(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._close_bar()
        self._meter.resume()
        self._last_line = self._clock()
        self._last_batch = _whole(logs, "batch") or 0
        if self._with_bar:
            self._bar = tqdm(
                desc=_epoch_text(logs),
                total=_whole(logs, "num_batches"),
                initial=self._last_batch,
                unit="batch",
                file=self._file,
                dynamic_ncols=True,
                leave=True,
            )

    def on_batch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._meter.add(logs)
        batch, step = _whole(logs, "batch") or 0, _whole(logs, "step")
        due = step is not None and step % self.interval == 0
        if not due and batch - self._last_batch < self.interval and batch != _whole(logs, "num_batches"):
            return
        self._last_batch = batch
        if self._bar is not None:
            self._bar.set_postfix(self._texts(logs), refresh=False)
            self._bar.update(batch - self._bar.n)
        elif self._clock() - self._last_line >= self.min_seconds:
            self._last_line = self._clock()
            of = f"/{num}" if (num := _whole(logs, "num_batches")) else ""
            logger.info("%s, batch %d%s: %s", _epoch_text(logs), batch, of, _joined(self._texts(logs)))

    def on_validation_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._say("validation at", logs)
        self._meter.resume()

    def on_epoch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._say("end of", logs)
        self._close_bar()

    def on_train_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._close_bar()

    def _texts(self, logs: Logs) -> dict[str, str]:
        texts = format_metrics(metrics_of(logs))
        texts.update(format_metrics(self._meter.rates()))
        remaining = self._meter.remaining(logs)
        if remaining is not None:
            texts["eta"] = format_seconds(remaining)
        return texts

    def _say(self, what: str, logs: Logs) -> None:
        step = _whole(logs, "step")
        at = f", step {step}" if step is not None else ""
        line = f"{what} {_epoch_text(logs)}{at}: {_joined(self._texts(logs))}"
        if self._bar is not None:
            # in a way that does not break the bar
            self._bar.write(line, file=self._file)
        else:
            logger.info("%s", line)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _whole(logs: Logs, key: str) -> int | None:
    value = position_of(logs, key)
    return None if value is None else int(value)


def _epoch_text(logs: Logs) -> str:
    epoch, num_epochs = _whole(logs, "epoch"), _whole(logs, "num_epochs")
    if epoch is None:
        return "training"
    return f"epoch {epoch + 1}/{num_epochs}" if num_epochs else f"epoch {epoch + 1}"


def _joined(texts: dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in texts.items())
