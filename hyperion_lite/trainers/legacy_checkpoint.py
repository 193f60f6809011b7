"""Checkpoints of the original toolkit (``model_ep0001_step0000000004.pth``) as checkpoint directories of this package.

Files are read by :mod:`hyperion_lite.pth`; nothing in them is executed.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from hyperion_lite._version import __version__
from hyperion_lite.core.atomic import atomic_directory
from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.lr_schedulers.factory import LRSchedulerFactory
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.pth import open_pth
from hyperion_lite.pth.errors import PthError
from hyperion_lite.pth.values import TensorRef
from hyperion_lite.serialization.directory import write_model_files
from hyperion_lite.serialization.locate import RNG_STATE_FILE, TRAINER_STATE_FILE
from hyperion_lite.serialization.lora_names import match_adapters
from hyperion_lite.serialization.names import clean_names, match_weight_norm
from hyperion_lite.serialization.plain import plain_number
from hyperion_lite.serialization.single_file import read_single_file
from hyperion_lite.trainers.checkpoint_files import OPTIMIZER_FILE, save_tensors
from hyperion_lite.trainers.checkpoint_store import checkpoint_name, parse_checkpoint_name
from hyperion_lite.trainers.compatibility import document_hash
from hyperion_lite.trainers.optimizer_state import name_state
from hyperion_lite.trainers.rng_state import pack_rng_states
from hyperion_lite.wd_schedulers.cos_wd import CosineWD

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_PROGRESS = ("epoch", "batch", "step")
_SAFE_NAME = re.compile(r"^[A-Za-z][\w-]*$")


@dataclass
class LegacyCheckpoint:
    """A file of the original toolkit, converted in memory.

    Attributes:
        source: the file.
        model: with its weights and resolved configuration.
        average: tensors of the running average, or ``None``.
        trainer_state: progress and logs.
        files: content of further files of the model directory, by name.
        rng: torch's CPU state, or ``None``.
        notes: what the user should know.
    """

    source: Path
    model: HyperTorchModel
    average: dict[str, torch.Tensor] | None
    trainer_state: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)
    rng: torch.Tensor | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def progress(self) -> tuple[int, ...]:
        """(epoch, batch, step)."""
        return tuple(int(self.trainer_state[key]) for key in _PROGRESS)


def read_legacy_checkpoint(path: Path, with_trainer_state: bool, lora_merged: bool | None = None) -> LegacyCheckpoint:
    """Read a model file or trainer checkpoint.

    Args:
        path: the ``.pth`` file.
        with_trainer_state: read optimizer, schedulers and random state too.
        lora_merged: see :meth:`HyperTorchModel.auto_load`.

    Raises:
        FileNotFoundError: nothing there.
        ModelFileError: not such a file, or no trainer checkpoint where one is asked for.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    model = HyperTorchModel.auto_load(path, lora_merged=lora_merged)
    try:
        with open_pth(path) as file:
            root: Mapping[Any, Any] = file.root
            average = _average(path, model) if isinstance(root.get("swa_model_state_dict"), Mapping) else None
            converted = LegacyCheckpoint(path, model, average, _trainer_state(root, model))
            if with_trainer_state:
                _add_trainer_state(converted, {key: root[key] for key in root if key != "model_state_dict"}, file)
    except PthError as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error
    return converted


def convert_legacy_checkpoints(
    sources: Sequence[Path],
    target: Path,
    model_names: Sequence[str] = ("model",),
    with_trainer_state: bool = False,
    lora_merged: bool | None = None,
) -> list[str]:
    """Write files of the original toolkit into the directory ``target``, one model directory each, all of them or nothing.

    Args:
        sources: the ``.pth`` files.
        target: new, or with models of the same progress, which stay.
        model_names: name of the model directory of each.
        with_trainer_state: write what training resumes from too. ``target`` should then be called as the checkpoint is
            (``checkpoint_ep0001_step0000000003``), in an experiment directory.
        lora_merged: see :meth:`HyperTorchModel.auto_load`.

    Returns:
        What the user should know.

    Raises:
        ValueError: progress that differs, or names that cannot be used; nothing is written.
        FileExistsError: ``target`` has such a model already, or is a file; nothing is written.
    """
    check_names(sources, target, model_names)
    converted = [read_legacy_checkpoint(source, with_trainer_state, lora_merged) for source in sources]
    if with_trainer_state:
        _check_progress(converted, target)
    with atomic_directory(target) as folder:
        if target.is_dir():
            shutil.copytree(target, folder, dirs_exist_ok=True)
        for one, name in zip(converted, model_names, strict=True):
            _write_model(one, folder / name)
        if with_trainer_state and not (folder / TRAINER_STATE_FILE).is_file():
            (folder / TRAINER_STATE_FILE).write_text(
                json.dumps(converted[0].trainer_state, indent=2) + "\n", encoding="utf-8"
            )
            torch.save(_rng_document(converted), folder / RNG_STATE_FILE)
    notes = [note for one in converted for note in one.notes]
    if with_trainer_state and parse_checkpoint_name(target.name) is None:
        epoch, _, step = converted[0].progress
        notes.append(f"training resumes from it when it is called EXPERIMENT/{checkpoint_name(epoch, step)}")
    return notes


