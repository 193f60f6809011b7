"""Which run a checkpoint belongs to, and whether another one may continue from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hyperion_lite.core.errors import ConfigError


class IncompatibleCheckpointError(ConfigError):
    """A checkpoint belongs to another model, other classes, another optimizer or other data; the message lists the differences."""


def document_hash(document: Any) -> str:
    """Hash of a JSON document, independent of the order of its keys."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def run_identity(
    model_config: Mapping[str, Any],
    classes: Sequence[str] | None,
    optimizer: str,
    schedulers: Mapping[str, str | None],
) -> dict[str, Any]:
    """What a checkpoint records about its run: hashes, and the families of the parts."""
    return {
        "model_config_hash": document_hash(model_config),
        "classes_hash": None if classes is None else document_hash(list(classes)),
        "num_classes": None if classes is None else len(classes),
        "optimizer": optimizer,
        **schedulers,
    }


def config_differences(saved: Any, current: Any, where: str = "") -> Iterator[str]:
    """``key: saved value -> current value`` for every place where two JSON documents differ."""
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        for key in [*saved, *(k for k in current if k not in saved)]:
            name = f"{where}.{key}" if where else str(key)
            if key not in saved:
                yield f"{name}: not there -> {current[key]!r}"
            elif key not in current:
                yield f"{name}: {saved[key]!r} -> not there"
            else:
                yield from config_differences(saved[key], current[key], name)
    elif saved != current:
        yield f"{where}: {saved!r} -> {current!r}"


def class_differences(saved: Sequence[str] | None, current: Sequence[str] | None) -> Iterator[str]:
    """What differs between two class tables; nothing where one of them is unknown."""
    if saved is None or current is None or list(saved) == list(current):
        return
    if len(saved) != len(current):
        yield f"number of classes: {len(saved)} -> {len(current)}"
    if sorted(saved) == sorted(current):
        index = next(i for i, (a, b) in enumerate(zip(saved, current, strict=True)) if a != b)
        yield f"order of the classes: class {index} was {saved[index]!r} and is {current[index]!r}"
        return
    gone, new = [c for c in saved if c not in set(current)], [c for c in current if c not in set(saved)]
    for what, ids in (("classes that are gone", gone), ("new classes", new)):
        if ids:
            yield f"{what}: {', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}"


def tensor_differences(saved: Mapping[str, torch.Tensor], current: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Names and shapes in which two sets of tensors differ."""
    for name, tensor in current.items():
        if name not in saved:
            yield f"tensor {name}: not there -> {tuple(tensor.shape)}"
        elif saved[name].shape != tensor.shape:
            yield f"tensor {name}: {tuple(saved[name].shape)} -> {tuple(tensor.shape)}"
    for name in saved:
        if name not in current:
            yield f"tensor {name}: {tuple(saved[name].shape)} -> not there"


def family_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Parts of another family: optimizer and schedulers. What a checkpoint of another toolkit does not record is not compared."""
    for key in ("optimizer", "lr_scheduler", "wd_scheduler"):
        if key in saved and saved[key] != current.get(key):
            yield f"{key}: {saved[key]} -> {current.get(key)}"


def optimizer_differences(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Options that only one family of optimizers has, for states that do not tell the family."""
    groups = saved.get("param_groups")
    if not isinstance(groups, (list, tuple)) or not groups:
        yield "optimizer: no state of an optimizer"
        return
    for option in ("betas", "momentum", "alpha", "lr_decay", "momentum_decay"):
        was, now = option in groups[0], option in optimizer.param_groups[0]
        if was != now:
            yield f"optimizer option {option}: {'there' if was else 'not there'} -> {'there' if now else 'not there'}"


def refuse(differences: Sequence[str], where: str) -> None:
    """Raise :class:`IncompatibleCheckpointError` when there are differences."""
    if differences:
        shown = "; ".join(differences[:20]) + (f"; and {len(differences) - 20} more" if len(differences) > 20 else "")
        raise IncompatibleCheckpointError(
            f"{where} belongs to another run and cannot be resumed from: {shown}. Give a new exp_path to start another run; to begin "
            "with the weights of this one, load the model with auto_load"
        )
