"""Optimizers by name, from the options that a configuration holds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import torch

from hyperion_lite.core.config import Configurable, nearest
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.factory_options import checked_options, choose

logger = logging.getLogger(__name__)

OptimizerType = Literal["sgd", "adam", "adamw", "radam", "nadam", "rmsprop", "adagrad"]

_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}

_COMMON = ("lr", "weight_decay", "foreach")
_ADAM = (*_COMMON, "betas", "eps")
_USED: dict[str, tuple[str, ...]] = {
    "sgd": (*_COMMON, "momentum", "nesterov", "dampening", "fused"),
    "adam": (*_ADAM, "amsgrad", "fused"),
    "adamw": (*_ADAM, "amsgrad", "fused"),
    "radam": (*_ADAM, "decoupled_weight_decay"),
    "nadam": (*_ADAM, "decoupled_weight_decay", "momentum_decay"),
    "rmsprop": (*_COMMON, "alpha", "eps", "momentum", "centered"),
    "adagrad": (*_COMMON, "lr_decay", "initial_accumulator_value", "eps", "fused"),
}
_TORCH_NAMES = {"rmsprop_alpha": "alpha", "init_acc_val": "initial_accumulator_value"}

# keys that a group may have beside the options of its optimizer: what schedulers and weight averaging write there
_GROUP_KEYS = ("params", "param_names", "name", "initial_lr", "swa_lr", "initial_wd", "layer")


class OptimizerFactory(Configurable):
    """Makes optimizers.

    One document of options serves every type: options that a type does not have are left aside.
    """

    config_method: ClassVar[str] = "create"
    config_exclude = ("params",)

    opt_types: ClassVar[tuple[str, ...]] = tuple(_CLASSES)

    @staticmethod
    def create(
        params: Iterable[Any],
        opt_type: OptimizerType = "adam",
        lr: float = 0.001,
        momentum: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        nesterov: bool = False,
        dampening: float = 0.0,
        decoupled_weight_decay: bool = False,
        momentum_decay: float = 0.004,
        rmsprop_alpha: float = 0.99,
        centered: bool = False,
        lr_decay: float = 0.0,
        init_acc_val: float = 0.0,
        foreach: bool | None = None,
        fused: bool | None = None,
        oss: bool = False,
        layer_decay: float = 1.0,
        **other: Any,
    ) -> torch.optim.Optimizer:
        """Make an optimizer of ``torch.optim``.

        Every group of the result has ``initial_lr``, the rate that schedulers start from. The given groups are not changed.

        Args:
            params: parameters, or parameter groups (``trainable_param_groups`` of a model). A group can have its own ``lr``,
                ``weight_decay`` and the like; what it lacks comes from the options.
            opt_type: which optimizer. ``adam`` adds the weight decay to the gradient, ``adamw`` decouples it.
            lr: learning rate.
            momentum: of sgd and rmsprop.
            beta1: decay of the average gradient, of the adam family.
            beta2: decay of the average squared gradient, of the adam family; 0.99 is the original toolkit's default, torch has 0.999.
            eps: added to denominators.
            weight_decay: weight decay.
            amsgrad: use the largest average squared gradient so far (adam, adamw).
            nesterov: Nesterov momentum (sgd).
            dampening: of the momentum (sgd).
            decoupled_weight_decay: decouple the weight decay from the gradient (radam, nadam).
            momentum_decay: decay of the momentum schedule (nadam).
            rmsprop_alpha: decay of the average squared gradient (rmsprop).
            centered: divide by the standard deviation instead (rmsprop).
            lr_decay: decay of the learning rate (adagrad).
            init_acc_val: start of the sum of squared gradients (adagrad).
            foreach: update all tensors of a kind at once; ``None`` lets torch choose.
            fused: use torch's fused kernels; ``None`` lets torch choose.
            oss: split the optimizer state over the ranks of the process group (``ZeroRedundancyOptimizer``).
            layer_decay: factor of the learning rate from each layer of the encoder to the one below it, 1 for equal rates; ``lr`` is that
                of the head. Needs groups with ``layer``, the distance from the top, as models give them.
            other: nothing; unknown options are an error.

        Raises:
            ConfigError: unknown type, option or group key, values that the optimizer refuses, no parameters, ``oss`` without a process
                group, or ``layer_decay`` for groups that do not tell their layer.
        """
        options = {key: value for key, value in locals().items() if key not in ("params", "other")}
        choose("opt_type", opt_type, _CLASSES)
        options = checked_options(OptimizerFactory, options, other)
        arguments = _arguments_of(opt_type, options)
        groups = _copied_groups(params, arguments)
        _decay_rates(groups, lr, layer_decay)
        cls = _CLASSES[opt_type]
        try:
            # torch refuses bad values, parameters that are no leaves, and a parameter in two groups
            optimizer = _split(groups, cls, arguments) if oss else cls(groups, **arguments)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"optimizer {opt_type} refuses its options or parameters: {error}") from error
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        return optimizer


def _arguments_of(opt_type: str, options: Mapping[str, Any]) -> dict[str, Any]:
    named = {_TORCH_NAMES.get(key, key): value for key, value in options.items()}
    named["betas"] = (options["beta1"], options["beta2"])
    if options["fused"] and "fused" not in _USED[opt_type]:
        raise ConfigError(f"optimizer {opt_type} has no fused kernels; leave fused out")
    return {key: named[key] for key in _USED[opt_type]}


def _copied_groups(params: Iterable[Any], arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Groups that torch may write into, with their keys checked."""
    entries = list(params)
    if not all(isinstance(entry, Mapping) for entry in entries):
        if any(isinstance(entry, Mapping) for entry in entries):
            raise ConfigError("parameters and parameter groups cannot be mixed; put the parameters into groups")
        entries = [{"params": entries}] if entries else []
    groups: list[dict[str, Any]] = []
    for index, entry in enumerate(entries):
        if "params" not in entry:
            raise ConfigError(f"parameter group {index} has no 'params'")
        known = (*_GROUP_KEYS, *arguments)
        for key in entry:
            if key not in known:
                raise ConfigError(f"parameter group {index}: unknown key {key!r}{nearest(key, known)}")
        inside = entry["params"]
        inside = [inside] if isinstance(inside, torch.Tensor) else list(inside)
        if inside:
            groups.append({**entry, "params": inside})
        else:
            logger.info("parameter group %d is empty and left out", index)
    if not groups:
        raise ConfigError(
            "there are no parameters to optimize; check that the train mode leaves some of them trainable"
        )
    return groups


def _decay_rates(groups: list[dict[str, Any]], lr: float, layer_decay: float) -> None:
    # Bao et al., BEiT, ICLR 2022; Clark et al., ELECTRA, ICLR 2020
    if not 0.0 < layer_decay <= 1.0:
        raise ConfigError(f"layer_decay must be above 0 and at most 1, got {layer_decay}")
    if layer_decay == 1.0:
        return
    if not all("layer" in group for group in groups):
        raise ConfigError(
            "layer_decay needs parameter groups with 'layer', see trainable_param_groups(by_layer=True) of a model"
        )
    for group in groups:
        group["lr"] = group.get("lr", lr) * layer_decay ** group["layer"]


def _split(
    groups: list[dict[str, Any]], cls: type[torch.optim.Optimizer], arguments: dict[str, Any]
) -> torch.optim.Optimizer:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise ConfigError(
            "oss splits the optimizer state over ranks, but there is no process group; start with torchrun"
        )
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, optimizer_class=cls, **arguments)