def check_names(sources: Sequence[Path], target: Path, model_names: Sequence[str]) -> None:
    """Raise ``ValueError`` or ``FileExistsError`` where models called so cannot be written into the directory ``target``."""
    if len(sources) != len(model_names) or len(set(model_names)) != len(model_names):
        raise ValueError(
            f"{len(sources)} files need as many different model names, given are: {', '.join(model_names) or 'none'}"
        )
    for name in model_names:
        if not _SAFE_NAME.match(name):
            raise ValueError(f"{name!r} cannot be the name of a model directory; use letters, digits, _ and -")
        if (target / name).exists():
            raise FileExistsError(f"{target / name} exists; give another directory or another --model-name")
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; give a new directory")


def _check_progress(converted: Sequence[LegacyCheckpoint], target: Path) -> None:
    progress = {str(one.source): one.progress for one in converted}
    state_file = target / TRAINER_STATE_FILE
    if state_file.is_file():
        state = json.loads(state_file.read_text(encoding="utf-8"))
        progress[str(target)] = tuple(int(state.get(key, 0)) for key in _PROGRESS)
    if len(set(progress.values())) > 1:
        shown = "; ".join(f"{name}: epoch {e}, batch {b}, step {s}" for name, (e, b, s) in progress.items())
        raise ValueError(f"models of one checkpoint must have the same progress, nothing was written: {shown}")


def _write_model(one: LegacyCheckpoint, folder: Path) -> None:
    folder.mkdir()
    write_model_files(folder, one.model.get_config(), one.model.state_dict(), one.model.class_names)
    if one.average is not None:
        save_tensors(one.average, folder / "swa_model.safetensors")
    for name, content in one.files.items():
        torch.save(content, folder / name)


def _rng_document(converted: Sequence[LegacyCheckpoint]) -> dict[str, Any]:
    known = [one.rng for one in converted if one.rng is not None]
    # a run whose random state is not known continues from a fixed one
    return pack_rng_states([{"torch": known[0] if known else torch.Generator().manual_seed(0).get_state()}])


def _average(path: Path, model: HyperTorchModel) -> dict[str, torch.Tensor]:
    """The tensors of the average under the names that torch's averaged model gives them."""
    artifact = read_single_file(path, "swa_model")
    with open_pth(path) as file:
        entry = file.root["swa_model_state_dict"]
        counts = [ref for name, ref in entry.items() if str(name).rsplit(".", 1)[-1] == "n_averaged"]
        count = file.read_torch(counts[0]).clone() if counts else torch.tensor(1)
    return {"n_averaged": count, **{f"module.{name}": tensor for name, tensor in _as_in(model, artifact.state).items()}}


def _as_in(model: HyperTorchModel, state: Mapping[str, _T]) -> dict[str, _T]:
    """``state`` with adapters and weight norm spelled as ``model`` does, in its own order."""
    targets = model.state_dict()
    return dict(match_weight_norm(match_adapters(state, targets), targets))


def _trainer_state(root: Mapping[Any, Any], model: HyperTorchModel) -> dict[str, Any]:
    logs = root.get("logs")
    return {
        "format": 1,
        "version": __version__,
        "epoch": int(plain_number(root.get("epoch")) or 0),
        "batch": int(plain_number(root.get("batch")) or 0),
        "step": int(plain_number(root.get("global_step", root.get("step"))) or 0),
        "logs": {str(k): plain_number(v) for k, v in logs.items()} if isinstance(logs, Mapping) else {},
        "run": {"model_config_hash": document_hash(model.get_config())},
    }


