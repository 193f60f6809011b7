"""Learning-rate schedules by name, from the options that a configuration holds."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal

import torch

from hyperion_lite.core.config import Configurable, config_fields
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.factory_options import checked_options, choose
from hyperion_lite.lr_schedulers.cycles import CosineLR, OneCycleLR, TriangularLR
from hyperion_lite.lr_schedulers.decays import ExponentialLR, InvPowLR, LinearLR, NoamLR
from hyperion_lite.lr_schedulers.lr_scheduler import LRScheduler
from hyperion_lite.lr_schedulers.plateau import ReduceLROnPlateau

logger = logging.getLogger(__name__)

LRSchedulerType = Literal[
    "exp_lr", "invpow_lr", "noam_lr", "cos_lr", "triangular_lr", "one_cycle_lr", "red_lr_on_plateau", "linear_lr"
]

_CLASSES: dict[str, type[LRScheduler]] = {
    "exp_lr": ExponentialLR,
    "invpow_lr": InvPowLR,
    "noam_lr": NoamLR,
    "cos_lr": CosineLR,
    "triangular_lr": TriangularLR,
    "one_cycle_lr": OneCycleLR,
    "red_lr_on_plateau": ReduceLROnPlateau,
    "linear_lr": LinearLR,
}


class LRSchedulerFactory(Configurable):
    """Makes learning-rate schedules.

    One document of options serves every type: options that a type does not have are left aside.
    """

    config_method: ClassVar[str] = "create"
    config_exclude = ("optimizer",)

    lrsch_types: ClassVar[dict[str, type[LRScheduler]]] = _CLASSES

    @staticmethod
    def create(
        optimizer: torch.optim.Optimizer,
        lrsch_type: LRSchedulerType | None = None,
        decay_rate: float = 0.01,
        decay_steps: float = 100,
        hold_steps: float = 10,
        power: float = 0.5,
        t: float = 10,
        t_mul: float = 1,
        warm_restarts: bool = False,
        gamma: float = 1.0,
        alpha: float = 0.0,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        monitor: str = "val_loss",
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        eps: float = 1e-8,
        d_model: int | None = None,
        lr_factor: float = 1.0,
        min_lr: float | list[float] = 0.0,
        warmup_steps: int = 0,
        update_lr_on_opt_step: bool = False,
        **other: Any,
    ) -> LRScheduler | None:
        """Make a schedule, or ``None`` without a type: the rate stays as it is.

        Positions are updates with ``update_lr_on_opt_step``, else epochs, counted from the start of training.

        Args:
            optimizer: whose parameter groups are scheduled.
            lrsch_type: which schedule; none for a constant rate.
            decay_rate: factor of ``decay_steps`` positions (exp_lr).
            decay_steps: positions of that factor (exp_lr), or of the whole way down (linear_lr).
            hold_steps: positions before the rate begins to fall, warm-up included (exp_lr, invpow_lr, linear_lr).
            power: exponent (invpow_lr).
            t: positions of the first cycle (cos_lr, triangular_lr, one_cycle_lr).
            t_mul: each cycle is so many times longer than the one before (cos_lr, triangular_lr).
            warm_restarts: whether there are cycles after the first (cos_lr, triangular_lr).
            gamma: factor of the top rate from cycle to cycle (cos_lr, triangular_lr).
            alpha: lowest rate as a fraction of the initial one (cos_lr, triangular_lr, linear_lr).
            pct_start: share of the rise (one_cycle_lr).
            div_factor: initial rate over the first rate (one_cycle_lr).
            final_div_factor: first rate over the last rate (one_cycle_lr).
            monitor: name of the metric (red_lr_on_plateau).
            mode: whether a smaller or a larger metric is better (red_lr_on_plateau).
            factor: factor of the rate in a reduction (red_lr_on_plateau).
            patience: epochs without improvement that are tolerated (red_lr_on_plateau).
            threshold: improvements smaller than this do not count (red_lr_on_plateau).
            threshold_mode: threshold as a fraction or as a difference (red_lr_on_plateau).
            cooldown: epochs after a reduction in which nothing is counted (red_lr_on_plateau).
            eps: no reduction by less than this (red_lr_on_plateau).
            d_model: width of the transformer (noam_lr, which needs it).
            lr_factor: factor of the whole schedule (noam_lr).
            min_lr: lowest rate; one number, or one for each parameter group.
            warmup_steps: updates in which the rate rises linearly from ``min_lr``.
            update_lr_on_opt_step: count updates instead of epochs.
            other: nothing; unknown options are an error.

        Raises:
            ConfigError: unknown type or option, or values out of range.
        """
        options = {key: value for key, value in locals().items() if key not in ("optimizer", "other")}
        if lrsch_type is not None:
            choose("lrsch_type", lrsch_type, _CLASSES)
        options = checked_options(LRSchedulerFactory, options, other)
        if lrsch_type is None:
            return None
        cls = _CLASSES[lrsch_type]
        if cls is NoamLR and d_model is None:
            raise ConfigError("noam_lr needs d_model, the width of the transformer")
        if cls is ReduceLROnPlateau and update_lr_on_opt_step:
            logger.info("red_lr_on_plateau follows the metrics of epochs, update_lr_on_opt_step does not matter")
        accepted = config_fields(cls)
        return cls(optimizer, **{key: value for key, value in options.items() if key in accepted})
