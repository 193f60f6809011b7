"""The model directory: ``config.json``, ``model.safetensors`` and, with a class table, ``classes.csv``."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hyperion_lite._version import __version__
from hyperion_lite.core.atomic import atomic_directory
from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.serialization.artifact import FORMAT_VERSION, OWN_KEY, ModelArtifact
from hyperion_lite.serialization.classes import CLASSES_FILE, check_classes, read_classes, write_classes
from hyperion_lite.serialization.legacy import modernise_tensor_names
from hyperion_lite.serialization.names import clean_names
from hyperion_lite.serialization.tensors import pack_state

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_OURS = {CONFIG_FILE, WEIGHTS_FILE, CLASSES_FILE}


def write_model_files(
    folder: Path, config: Mapping[str, Any], state: Mapping[str, torch.Tensor], classes: Sequence[str] | None = None
) -> None:
    """Write the files of a model into the existing ``folder``; the caller publishes the folder."""
    tensors, tied = pack_state(state)
    own = {"format": FORMAT_VERSION, "version": __version__}
    document = {**config, OWN_KEY: own}
    (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    metadata = {"format": "pt", **({"tied": json.dumps(tied)} if tied else {})}
    save_file(dict(tensors), folder / WEIGHTS_FILE, metadata=metadata)
    if classes is not None:
        write_classes(folder / CLASSES_FILE, check_classes(classes, "class table"))


def write_directory(
    path: Path, config: Mapping[str, Any], state: Mapping[str, torch.Tensor], classes: Sequence[str] | None = None
) -> None:
    """Publish a model directory at ``path`` atomically, replacing a model directory that is there.

    Raises:
        FileExistsError: ``path`` is something else than a model directory; nothing is written.
    """
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file; give a new directory, or a name ending in .pth for a single file")
    if path.is_dir():
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in _OURS)
        if others:
            raise FileExistsError(
                f"{path} exists and holds other things than a model ({', '.join(others[:5])}); saving would lose them. Give a new directory"
            )
    with atomic_directory(path) as folder:
        write_model_files(folder, config, state, classes)


def read_directory(folder: Path, model_name: str = "model") -> ModelArtifact:
    """Read a model directory.

    Args:
        folder: holds ``config.json`` and ``<model_name>.safetensors``.
        model_name: which weights: ``model``, ``swa_model``.

    Raises:
        FileNotFoundError: a file is missing; says which and what is there.
        ModelFileError: malformed, or of a newer format.
    """
    config_path = folder / CONFIG_FILE
    if not config_path.is_file():
        raise FileNotFoundError(f"{folder} is no model directory: it has no {CONFIG_FILE}")
    config = _read_json(config_path)
    own = config.pop(OWN_KEY, {})
    check_format(own, config_path)
    if "class_name" not in config:
        raise ModelFileError(
            f"{config_path} has no class_name: it is not a speaker model (codec models are written so and are not supported)"
        )
    weights = folder / f"{model_name}.safetensors"
    if not weights.is_file():
        there = sorted(p.stem for p in folder.glob("*.safetensors"))
        raise FileNotFoundError(f"{folder} has no weights {weights.name}; it has: {', '.join(there) or 'none'}")
    state, tied = _read_weights(weights)
    config, state = modernise_tensor_names(str(config["class_name"]), config, state)
    classes = read_classes(folder / CLASSES_FILE) if (folder / CLASSES_FILE).is_file() else None
    return ModelArtifact(
        config, state, "directory", folder, classes, tied, own, trainer_state=(folder / "optimizer.pt").is_file()
    )


def check_format(own: Any, where: Path) -> None:
    """Raise :class:`ModelFileError` for what a newer release of this package wrote."""
    if not isinstance(own, Mapping):
        raise ModelFileError(f"{where}: the entry {OWN_KEY!r} must be a mapping, it is a {type(own).__name__}")
    version = own.get("format", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ModelFileError(
            f"{where} has format {version!r}, written by hyperion_lite {own.get('version', '?')}; this release reads formats up to "
            f"{FORMAT_VERSION}. Run: pip install -U hyperion-lite"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelFileError(f"{path} must hold a JSON object, it holds a {type(document).__name__}")
    return document


def _read_weights(path: Path) -> tuple[OrderedDict[str, torch.Tensor], dict[str, str]]:
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
        state = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(
            f"{path} cannot be read as safetensors ({error}); it is damaged or was not written completely"
        ) from error
    try:
        tied = {str(k): str(v) for k, v in json.loads(metadata.get("tied", "{}")).items()}
        cleaned = clean_names(state)
    except (json.JSONDecodeError, AttributeError, ValueError) as error:
        raise ModelFileError(f"{path}: {error}") from error
    return cleaned, tied
