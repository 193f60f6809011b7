"""Metrics for Weights & Biases."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.extras import require
from hyperion_lite.loggers.logger import Logger, Logs, metrics_of, position_of

logger = logging.getLogger(__name__)

RUN_ID_FILE = "wandb_run_id.txt"
"""In the folder of the logger; with it a resumed training continues its run."""


class WAndBLogger(Logger):
    """Metrics of a run, over the metric ``step`` (optimizer updates).

    The id of the run is kept in the folder, so that a resumed training continues the same run. Updates that were computed twice, before
    and after a kill, appear twice in it: the service takes nothing back.

    Args:
        path: folder of the local files.
        project: of the run.
        group: of the run.
        name: of the run.
        mode: ``online``, ``offline`` (to be uploaded later) or ``disabled``.
        interval: updates between running averages; 0 for none. They are under ``running/`` and their name.
        config: what to show as configuration of the run.

    Raises:
        MissingDependencyError: wandb is not installed.
        ConfigError: a negative ``interval``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        project: str | None = None,
        group: str | None = None,
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] = "online",
        interval: int = 10,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if interval < 0:
            raise ConfigError(f"interval must not be negative, got {interval}")
        self._wandb: Any = require("wandb", extra="wandb", purpose="logging to Weights & Biases")
        self.path = Path(path)
        self.interval = interval
        self._settings = {"project": project, "group": group, "name": name, "mode": mode}
        self._config = dict(config or {})
        self._run: Any = None

    def on_train_begin(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self.path.mkdir(parents=True, exist_ok=True)
        id_file = self.path / RUN_ID_FILE
        known = id_file.read_text(encoding="utf-8").strip() if id_file.is_file() else None
        self._run = self._wandb.init(
            dir=str(self.path), id=known, resume="allow" if known else None, config=self._config, **self._settings
        )
        self._run.define_metric("*", step_metric="step")
        if known is None:
            with atomic_file(id_file) as temporary:
                temporary.write_text(f"{self._run.id}\n", encoding="utf-8")

    def on_batch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        step = position_of(logs, "step") or 0
        if self.interval and step and step % self.interval == 0:
            self._send(logs, "running/")

    def on_validation_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._send(logs)

    def on_epoch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        self._send(logs)

    def on_train_end(self, logs: Logs) -> None:  # type: ignore[override]
        """See the base class."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _send(self, logs: Logs, lead: str = "") -> None:
        if self._run is None:
            self.on_train_begin({})
        values: dict[str, Any] = {lead + key: value for key, value in metrics_of(logs).items()}
        for key in ("epoch", "step"):
            if (position := position_of(logs, key)) is not None:
                values[key] = position
        self._run.log(values)
