"""The files of a pretrained model in the layout of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.pth import Opaque, PthError, open_pth
from hyperion_lite.tpm.hf.hub import fetch_from_hub

_INDEX_SUFFIX = ".index.json"
_MOST_REPEATED_BYTES = 1 << 20
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class Pretrained(NamedTuple):
    """A pretrained model.

    Attributes:
        folder: where it lies.
        config: content of ``config.json``.
        processor: settings of the feature processor, ``None`` if there are none.
        state: tensor name -> tensor, as stored.
    """

    folder: Path
    config: dict[str, Any]
    processor: dict[str, Any] | None
    state: dict[str, torch.Tensor]


def open_pretrained(
    path: str, cache_dir: str | None = None, revision: str = "main", force_download: bool = False
) -> Pretrained:
    """Read a pretrained model; no code in its files is executed.

    Args:
        path: local directory; anything else is an id on the Hugging Face hub.
        cache_dir, revision, force_download: for the hub.

    Raises:
        FileNotFoundError: no such model, or a file of it is missing.
        ModelFileError: a file is damaged.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        if folder.is_absolute() or path.startswith(("./", "../", "~")):
            raise FileNotFoundError(f"pretrained_model_path {path!r}: there is no such directory")
        folder = fetch_from_hub(path, cache_dir, revision, force_download)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is no pretrained model of transformers: it has no config.json")
    return Pretrained(folder, read_json(folder / "config.json"), _read_processor(folder), read_weights(folder))


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises ModelFileError when it holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} must hold a mapping, it holds a {type(content).__name__}")
    return content


def _read_processor(folder: Path) -> dict[str, Any] | None:
    if (folder / "preprocessor_config.json").is_file():
        return read_json(folder / "preprocessor_config.json")
    if (folder / "processor_config.json").is_file():
        inner = read_json(folder / "processor_config.json").get("feature_extractor")
        return inner if isinstance(inner, dict) else None
    return None


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a pretrained model, in one file or several; safetensors where there are such files.

    Raises:
        FileNotFoundError: no weights, or a part of them is missing.
        ModelFileError: a file is damaged.
    """
    for name in _WEIGHTS:
        if (folder / f"{name}{_INDEX_SUFFIX}").is_file():
            return _read_parts(folder, folder / f"{name}{_INDEX_SUFFIX}")
        if (folder / name).is_file():
            return dict(_read_file(folder / name))
    raise FileNotFoundError(f"{folder} has no weights: expected {' or '.join(_WEIGHTS)}, or their index")


def _read_parts(folder: Path, index: Path) -> dict[str, torch.Tensor]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, Mapping) or not all(isinstance(part, str) for part in table.values()):
        raise ModelFileError(f"{index} has no weight_map from tensor names to files")
    state: dict[str, torch.Tensor] = {}
    for part in sorted(set(table.values())):
        if Path(part).name != part or part in ("", ".", ".."):
            raise ModelFileError(f"{index} names {part!r}, which is not a file of its own directory")
        if not (folder / part).is_file():
            raise FileNotFoundError(f"{index} names {part}, which is not in {folder}")
        state.update(_read_file(folder / part))
    lacking = [name for name in table if name not in state]
    if lacking:
        raise ModelFileError(f"{index} lists tensors that its files do not hold: {', '.join(map(str, lacking[:10]))}")
    return state


def _read_file(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickled(path)


def _read_safetensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import safetensors

    try:
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                yield name, file.get_tensor(name)
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is damaged or no safetensors file: {error}") from error


def _read_pickled(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with open_pth(path) as file:
            content = file.root if isinstance(file.root, Mapping) else {"": file.root}
            foreign = [
                f"{name}: {value.qualified_name}" for name, value in content.items() if isinstance(value, Opaque)
            ]
            if foreign:
                raise ModelFileError(f"{path} holds other objects than tensors, which no weights need: {foreign[:5]}")
            for name, tensor in file.state_dict(as_torch=True, verify=True).items():
                if tensor.numel() * tensor.element_size() > max(
                    tensor.untyped_storage().nbytes(), _MOST_REPEATED_BYTES
                ):
                    raise ModelFileError(f"{path}: {name} repeats few stored elements many times; a weight does not")
                # the file is only mapped into memory
                yield name, tensor.clone(memory_format=torch.contiguous_format)
    except PthError as error:
        raise ModelFileError(f"{path}: {error}") from error