def _add_trainer_state(one: LegacyCheckpoint, root: Mapping[Any, Any], file: Any) -> None:
    if not isinstance(root.get("optimizer_state_dict"), Mapping):
        raise ModelFileError(
            f"{one.source} has no optimizer state: it is a model file, convert it without the trainer state"
        )
    optimizer = _read_values(file, root["optimizer_state_dict"])
    if "param_groups" in optimizer:
        optimizer = _name_optimizer_state(one, optimizer, file)
    one.files[OPTIMIZER_FILE] = optimizer
    for key, known in (("lr_scheduler", _knows_lr_state), ("wd_scheduler", _knows_wd_state)):
        state = root.get(f"{key}_state_dict")
        if state is None:
            continue
        state = _read_values(file, state)
        if known(state):
            one.files[f"{key}.pt"] = state
        else:
            one.notes.append(
                f"{one.source}: the state of its {key} is of an unknown kind and is left out; when training resumes, the scheduler is "
                f"put where it is after {one.trainer_state['epoch']} epochs and {one.trainer_state['step']} steps"
            )
    if root.get("swa_scheduler_state_dict") is not None and one.average is not None:
        one.files["swa_scheduler.pt"] = _read_values(file, root["swa_scheduler_state_dict"])
    if isinstance(root.get("rng_state"), TensorRef):
        one.rng = file.read_torch(root["rng_state"], verify=True).clone()
    else:
        one.notes.append(f"{one.source} has no random state; training continues from a fixed one")


def _read_values(file: Any, value: Any) -> Any:
    """Tensors instead of references, plain numbers instead of numpy's."""
    if isinstance(value, TensorRef):
        return file.read_torch(value, verify=True).clone(memory_format=torch.contiguous_format)
    if isinstance(value, Mapping):
        return {key: _read_values(file, v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_read_values(file, v) for v in value)
    return plain_number(value)


def _name_optimizer_state(one: LegacyCheckpoint, saved: dict[str, Any], file: Any) -> dict[str, Any]:
    """Replace the numbers of the parameters by names.

    The original toolkit numbers the parameters that learn in the order of the model, group by group; which ones learn is not stored, so
    the train modes of the model are tried until numbers and shapes fit.
    """
    stored = clean_names({str(k): None for k in file.root["model_state_dict"]})
    order = list(_as_in(one.model, stored))
    groups = saved["param_groups"]
    for mode in one.model.valid_train_modes:
        one.model.set_train_mode(mode)
        for learning in _counted_parameters(one.model):
            names = [name for name in order if name in learning]
            if len(groups) == 2:
                small = [n for n in names if n.endswith("bias") or learning[n].dim() <= 1]
                names = [n for n in names if n not in small] + small
            if len(names) == sum(len(g["params"]) for g in groups):
                named = name_state(saved, names)
                if all(_fits(values, learning[name]) for name, values in named["state"].items()):
                    return named
    raise ModelFileError(
        f"{one.source}: its optimizer state has {sum(len(g['params']) for g in groups)} parameters, which fit no train mode of "
        f"{type(one.model).__name__} ({', '.join(one.model.valid_train_modes)}); convert the model without the trainer state"
    )


def _counted_parameters(model: HyperTorchModel) -> Iterator[dict[str, torch.nn.Parameter]]:
    """The parameters that an optimizer of the present train mode may count: those that learn, and with them those of the same encoders
    that can never get a gradient, which the original toolkit does not freeze."""
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    yield learning
    without_gradient = {
        id(p)
        for module in model.modules()
        if any(p.requires_grad for p in module.parameters())
        for p in getattr(module, "fixed_parameters", list)()
    }
    if without_gradient:
        yield {name: p for name, p in model.named_parameters() if name in learning or id(p) in without_gradient}


def _fits(values: Mapping[str, Any], parameter: torch.Tensor) -> bool:
    return all(v.shape == parameter.shape for v in values.values() if isinstance(v, torch.Tensor) and v.dim() > 0)


def _knows_lr_state(state: Mapping[str, Any]) -> bool:
    common = {"min_lrs", "base_lrs", "warmup_steps", "update_lr_on_opt_step"}
    return any(
        set(state) == {*common, *cls.option_keys, *cls.position_keys} for cls in LRSchedulerFactory.lrsch_types.values()
    )


def _knows_wd_state(state: Mapping[str, Any]) -> bool:
    # a scheduler over a parameter that is never used, only to see what its state is made of
    example = CosineWD(torch.optim.SGD([torch.zeros(1)], lr=1.0))
    return set(state) == set(example.state_dict())
