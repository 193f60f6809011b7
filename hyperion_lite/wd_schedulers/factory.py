"""Weight-decay schedules by name, from the options that a configuration holds."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.factory_options import checked_options, choose
from hyperion_lite.wd_schedulers.cos_wd import CosineWD
from hyperion_lite.wd_schedulers.wd_scheduler import WDScheduler

_CLASSES: dict[str, type[WDScheduler]] = {"cos_wd": CosineWD}


class WDSchedulerFactory(Configurable):
    """Makes weight-decay schedules."""

    config_method: ClassVar[str] = "create"
    config_exclude = ("optimizer",)

    wdsch_types: ClassVar[dict[str, type[WDScheduler]]] = _CLASSES

    @staticmethod
    def create(
        optimizer: torch.optim.Optimizer,
        wdsch_type: Literal["cos_wd"] | None = None,
        initial_wd: float = 0.0,
        final_wd: float | None = None,
        warmup_steps: int = 100,
        update_wd_on_opt_step: bool = False,
        **other: Any,
    ) -> WDScheduler | None:
        """Make a schedule, or ``None`` without a type: the weight decay stays as it is.

        Args:
            optimizer: whose parameter groups are scheduled.
            wdsch_type: which schedule; none for a constant weight decay.
            initial_wd: weight decay at the start.
            final_wd: weight decay at the end; none for that of the optimizer.
            warmup_steps: epochs, or updates, from the one to the other.
            update_wd_on_opt_step: count updates instead of epochs.
            other: nothing; unknown options are an error.

        Raises:
            ConfigError: unknown type or option, or values out of range.
        """
        options = {key: value for key, value in locals().items() if key not in ("optimizer", "other")}
        if wdsch_type is not None:
            choose("wdsch_type", wdsch_type, _CLASSES)
        options = checked_options(WDSchedulerFactory, options, other)
        if wdsch_type is None:
            return None
        del options["wdsch_type"]
        return _CLASSES[wdsch_type](optimizer, **options)
