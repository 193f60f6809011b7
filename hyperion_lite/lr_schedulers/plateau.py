"""A schedule that follows a metric instead of the clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch

from hyperion_lite.core.config import nearest
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.factory_options import at_least
from hyperion_lite.lr_schedulers.lr_scheduler import LRScheduler


class ReduceLROnPlateau(LRScheduler):
    """``initial_lr * factor ** r`` with ``r`` reductions so far; one more after ``patience`` epochs without a better metric.

    The rules are those of ``torch.optim.lr_scheduler.ReduceLROnPlateau``. A NaN is never better.

    Args:
        optimizer: whose groups are scheduled.
        monitor: name of the metric.
        mode: whether a smaller (``min``) or a larger (``max``) metric is better.
        factor: factor of the rate in a reduction.
        patience: epochs without improvement that are tolerated.
        threshold: improvements smaller than this do not count.
        threshold_mode: ``rel`` takes ``threshold`` as a fraction of the best metric, ``abs`` as a difference.
        cooldown: epochs after a reduction in which nothing is counted.
        eps: no reduction that changes every rate by less than this.
        min_lr: lowest rate.
        warmup_steps: updates of the linear rise.
    """

    option_keys: ClassVar[tuple[str, ...]] = (
        "monitor", "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "eps",
        "best", "num_bad_epochs", "num_cooldown_epochs", "num_reductions",
    )  # fmt: skip
    position_keys: ClassVar[tuple[str, ...]] = (
        "epoch", "step", "best", "num_bad_epochs", "num_cooldown_epochs", "num_reductions",
    )  # fmt: skip

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        monitor: str = "val_loss",
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        eps: float = 1e-8,
        min_lr: float | list[float] = 0.0,
        warmup_steps: int = 0,
    ) -> None:
        super().__init__(optimizer, min_lr, warmup_steps)
        if not 0.0 < factor < 1.0:
            raise ConfigError(f"factor must be between 0 and 1, got {factor}")
        for name, value, known in (("mode", mode, ("min", "max")), ("threshold_mode", threshold_mode, ("rel", "abs"))):
            if value not in known:
                raise ConfigError(f"{name} must be {' or '.join(known)}, got {value!r}")
        self.monitor = monitor
        self.mode = mode
        self.factor = factor
        self.patience = at_least("patience", patience, 0)
        self.threshold = at_least("threshold", threshold, 0.0)
        self.threshold_mode = threshold_mode
        self.cooldown = at_least("cooldown", cooldown, 0)
        self.eps = at_least("eps", eps, 0.0)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = 0
        self.num_cooldown_epochs = 0
        self.num_reductions = 0
        self.apply()

    def rate(self, position: int, base_lr: float, min_lr: float) -> float:
        """See the class; the position does not matter."""
        return float(base_lr * self.factor**self.num_reductions)

    def is_better(self, value: float) -> bool:
        """Whether ``value`` counts as an improvement on the best metric so far."""
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "abs" or math.isinf(self.best):
            margin = self.threshold if math.isfinite(self.best) else 0.0
            return sign * value < sign * self.best - margin
        return sign * value < sign * self.best * (1.0 - sign * self.threshold)

    def on_epoch_end(self, metrics: Mapping[str, Any] | None = None) -> None:
        """An epoch is complete.

        Args:
            metrics: values of the epoch, the same on every rank. ``None`` when nothing was measured, which changes nothing.

        Raises:
            ConfigError: ``metrics`` lacks the monitored one.
        """
        super().on_epoch_end(metrics)
        if metrics is None:
            return
        if self.monitor not in metrics:
            raise ConfigError(
                f"the learning-rate schedule monitors {self.monitor!r}, which is not measured{nearest(self.monitor, metrics)} "
                f"Measured: {', '.join(map(str, metrics))}"
            )
        self._count(float(metrics[self.monitor]))
        self.apply()

    def _count(self, value: float) -> None:
        if self.is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.num_cooldown_epochs > 0:
            self.num_cooldown_epochs -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.num_cooldown_epochs, self.num_bad_epochs = self.cooldown, 0

    def _reduce(self) -> None:
        pairs = list(zip(self.base_lrs, self.min_lrs, strict=True))
        before = [max(low, self.rate(0, base, low)) for base, low in pairs]
        self.num_reductions += 1
        after = [max(low, self.rate(0, base, low)) for base, low in pairs]
        if all(old - new <= self.eps for old, new in zip(before, after, strict=True)):
            self.num_reductions -= 1
