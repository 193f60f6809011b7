"""Building the parts of a trainer from what a configuration says, or taking objects that were made elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.trainers.distribution import Distribution
from hyperion_lite.trainers.optimizer_state import split_over_ranks

logger = logging.getLogger(__name__)


def make_optimizer(optim: Any, model: nn.Module, distribution: Distribution) -> torch.optim.Optimizer:
    """The optimizer of the trainable parameters of ``model``.

    Args:
        optim: configuration of :class:`~hyperion_lite.optim.factory.OptimizerFactory`, an optimizer, or a function of the parameter groups
            that returns one.
        model: in its final place: device, train mode and distribution.
        distribution: ``oss_ddp`` splits the state over the ranks.

    Raises:
        ConfigError: no trainable parameters, or a finished optimizer with fsdp, whose parameters did not exist when it was made.
    """
    if isinstance(optim, torch.optim.Optimizer):
        if distribution.is_sharded:
            raise ConfigError(
                "fsdp makes new parameters: give the optimizer as a configuration or as a function of the parameters"
            )
        optimizer = optim
    else:
        groups = parameter_groups(model, by_layer=_goes_by_layer(optim))
        if not groups:
            raise ConfigError(
                "no parameter of the model requires gradients, so there is nothing to train; check train_mode"
            )
        if callable(optim):
            optimizer = optim(groups)
        else:
            from hyperion_lite.optim.factory import OptimizerFactory

            optimizer = OptimizerFactory.create(groups, **dict(optim or {}))
    split = distribution.ddp_type == "oss_ddp" and distribution.world_size > 1
    return split_over_ranks(optimizer) if split else optimizer


def _goes_by_layer(optim: Any) -> bool:
    return isinstance(optim, Mapping) and optim.get("layer_decay", 1.0) != 1.0


def parameter_groups(model: nn.Module, by_layer: bool = False) -> list[dict[str, Any]]:
    """The model's own parameter groups, or one of all trainable parameters; empty when there are none.

    Args:
        model: whose parameters.
        by_layer: groups for the layers of its encoder, see ``trainable_param_groups`` of models.

    Raises:
        ConfigError: ``by_layer``, and the model does not tell its layers.
    """
    own: Any = getattr(model, "trainable_param_groups", None)
    if by_layer and own is None:
        raise ConfigError(f"layer_decay: {type(model).__name__} does not tell the layers of its encoder")
    if own is None:
        groups = [{"params": [p for p in model.parameters() if p.requires_grad]}]
    else:
        groups = own(by_layer=True) if by_layer else own()
    return [group for group in groups if group["params"]]


def make_lr_scheduler(lrsched: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Learning-rate scheduler from its configuration, from an object, or ``None``."""
    if lrsched is None or not isinstance(lrsched, Mapping):
        return lrsched
    from hyperion_lite.lr_schedulers.factory import LRSchedulerFactory

    return LRSchedulerFactory.create(optimizer, **lrsched)


def make_wd_scheduler(wdsched: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Weight-decay scheduler from its configuration, from an object, or ``None``."""
    if wdsched is None or not isinstance(wdsched, Mapping):
        return wdsched
    from hyperion_lite.wd_schedulers.factory import WDSchedulerFactory

    return WDSchedulerFactory.create(optimizer, **wdsched)


def make_loggers(
    loggers: Any,
    exp_path: Path,
    use_tensorboard: bool,
    use_wandb: bool,
    wandb: Mapping[str, Any] | None,
) -> Any:
    """The given loggers, or those that the options ask for: a table, progress, and what is switched on."""
    if loggers is not None and not isinstance(loggers, (list, tuple)):
        return loggers
    from hyperion_lite.loggers import CSVLogger, LoggerList, ProgLogger, TensorBoardLogger, WAndBLogger

    if loggers is not None:
        return LoggerList(list(loggers))
    # a trainer tells its loggers of every log_interval-th step, so they need no interval of their own
    chosen: list[Any] = [ProgLogger(interval=1), CSVLogger(exp_path / "train_log.csv")]
    if use_tensorboard:
        chosen.append(TensorBoardLogger(exp_path / "tensorboard", interval=1))
    if use_wandb:
        chosen.append(WAndBLogger(exp_path, **{"interval": 1, **dict(wandb or {})}))
    return LoggerList(chosen)
