"""Metrics for TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.extras import require
from hyperion_lite.loggers.logger import Logger, Logs, metrics_of, position_of


class TensorBoardLogger(Logger):
    """Scalars over optimizer updates: every metric at the ends of epochs and validations, running averages in between.

    A resumed run goes on in the same folder, and TensorBoard is told to forget what lies beyond the position it continues from. Running
    averages are under ``running/`` and their name, so that they do not mix with the values of whole epochs.

    Args:
        path: folder of the event files.
        interval: updates between running averages; 0 for none.

    Raises:
        MissingDependencyError: tensorboard is not installed.
        ConfigError: a negative ``interval``.
    """

    def __init__(self, path: str | os.PathLike[str], interval: int = 10) -> None:
        if interval < 0:
            raise ConfigError(f"interval must not be negative, got {interval}")
        require("tensorboard", extra="tensorboard", purpose="logging for TensorBoard")
        self.path = Path(path)
        self.interval = interval
        self._writer: Any = None

    def on_train_begin(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        from torch.utils.tensorboard import SummaryWriter

        step = position_of(logs, "step")
        self._writer = SummaryWriter(str(self.path), purge_step=None if step is None else int(step) + 1)

    def on_batch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        step = position_of(logs, "step") or 0
        if self.interval and step and step % self.interval == 0:
            self._write(logs, "running/")

    def on_validation_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._write(logs)

    def on_epoch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._write(logs)

    def on_train_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, logs: Logs, lead: str = "") -> None:
        if self._writer is None:
            self.on_train_begin({})
        step = position_of(logs, "step")
        for name, value in metrics_of(logs).items():
            self._writer.add_scalar(lead + name, value, global_step=step)
        if not lead:
            # whole epochs are rare, and what is in the buffer of a killed process is lost
            self._writer.flush()
