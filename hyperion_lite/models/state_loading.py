"""Put the tensors of a file into a model, and say everything that does not fit in one message."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.serialization.lora_names import loralib_name, match_adapters
from hyperion_lite.serialization.names import match_weight_norm, match_wrappers

_MOST_NAMES = 20


def optional_names(model: nn.Module) -> set[str]:
    """Tensors that a file may lack, or have in vain: the ``optional_state_keys`` of modules (tables they compute, counters)."""
    names: set[str] = set()
    for prefix, module in model.named_modules():
        lead = f"{prefix}." if prefix else ""
        names.update(f"{lead}{key}" for key in getattr(module, "optional_state_keys", ()))
    return names


def load_state(
    model: nn.Module,
    state: Mapping[str, torch.Tensor],
    tied: Mapping[str, str] | None = None,
    strict: bool = True,
    source: object = "the state dictionary",
) -> list[str]:
    """Copy ``state`` into ``model``; parameters and buffers take the dtype of the file.

    Args:
        model: target, changed in place only when everything fits.
        state: tensor name -> tensor, wrapper prefixes stripped; either spelling of weight norm.
        tied: name -> name of the tensor of ``state`` that it is the same memory as.
        strict: refuse missing and unexpected tensors; wrong shapes are always refused.
        source: where the tensors come from, for messages.

    Returns:
        The names of tensors that were neither in the file nor optional (empty when ``strict``).

    Raises:
        ModelFileError: lists all missing, unexpected and wrong-shaped tensors.
    """
    targets = dict(model.state_dict(keep_vars=True))
    tied = tied or {}
    state = match_adapters(match_wrappers(state, targets), targets)
    stored = match_weight_norm({**state, **{a: state[b] for a, b in tied.items() if b in state}}, targets)
    # a part with adapters is wrapped, which changes names
    optional = {loralib_name(name) for name in optional_names(model)}
    missing = [name for name in targets if name not in stored and loralib_name(name) not in optional]
    unexpected = [name for name in stored if name not in targets and loralib_name(name) not in optional]
    shapes = [
        f"{name}: the file has {tuple(stored[name].shape)}, the model needs {tuple(target.shape)}"
        for name, target in targets.items()
        if name in stored and stored[name].shape != target.shape
    ]
    kinds = [
        f"{name}: the file has {stored[name].dtype}, the model needs floating point"
        for name, target in targets.items()
        if name in stored and isinstance(target, nn.Parameter) and not stored[name].is_floating_point()
    ]
    problems = []
    if kinds:
        problems.append(f"wrong dtypes: {'; '.join(kinds[:_MOST_NAMES])}{_more(kinds)}")
    if shapes:
        problems.append(f"wrong shapes: {'; '.join(shapes[:_MOST_NAMES])}{_more(shapes)}")
    if strict and missing:
        problems.append(f"missing tensors: {', '.join(missing[:_MOST_NAMES])}{_more(missing)}")
    if strict and unexpected:
        problems.append(f"unexpected tensors: {', '.join(unexpected[:_MOST_NAMES])}{_more(unexpected)}")
    if problems:
        raise ModelFileError(f"{source} does not fit {type(model).__name__}. {'. '.join(problems)}")
    with torch.inference_mode(False), torch.no_grad():
        for name, target in targets.items():
            if name in stored:
                _assign(target, stored[name])
    _tie(model, tied)
    return missing


def _more(names: list[str]) -> str:
    return f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""


def _assign(target: torch.Tensor, value: torch.Tensor) -> None:
    if target.dtype != value.dtype:
        # assigning .data keeps the parameter object, so ties, hooks and optimizers survive
        target.data = target.data.to(value.dtype)
    target.data.copy_(value)


def _tie(model: nn.Module, tied: Mapping[str, str]) -> None:
    for alias, name in tied.items():
        owner, leaf = _split(model, alias)
        source_owner, source_leaf = _split(model, name)
        if owner is None or source_owner is None:
            continue
        source = getattr(source_owner, source_leaf, None)
        if source is None or getattr(owner, leaf, None) is source:
            continue
        if leaf in owner._parameters and isinstance(source, nn.Parameter):
            owner._parameters[leaf] = source
        elif leaf in owner._buffers:
            owner._buffers[leaf] = source


def _split(model: nn.Module, name: str) -> tuple[nn.Module | None, str]:
    prefix, _, leaf = name.rpartition(".")
    try:
        return model.get_submodule(prefix), leaf
    except AttributeError:
        return None, leaf
