"""What is inside a checkpoint directory, written and read as one object; the format is described in ``docs/checkpoints.md``."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.serialization.directory import read_directory, write_model_files
from hyperion_lite.serialization.locate import RNG_STATE_FILE, TRAINER_STATE_FILE
from hyperion_lite.serialization.tensors import pack_state

OPTIMIZER_FILE = "optimizer.pt"
CONFIG_YAML = "config.yaml"
_STATE_FILES = {
    "lr_scheduler": "lr_scheduler.pt",
    "wd_scheduler": "wd_scheduler.pt",
    "swa_scheduler": "swa_scheduler.pt",
    "grad_scaler": "grad_scaler.pt",
}


class UnreadableCheckpointError(ModelFileError):
    """A checkpoint is damaged or lacks files."""


@dataclass
class Checkpoint:
    """Everything that training continues from.

    Attributes:
        trainer_state: progress, logs, sampler position, world size and identity of the run; plain JSON types.
        rng: document of ``rng_state.pth``.
        model_config: configuration of the model with its ``class_name``.
        model_state: tensors of the model.
        classes: ids of its classes in index order.
        optimizer: state by parameter name, or torch's numbered one.
        states: of ``lr_scheduler``, ``wd_scheduler``, ``swa_scheduler``, ``grad_scaler``, as far as there are such.
        averages: ``swa_model``, ``ema_model``: averaged tensors.
        config_yaml: the configuration of the whole run, as text.
        model_name: directory of the model.
    """

    trainer_state: dict[str, Any]
    rng: Any
    model_config: dict[str, Any]
    model_state: Mapping[str, torch.Tensor]
    classes: list[str] | None
    optimizer: dict[str, Any]
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    averages: dict[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    config_yaml: str | None = None
    model_name: str = "model"

    def copy_to_host(self) -> Checkpoint:
        """A copy that shares no memory with the training state, on the CPU: what an asynchronous save writes."""
        memo: dict[Any, torch.Tensor] = {}
        return Checkpoint(
            json.loads(json.dumps(self.trainer_state)),
            _host(self.rng, memo),
            json.loads(json.dumps(self.model_config)),
            _host(self.model_state, memo),
            self.classes,
            # collected as a copy already
            self.optimizer,
            _host(self.states, memo),
            _host(self.averages, memo),
            self.config_yaml,
            self.model_name,
        )


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write all files into the existing ``folder``; the caller publishes it.

    Raises:
        OSError: the disk does not take it.
    """
    try:
        _write_files(folder, checkpoint)
    except (SafetensorError, RuntimeError) as error:
        # how safetensors and torch.save report a full disk
        raise OSError(f"{folder}: {error}") from error


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    text = json.dumps(checkpoint.trainer_state, indent=2)
    (folder / TRAINER_STATE_FILE).write_text(text + "\n", encoding="utf-8")
    _save(checkpoint.rng, folder / RNG_STATE_FILE)
    if checkpoint.config_yaml is not None:
        (folder / CONFIG_YAML).write_text(checkpoint.config_yaml, encoding="utf-8")
    model = folder / checkpoint.model_name
    model.mkdir(exist_ok=True)
    write_model_files(model, checkpoint.model_config, checkpoint.model_state, checkpoint.classes)
    _save(checkpoint.optimizer, model / OPTIMIZER_FILE)
    for name, state in checkpoint.states.items():
        _save(state, model / _STATE_FILES[name])
    for name, tensors in checkpoint.averages.items():
        save_tensors(tensors, model / f"{name}.safetensors")


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write averaged weights."""
    save_file(dict(pack_state(tensors)[0]), path, metadata={"format": "pt"})


def read_checkpoint(folder: Path, model_name: str = "model") -> Checkpoint:
    """Read all files of a checkpoint to the CPU; no code in them is executed.

    Raises:
        UnreadableCheckpointError: a file is missing or damaged; says which.
    """
    model = folder / model_name
    try:
        artifact = read_directory(model)
        trainer_state = json.loads((folder / TRAINER_STATE_FILE).read_text(encoding="utf-8"))
        if not isinstance(trainer_state, dict):
            raise UnreadableCheckpointError(f"{folder / TRAINER_STATE_FILE} must hold a JSON object")
        states = {n: _load(model / file) for n, file in _STATE_FILES.items() if (model / file).is_file()}
        averages = {
            path.stem: load_file(path)
            for path in model.glob("*.safetensors")
            if path.stem in ("swa_model", "ema_model")
        }
        config_yaml = folder / CONFIG_YAML
        return Checkpoint(
            trainer_state,
            _load(folder / RNG_STATE_FILE),
            artifact.config,
            {**artifact.state, **{name: artifact.state[stored] for name, stored in artifact.tied.items()}},
            artifact.classes,
            _load(model / OPTIMIZER_FILE),
            states,
            dict(averages),
            config_yaml.read_text(encoding="utf-8") if config_yaml.is_file() else None,
            model_name,
        )
    except UnreadableCheckpointError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise UnreadableCheckpointError(f"{folder} cannot be read: {error}") from error


def _save(value: Any, path: Path) -> None:
    torch.save(value, path)


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError) as error:
        raise UnreadableCheckpointError(f"{path} cannot be read: {error}") from error


def _host(value: Any, memo: dict[Any, torch.Tensor]) -> Any:
    """A copy on the CPU; tensors that are the same memory stay the same memory, so that tied ones are still stored once."""
    if isinstance(value, torch.Tensor):
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else object()
        if key not in memo:
            memo[key] = value.detach().to("cpu", copy=True)
        return memo[key]
    if isinstance(value, Mapping):
        return {key: _host(v, memo) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_host(v, memo) for v in value)
    return value
