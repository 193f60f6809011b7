"""The checkpoint directories of an experiment: their names, which are complete, publishing, and which are kept."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from hyperion_lite.core.atomic import TEMPORARY_MARK, atomic_directory, is_temporary, remove_temporaries
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.serialization.locate import RNG_STATE_FILE, TRAINER_STATE_FILE, find_checkpoints

logger = logging.getLogger(__name__)

BestMode = Literal["min", "max"]
_NAME = re.compile(r"^checkpoint_ep(\d+)_step(\d+)$")


def checkpoint_name(epoch: int, step: int) -> str:
    """``checkpoint_ep0005_step0000001000``."""
    return f"checkpoint_ep{epoch:04d}_step{step:010d}"


def parse_checkpoint_name(name: str) -> tuple[int, int] | None:
    """(epoch, step) of a checkpoint's name, ``None`` for other names."""
    match = _NAME.match(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


class CheckpointStore:
    """The checkpoints under one experiment directory.

    Args:
        folder: the experiment directory; made when it is written to.
        model_names: directories of models that a complete checkpoint has.
        keep_last: how many of the newest are kept; ``None`` or 0 for all.
        keep_best: how many of the best are kept beside them.
        best_metric: entry of the logs that says which is best.
        best_mode: whether the smallest or the largest value is best.
        attempts: how often a write is tried.
        retry_seconds: pause before the next try.

    Raises:
        ConfigError: a number is negative, or an unknown mode.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model_names: tuple[str, ...] = ("model",),
        keep_last: int | None = None,
        keep_best: int = 0,
        best_metric: str | None = None,
        best_mode: BestMode = "min",
        attempts: int = 3,
        retry_seconds: float = 1.0,
    ) -> None:
        if best_mode not in ("min", "max"):
            raise ConfigError(f"best_mode must be min or max, got {best_mode!r}")
        for name, value in (("keep_last", keep_last), ("keep_best", keep_best)):
            if value is not None and value < 0:
                raise ConfigError(f"{name} must not be negative, got {value}")
        self.folder = Path(folder)
        self.model_names = model_names
        self.keep_last = keep_last or 0
        self.keep_best = keep_best or 0
        self.best_metric = best_metric
        self.best_mode = best_mode
        self.attempts = attempts
        self.retry_seconds = retry_seconds
        self.num_failed = 0

    # looking

    def path(self, epoch: int, step: int) -> Path:
        """Directory of the checkpoint at (epoch, step), whether it is there or not."""
        return self.folder / checkpoint_name(epoch, step)

    def is_complete(self, folder: str | os.PathLike[str]) -> bool:
        """Whether ``folder`` has everything a finished checkpoint of these models has."""
        target = Path(folder)
        files = [TRAINER_STATE_FILE, RNG_STATE_FILE]
        for name in self.model_names:
            files += [f"{name}/{leaf}" for leaf in ("config.json", "model.safetensors", "optimizer.pt")]
        return not is_temporary(target) and all((target / name).is_file() for name in files)

    def complete(self) -> list[Path]:
        """Complete checkpoints, newest (highest epoch and step) first."""
        if not self.folder.is_dir():
            return []
        return [p for p in find_checkpoints(self.folder) if self.is_complete(p)]

    def best(self) -> Path | None:
        """The checkpoint with the best value of the metric, the newest of equals; ``None`` when none has the metric."""
        ranked = self._ranked(self.complete())
        return ranked[0] if ranked else None

    def _ranked(self, checkpoints: list[Path]) -> list[Path]:
        values = [(self._value(path), path) for path in checkpoints]
        known = [(value, path) for value, path in values if value is not None]
        sign = 1.0 if self.best_mode == "min" else -1.0
        return [path for _, path in sorted(known, key=lambda pair: sign * pair[0])]

    def _value(self, checkpoint: Path) -> float | None:
        if self.best_metric is None:
            return None
        try:
            logs = json.loads((checkpoint / TRAINER_STATE_FILE).read_text(encoding="utf-8")).get("logs") or {}
        except (OSError, ValueError):
            return None
        value = logs.get(self.best_metric)
        return float(value) if isinstance(value, (int, float)) and value == value else None

    # writing

    def clean(self) -> list[str]:
        """Remove what killed processes left behind; the names. To be called by one process, before it writes."""
        if not self.folder.is_dir():
            return []
        removed = remove_temporaries(self.folder)
        if removed:
            logger.info("%s: removed %d unfinished temporaries of an interrupted run", self.folder, len(removed))
        return removed

    @contextmanager
    def saving(self, epoch: int, step: int) -> Iterator[Path]:
        """Yield a temporary directory to fill; it becomes the checkpoint when the block ends well, and is removed otherwise."""
        with atomic_directory(self.path(epoch, step)) as temporary:
            yield temporary

    def save(self, epoch: int, step: int, write: Callable[[Path], None]) -> bool:
        """Publish what ``write`` puts into a directory, and remove checkpoints that are no longer kept.

        A failing disk does not end training: the write is tried again, then given up with an error in the log.

        Returns:
            Whether there is a checkpoint now.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                with self.saving(epoch, step) as temporary:
                    write(temporary)
            except OSError as error:
                left = self.attempts - attempt
                logger.warning("writing %s failed (%s), tries left: %d", self.path(epoch, step), error, left)
                if left:
                    time.sleep(self.retry_seconds)
            else:
                self.prune()
                return True
        self.num_failed += 1
        logger.error(
            "checkpoint %s could not be written; training goes on without it (checkpoints lost so far: %d). Look at the disk of %s",
            checkpoint_name(epoch, step),
            self.num_failed,
            self.folder,
        )
        return False

    def prune(self) -> list[Path]:
        """Remove checkpoints that are neither among the newest nor among the best; the paths."""
        if not self.keep_last:
            return []
        checkpoints = self.complete()
        kept = {*checkpoints[: self.keep_last], *self._ranked(checkpoints)[: self.keep_best]}
        removed = [path for path in checkpoints if path not in kept]
        for path in removed:
            _remove(path)
        return removed


def _remove(path: Path) -> None:
    """Remove a directory so that at no moment there is half of one under its name."""
    try:
        aside = Path(tempfile.mkdtemp(prefix=f"{path.name}{TEMPORARY_MARK}", dir=path.parent))
        os.rename(path, aside / path.name)
        shutil.rmtree(aside)
    except OSError as error:
        logger.warning("could not remove the old checkpoint %s: %s", path, error)


def describe(state: dict[str, Any]) -> str:
    """``epoch 3, batch 40, step 1000`` of a trainer state."""
    return ", ".join(f"{key} {state[key]}" for key in ("epoch", "batch", "step") if key in state)
