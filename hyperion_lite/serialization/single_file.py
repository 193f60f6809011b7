"""The single file: ``{"model_cfg": ..., "model_state_dict": ...}`` in a ``torch.save`` container, read without running its pickle."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hyperion_lite._version import __version__
from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.pth import open_pth
from hyperion_lite.pth.errors import PthError
from hyperion_lite.pth.values import TensorRef
from hyperion_lite.serialization.artifact import FORMAT_VERSION, OWN_KEY, ModelArtifact
from hyperion_lite.serialization.classes import check_classes
from hyperion_lite.serialization.directory import check_format
from hyperion_lite.serialization.legacy import modernise_tensor_names
from hyperion_lite.serialization.names import clean_names
from hyperion_lite.serialization.plain import plain_config, plain_number
from hyperion_lite.serialization.tensors import pack_state

SUFFIXES = (".pth", ".pt")
_STATE_SUFFIX = "_state_dict"
_MOST_EXPANDED_BYTES = 1 << 26
"""Largest tensor that may repeat its stored elements (a stride of 0) instead of having them all in the file."""
_PROGRESS = ("epoch", "batch", "global_step")


def write_single_file(
    path: Path,
    config: Mapping[str, Any],
    own_config: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
    classes: Sequence[str] | None = None,
) -> None:
    """Write one file that the original toolkit and ``torch.load(weights_only=True)`` read.

    Args:
        path: ends in ``.pth`` or ``.pt``.
        config: configuration with the original toolkit's keys only.
        own_config: the keys of the configuration that only this package knows, nested like ``config``.
        state: tensors by name.
        classes: ids in index order.
    """
    tensors, tied = pack_state(state)
    full = OrderedDict((name, tensors[tied.get(name, name)]) for name in state)
    own: dict[str, Any] = {"format": FORMAT_VERSION, "version": __version__, "config": dict(own_config)}
    if tied:
        own["tied"] = tied
    if classes is not None:
        own["classes"] = check_classes(classes, "class table")
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a directory; give the name of a file, or a name without .pth for a model directory"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        try:
            torch.save({"model_cfg": dict(config), "model_state_dict": full, OWN_KEY: own}, temporary)
        except RuntimeError as error:
            # torch's archive writer reports a full disk so
            raise OSError(f"cannot write {path}: {' '.join(str(error).split())[:200]}") from error


def read_single_file(path: Path, model_name: str = "model") -> ModelArtifact:
    """Read a model file or trainer checkpoint; only the wanted tensors are read, and their checksums compared.

    Args:
        path: a file written by ``torch.save`` (zip or the older container); the content decides, not the extension.
        model_name: takes the entry ``<model_name>_state_dict``.

    Raises:
        ModelFileError: not such a file, damaged, or without the wanted entries.
    """
    try:
        with open_pth(path) as file:
            root = file.root
            if not isinstance(root, Mapping):
                raise ModelFileError(
                    f"{path} holds a {type(root).__name__}, not a dictionary with model_cfg and model_state_dict"
                )
            own = plain_config(root.get(OWN_KEY, {}), OWN_KEY)
            check_format(own, path)
            config = _config(root, path)
            entry = _state_entry(root, model_name, path)
            state = OrderedDict(
                (str(name), _read(file, ref, f"{model_name}{_STATE_SUFFIX}.{name}")) for name, ref in entry.items()
            )
            progress = _progress(file, root)
    except PthError as error:
        raise ModelFileError(f"cannot read the model file: {error}") from error
    try:
        cleaned = clean_names(state)
    except ValueError as error:
        raise ModelFileError(f"{path}: {error}") from error
    config, cleaned = modernise_tensor_names(str(config["class_name"]), config, cleaned)
    _merge(config, own.get("config", {}))
    classes = _own_entry(own, "classes", list, path)
    return ModelArtifact(
        config,
        cleaned,
        "file",
        path,
        check_classes(classes, str(path)) if classes is not None else None,
        {name: str(other) for name, other in (_own_entry(own, "tied", dict, path) or {}).items()},
        own,
        progress,
        trainer_state="optimizer_state_dict" in root,
    )


def _config(root: Mapping[Any, Any], path: Path) -> dict[str, Any]:
    if "model_cfg" not in root:
        raise ModelFileError(
            f"{path} has no 'model_cfg': it is not a model file of the toolkit (entries: {', '.join(map(str, list(root)[:8]))}). "
            "Its tensors can be read with hyperion_lite.pth.open_pth"
        )
    config = plain_config(root["model_cfg"])
    if not isinstance(config, dict) or not isinstance(config.get("class_name"), str):
        raise ModelFileError(f"{path}: 'model_cfg' has no 'class_name', so the model class is unknown")
    return config


def _state_entry(root: Mapping[Any, Any], model_name: str, path: Path) -> Mapping[Any, Any]:
    entry = root.get(f"{model_name}{_STATE_SUFFIX}")
    if not isinstance(entry, Mapping):
        names = [str(k)[: -len(_STATE_SUFFIX)] for k in root if str(k).endswith(f"model{_STATE_SUFFIX}")]
        raise ModelFileError(f"{path} has no weights {model_name!r}; it has: {', '.join(names) or 'none'}")
    return entry


def _read(file: Any, ref: Any, name: str) -> torch.Tensor:
    if not isinstance(ref, TensorRef):
        raise ModelFileError(f"{name} should be a tensor, the file holds a {type(ref).__name__}")
    stored = 0 if ref.storage is None else ref.storage.base.nbytes
    if ref.nbytes > max(stored, _MOST_EXPANDED_BYTES):
        raise ModelFileError(f"{name} would take {ref.nbytes} bytes, but the file holds only {stored} for it")
    # the file is only mapped into memory: a copy outlives it and can be trained
    with torch.inference_mode(False):
        return file.read_torch(ref, verify=True).clone(memory_format=torch.contiguous_format)


def _own_entry(own: Mapping[str, Any], key: str, kind: type, path: Path) -> Any:
    value = own.get(key)
    if value is not None and not isinstance(value, kind):
        raise ModelFileError(
            f"{path}: the entry {OWN_KEY}.{key} must be a {kind.__name__}, it is a {type(value).__name__}"
        )
    return value


def _progress(file: Any, root: Mapping[Any, Any]) -> dict[str, Any]:
    progress = {key: plain_number(root[key]) for key in _PROGRESS if key in root}
    if "step" in root and "global_step" not in progress:
        progress["global_step"] = plain_number(root["step"])
    logs = root.get("logs")
    if isinstance(logs, Mapping):
        progress["logs"] = {str(name): _metric(file, value, f"logs.{name}") for name, value in logs.items()}
    return progress


def _metric(file: Any, value: Any, name: str) -> Any:
    # metrics that were reduced over several devices lie in the file as tensors
    is_number = isinstance(value, TensorRef) and math.prod(value.shape) == 1
    return _read(file, value, name).item() if is_number else plain_number(value)


def _merge(config: dict[str, Any], extra: Any) -> None:
    for key, value in extra.items() if isinstance(extra, Mapping) else ():
        if isinstance(value, Mapping) and isinstance(config.get(key), dict):
            _merge(config[key], value)
        else:
            config[key] = value
