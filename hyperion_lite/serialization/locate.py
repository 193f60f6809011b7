"""From what a user calls "the model" to the file or directory that holds it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hyperion_lite.core.atomic import is_temporary
from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.core.extras import require
from hyperion_lite.serialization.artifact import ModelArtifact
from hyperion_lite.serialization.directory import CONFIG_FILE, read_directory
from hyperion_lite.serialization.single_file import SUFFIXES, read_single_file

logger = logging.getLogger(__name__)

HUB_PREFIX = "hf:"
TRAINER_STATE_FILE = "trainer_state.json"
RNG_STATE_FILE = "rng_state.pth"
_CHECKPOINT = re.compile(r"^checkpoint_ep(\d+)_step(\d+)$")
_CHECKPOINT_FILE = re.compile(r"^(?:swa_)?model_ep(\d+)(?:_step(\d+))?\.pth$")


@dataclass(frozen=True)
class _Candidate:
    order: tuple[int, int]
    path: Path


def read_model(path: str | Path, model_name: str = "model") -> ModelArtifact:
    """Read a model from any of the forms that a user may name.

    Args:
        path: a ``.pth``/``.pt`` file, a model directory, a training checkpoint directory (its ``model/``), an experiment directory
            (its newest complete checkpoint), or ``hf:org/repo[/file]``.
        model_name: which weights, for instance ``swa_model``.

    Raises:
        FileNotFoundError: nothing there; a missing local path is never looked up on a hub.
        ModelFileError: nothing readable there.
    """
    text = str(path)
    if text.startswith(HUB_PREFIX):
        return read_model(_download(text), model_name)
    target = Path(path)
    if target.is_file():
        return read_single_file(target, model_name)
    if not target.exists():
        raise FileNotFoundError(
            f"there is no model at {target}. Give a .pth file, a model, checkpoint or experiment directory, or hf:org/repo"
        )
    if (target / CONFIG_FILE).is_file():
        return read_directory(target, model_name)
    if (target / TRAINER_STATE_FILE).is_file() or (target / "model").is_dir():
        return _read_checkpoint(target, model_name)
    return _read_experiment(target, model_name)


def _read_checkpoint(folder: Path, model_name: str) -> ModelArtifact:
    """The model inside a training checkpoint: ``model/``, a folder of the asked name, or the only one."""
    named = folder / model_name
    if model_name != "model" and (named / CONFIG_FILE).is_file():
        artifact = read_directory(named)
    else:
        models = sorted(p.parent for p in folder.glob(f"*/{CONFIG_FILE}"))
        if (folder / "model" / CONFIG_FILE).is_file():
            models = [folder / "model"]
        if len(models) != 1:
            names = ", ".join(p.name for p in models) or "none"
            raise ModelFileError(f"{folder} should hold one model, it holds: {names}. Name one with model_name=")
        artifact = read_directory(models[0], model_name)
    artifact.progress = read_progress(folder)
    return artifact


def read_progress(folder: Path) -> dict[str, object]:
    """Progress recorded in a checkpoint directory; ``step`` is called ``global_step``."""
    path = folder / TRAINER_STATE_FILE
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}") from error
    progress = {key: document[key] for key in ("epoch", "batch", "global_step", "logs") if key in document}
    if "step" in document:
        progress.setdefault("global_step", document["step"])
    return progress


def is_complete_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` has everything a finished training checkpoint has."""
    if is_temporary(folder) or not (folder / TRAINER_STATE_FILE).is_file() or not (folder / RNG_STATE_FILE).is_file():
        return False
    models = [p.parent for p in folder.glob(f"*/{CONFIG_FILE}")]
    return bool(models) and all((m / "model.safetensors").is_file() and (m / "optimizer.pt").is_file() for m in models)


def find_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoint directories of an experiment, newest (highest epoch and step) first."""
    found = []
    for entry in folder.iterdir():
        match = _CHECKPOINT.match(entry.name)
        if match and entry.is_dir() and is_complete_checkpoint(entry):
            found.append(_Candidate((int(match.group(1)), int(match.group(2))), entry))
    return [c.path for c in sorted(found, key=lambda c: c.order, reverse=True)]


def _find_checkpoint_files(folder: Path) -> list[Path]:
    found = []
    for entry in folder.iterdir():
        match = _CHECKPOINT_FILE.match(entry.name)
        if match and entry.is_file():
            # a file without a step was written at the end of its epoch, after every file with one of the epoch before
            found.append(_Candidate((int(match.group(1)), int(match.group(2) or 0)), entry))
    return [c.path for c in sorted(found, key=lambda c: (c.order, c.path.name), reverse=True)]


def _read_experiment(folder: Path, model_name: str) -> ModelArtifact:
    readers: list[tuple[Path, Callable[[Path, str], ModelArtifact]]] = [
        (p, _read_checkpoint) for p in find_checkpoints(folder)
    ]
    readers += [(p, read_single_file) for p in _find_checkpoint_files(folder)]
    problems: list[str] = []
    for path, reader in readers:
        try:
            artifact = reader(path, model_name)
        except (ModelFileError, FileNotFoundError) as error:
            problems.append(f"{path.name}: {error}")
            logger.warning("skipped an unreadable checkpoint, the one before is used: %s", error)
            continue
        logger.info("%s: loading %s", folder, path.name)
        return artifact
    if problems:
        raise ModelFileError(f"no checkpoint in {folder} can be read: {'; '.join(problems)}")
    raise FileNotFoundError(
        f"{folder} is no model, checkpoint or experiment directory: it has neither {CONFIG_FILE} nor a complete "
        f"checkpoint_ep*_step* directory nor a model_ep*.pth file (files looked at end in {' or '.join(SUFFIXES)})"
    )


def _download(address: str) -> Path:
    """Fetch ``hf:org/repo[/file]`` into the hub's cache; the path of the file, or of the folder with the model files."""
    hub = require("huggingface_hub", purpose="models on the Hugging Face hub")
    parts = address[len(HUB_PREFIX) :].split("/")
    if len(parts) < 2 or not all(parts):
        raise ValueError(f"{address!r} is no hub address; expected hf:org/repo or hf:org/repo/file")
    repo = "/".join(parts[:2])
    if len(parts) > 2:
        return Path(hub.hf_hub_download(repo, "/".join(parts[2:])))
    patterns = [CONFIG_FILE, "*.safetensors", "classes.csv"]
    return Path(hub.snapshot_download(repo, allow_patterns=patterns))
