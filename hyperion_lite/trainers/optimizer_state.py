"""Optimizer state by parameter name, so that it survives freezing, unfreezing and re-ordering of parameters.

torch numbers the parameters of an optimizer; the numbers change when a part of the model is frozen. Here a state is

    {"format": 1, "state": {name: {"exp_avg": tensor, ...}}, "param_groups": [{"params": [name, ...], "lr": ..., ...}]}

with whole tensors, whatever the number of ranks and however they split them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.trainers.distribution import full_tensor, like_parameter

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer

logger = logging.getLogger(__name__)

STATE_FORMAT = 1


def collect_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """The state by name, whole, on the CPU. Every rank has to take part; with ``oss_ddp`` the result is for rank 0 only.

    Args:
        optimizer: over parameters of ``model``.
        model: gives the names.
    """
    names = _names(model)
    numbered = _numbered_state(optimizer)
    flat = [_name_of(p, names) for group in optimizer.param_groups for p in group["params"]]
    state: dict[str, Any] = {}
    for index, values in numbered["state"].items():
        state[flat[int(index)]] = {key: _to_host(value) for key, value in values.items()}
    groups = []
    for group in numbered["param_groups"]:
        options = {key: _to_host(value) for key, value in group.items() if key != "params"}
        groups.append({**options, "params": [flat[int(index)] for index in group["params"]]})
    return {"format": STATE_FORMAT, "state": state, "param_groups": groups}


def apply_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, saved: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Give ``optimizer`` the state that ``saved`` has for its parameters.

    A parameter group takes its options (learning rate, weight decay, ...) from the saved group that shares most parameters with it;
    a group that shares none keeps its own.

    Args:
        optimizer: over parameters of ``model``.
        model: gives the names.
        saved: of :func:`collect_optimizer_state`. Of torch's own numbered state (another toolkit's checkpoint directory) the options
            of the groups are taken and the rest is left out with a warning: the numbers follow the order in which that toolkit made its
            layers, which nothing in the directory tells.

    Returns:
        Names of parameters that start without state, and names in ``saved`` that are not used.

    Raises:
        ModelFileError: no optimizer state, or shapes that do not fit.
    """
    names = _names(model)
    flat = [p for group in optimizer.param_groups for p in group["params"]]
    flat_names = [_name_of(p, names) for p in flat]
    saved = _only_options(saved, optimizer) if _is_numbered(saved) else name_state(saved, flat_names)
    fresh = [name for name in flat_names if name not in saved["state"]] if saved["state"] else []
    unused = [name for name in saved["state"] if name not in set(flat_names)]
    state: dict[int, Any] = {}
    for index, (name, parameter) in enumerate(zip(flat_names, flat, strict=True)):
        values = saved["state"].get(name)
        if values is not None:
            state[index] = {key: _placed(value, parameter, f"{name}.{key}") for key, value in values.items()}
    groups, start = [], 0
    for group in optimizer.param_groups:
        count = len(group["params"])
        options = {key: value for key, value in group.items() if key != "params"}
        options.update(_best_group(saved["param_groups"], flat_names[start : start + count]))
        groups.append({**options, "params": list(range(start, start + count))})
        start += count
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return fresh, unused


def name_state(saved: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A state by name out of one by name, or out of torch's numbered one.

    Args:
        saved: either form.
        names: of the parameters, in the order that the numbers count; used for the numbered form only.

    Raises:
        ModelFileError: not an optimizer state, or one over another number of parameters.
    """
    state, groups = saved.get("state"), saved.get("param_groups")
    if not isinstance(state, Mapping) or not isinstance(groups, (list, tuple)):
        raise ModelFileError(f"this is no optimizer state: it has {', '.join(map(str, saved)) or 'nothing'}")
    order = [p for group in groups for p in group["params"]]
    if all(isinstance(p, str) for p in order):
        return {"format": STATE_FORMAT, "state": dict(state), "param_groups": [dict(g) for g in groups]}
    if len(order) != len(names):
        raise ModelFileError(
            f"the optimizer state numbers {len(order)} parameters, the optimizer has {len(names)}: without names they cannot be matched. "
            "Resume with the train mode that the state was saved with"
        )
    by_number = dict(zip(order, names, strict=True))
    return {
        "format": STATE_FORMAT,
        "state": {by_number[number]: values for number, values in state.items()},
        "param_groups": [{**group, "params": [by_number[p] for p in group["params"]]} for group in groups],
    }


def _is_numbered(saved: Mapping[str, Any]) -> bool:
    groups = saved.get("param_groups")
    return isinstance(groups, (list, tuple)) and any(not isinstance(p, str) for g in groups for p in g["params"])


def _only_options(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    logger.warning(
        "the optimizer state of the checkpoint numbers its parameters and does not name them, so it cannot be matched with certainty: "
        "learning rates are taken from it, averages of gradients begin anew (a .pth checkpoint that is converted keeps them)"
    )
    for group, stored in zip(optimizer.param_groups, saved["param_groups"], strict=False):
        group.update({key: value for key, value in stored.items() if key != "params" and key in group})
    return {"format": STATE_FORMAT, "state": {}, "param_groups": []}


def split_over_ranks(optimizer: torch.optim.Optimizer) -> ZeroRedundancyOptimizer:
    """The same optimizer with its state split over the ranks (``oss_ddp``). ``optimizer`` must not have been used."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if isinstance(optimizer, ZeroRedundancyOptimizer):
        return optimizer
    groups = [dict(group) for group in optimizer.param_groups]
    # defaults can hold more than the constructor takes (AdamW's decoupled_weight_decay)
    accepted = inspect.signature(type(optimizer)).parameters
    options = {key: value for key, value in optimizer.defaults.items() if key in accepted}
    return ZeroRedundancyOptimizer(groups, optimizer_class=type(optimizer), **options)


def _numbered_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    # the import takes as long as all other imports of a training on one process, which needs none of it
    if not (dist.is_available() and dist.is_initialized()):
        return optimizer.state_dict()
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if not isinstance(optimizer, ZeroRedundancyOptimizer):
        return optimizer.state_dict()
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() != 0:
        return {"state": {}, "param_groups": []}
    return optimizer.state_dict()


def _names(model: nn.Module) -> dict[int, str]:
    return {id(p): name for name, p in model.named_parameters()}


def _name_of(parameter: torch.Tensor, names: Mapping[int, str]) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise ValueError(
            f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is none of the model's; make the optimizer after "
            "the model has its final layers, device and distribution"
        )
    return name


def _to_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return full_tensor(value).detach().to("cpu", copy=True)
    if isinstance(value, (list, tuple)):
        return type(value)(_to_host(v) for v in value)
    return value


def _placed(value: Any, parameter: torch.Tensor, what: str) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    # states with fewer axes than the parameter (row and column factors) are split by no rank
    if value.shape == parameter.shape:
        return like_parameter(value, parameter)
    if value.dim() == parameter.dim():
        raise ModelFileError(
            f"optimizer state {what} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}"
        )
    return value


def _best_group(groups: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    wanted = set(names)
    shared = [len(wanted & set(group["params"])) for group in groups]
    if not shared or max(shared) == 0:
        return {}
    best = groups[shared.index(max(shared))]
    return {key: value for key, value in best.items() if key != "params"}
