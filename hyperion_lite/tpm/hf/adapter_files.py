"""Adapters in a directory of their own, in the layout of peft: ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hyperion_lite.core.atomic import atomic_directory
from hyperion_lite.core.errors import ConfigError, ModelFileError
from hyperion_lite.serialization.tensors import pack_state
from hyperion_lite.tpm.hf.lora import ADAPTER, LoRASettings
from hyperion_lite.tpm.hf.pretrained import read_json

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_OURS = {_CONFIG, _WEIGHTS, "README.md"}
_NAMED = re.compile(rf"\.(lora_[AB])\.{ADAPTER}\.weight$")
_IN_FILE = re.compile(r"\.(lora_[AB])\.weight$")

# what peft can do beside plain adapters; each changes the computation, or which layers have one
_UNKNOWN = (
    "use_dora",
    "use_rslora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "layers_to_transform",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "exclude_modules",
    "target_parameters",
    "trainable_token_indices",
)


def write_adapters(path: Path, settings: LoRASettings, bias: str, state: Mapping[str, torch.Tensor]) -> None:
    """Publish the directory ``path`` atomically, replacing adapters that are there.

    Args:
        path: the directory.
        settings: of the adapters.
        bias: which biases are among the tensors, in the words of peft.
        state: tensors as the wrapped encoder names them.

    Raises:
        FileExistsError: ``path`` holds something else.
    """
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file; adapters are saved as a directory")
    others = sorted(e.name for e in path.iterdir() if e.name not in _OURS) if path.is_dir() else []
    if others:
        raise FileExistsError(
            f"{path} exists and holds other things than adapters ({', '.join(others[:5])}); saving would lose them. Give a new directory"
        )
    document = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "target_modules": list(settings.components),
        "bias": bias,
    }
    tensors, _ = pack_state({_NAMED.sub(r".\1.weight", name): value for name, value in state.items()})
    with atomic_directory(path) as folder:
        (folder / _CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        save_file(dict(tensors), folder / _WEIGHTS, metadata={"format": "pt"})


def read_adapters(path: Path) -> tuple[LoRASettings, dict[str, torch.Tensor]]:
    """Settings and tensors of adapters, ours or peft's, the tensors named as in the wrapped encoder.

    Raises:
        FileNotFoundError: a file is missing.
        ModelFileError: a file is damaged.
        ConfigError: adapters of a kind that is not supported.
    """
    for name in (_CONFIG, _WEIGHTS):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} is no directory of adapters: it has no {name}")
    settings = _settings(read_json(path / _CONFIG), path / _CONFIG)
    try:
        stored = load_file(path / _WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path / _WEIGHTS} cannot be read as safetensors: {error}") from error
    return settings, {_IN_FILE.sub(rf".\1.{ADAPTER}.weight", name): value for name, value in stored.items()}


def _settings(document: Mapping[str, Any], where: Path) -> LoRASettings:
    kind = document.get("peft_type")
    if kind != "LORA":
        raise ConfigError(f"{where}: adapters of type {kind!r} are not supported, only LORA")
    unknown = [key for key in _UNKNOWN if document.get(key)]
    if unknown:
        raise ConfigError(f"{where}: adapters with {', '.join(unknown)} are not supported")
    components = document.get("target_modules")
    if not isinstance(components, list) or not all(isinstance(name, str) for name in components):
        raise ConfigError(f"{where}: target_modules must be a list of names of layers, got {components!r}")
    numbers = {key: document.get(key, default) for key, default in (("r", 8), ("lora_alpha", 8), ("lora_dropout", 0.0))}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int if key == "r" else (int, float)):
            raise ConfigError(f"{where}: {key} must be a number, got {value!r}")
    return LoRASettings(tuple(sorted(components)), numbers["r"], numbers["lora_alpha"], numbers["lora_dropout"])
