"""Training and validation data of a run, from its configuration, with one class table for both."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.loader import LoaderFactory, ResumableLoader
from hyperion_lite.data.manifests import ClassInfo
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory

logger = logging.getLogger(__name__)

_SOURCES = ("recordings_file", "segments_file", "dataset_path")


class PhaseLoaders:
    """Loaders of the phases of a run; a phase with the batches of the one before has its loader, too.

    Args:
        loaders: one for each phase.
    """

    def __init__(self, loaders: Sequence[ResumableLoader]) -> None:
        self._loaders = list(loaders)

    def for_phase(self, index: int) -> ResumableLoader:
        """The loader of phase ``index``. The workers of all others are ended: each loader has its own."""
        chosen = self._loaders[index]
        for loader in self._loaders:
            if loader is not chosen:
                loader.stop_workers()
        return chosen


@dataclass(frozen=True)
class TrainingData:
    """Loaders of a run.

    Attributes:
        train: training batches; of several phases where those differ.
        val: validation batches, or ``None``.
        trials: trial list of the validation, see ``XVectorTrainer``.
        class_ids: class ids in index order, those that speed perturbation makes included.
    """

    train: ResumableLoader | PhaseLoaders
    val: ResumableLoader | None
    trials: str | None
    class_ids: list[str]


def make_training_data(
    config: Mapping[str, Any], target: str, folder: Path, sampler_changes: Sequence[Mapping[str, Any]] = ({},)
) -> TrainingData:
    """Make what ``config`` (the section ``data``) describes, for this rank.

    Args:
        config: ``train`` and ``val``, each with ``dataset``, ``sampler``, ``data_loader``; ``val`` has ``trials`` too.
        target: the class that is learnt, a column of the segments.
        folder: gets the class table, ``classes_<target>.csv``, which validation reads.
        sampler_changes: for each phase of the training what differs from the options of the sampler.

    Raises:
        ConfigError: no training data, or options that do not go together.
        FileNotFoundError: a manifest is missing.
        ManifestError: a manifest is malformed, or validation has a class that training lacks.
    """
    options = dict(config["train"])
    if not _has_source(options["dataset"]):
        raise ConfigError(f"data.train.dataset names no data: give one of {', '.join(_SOURCES)}")
    dataset = _make_dataset(options["dataset"], target, None, "data.train.dataset")
    if target not in dataset.class_infos:
        raise ConfigError(f"data.train.dataset.class_names lacks {target!r}, the target_key of the trainer")
    train = _make_loaders(dataset, options, target, sampler_changes)
    val, trials = None, None
    if _has_source(config["val"]["dataset"]):
        table = _write_table(dataset.class_infos[target], folder / f"classes_{target}.csv")
        val_dataset = _make_dataset(config["val"]["dataset"], target, table, "data.val.dataset")
        val = _make_loader(val_dataset, config["val"], target)
        trials = config["val"]["trials"]
    elif config["val"]["trials"] is not None:
        raise ConfigError("data.val.trials is given, but data.val.dataset names no data")
    _log_sizes(dataset, val)
    return TrainingData(train, val, trials, class_ids(dataset, target))


def class_ids(dataset: AudioDataset, target: str) -> list[str]:
    """Ids of the classes of ``target`` in index order; the voice that speed perturbation number k makes of ``x`` is ``x#speed<k>``."""
    ids = dataset.class_infos[target].class_ids
    return [f"{i}#speed{k}" if k else i for k in range(dataset.num_classes(target) // len(ids)) for i in ids]


def _has_source(dataset: Mapping[str, Any]) -> bool:
    return any(dataset.get(key) is not None for key in _SOURCES)


def _make_dataset(config: Mapping[str, Any], target: str, table: Path | None, where: str) -> AudioDataset:
    options = dict(config)
    if options["class_names"] is None:
        options["class_names"] = [target]
    if table is not None and target in options["class_names"]:
        given = options["class_files"]
        if given is not None:
            raise ConfigError(
                f"{where}.class_files is not needed: validation has the class table of training. Leave it out"
            )
        options["class_files"] = {target: str(table)}
    return AudioDataset.from_config(options)


def _make_loader(dataset: AudioDataset, config: Mapping[str, Any], target: str) -> ResumableLoader:
    options = dict(config["sampler"])
    if options.get("class_name") is None:
        options["class_name"] = target
    sampler = SegSamplerFactory.create(dataset, **options)
    loader: ResumableLoader = LoaderFactory.create(dataset, sampler, **config["data_loader"])
    return loader


def _make_loaders(
    dataset: AudioDataset, config: Mapping[str, Any], target: str, changes: Sequence[Mapping[str, Any]]
) -> ResumableLoader | PhaseLoaders:
    loaders: list[ResumableLoader] = []
    for index, change in enumerate(changes):
        if index and change == changes[index - 1]:
            loaders.append(loaders[-1])
            continue
        options = {**config, "sampler": {**config["sampler"], **change}}
        try:
            loaders.append(_make_loader(dataset, options, target))
        except ValueError as error:
            if not index:
                raise
            raise ConfigError(f"trainer.phases[{index}].sampler: {error}") from error
    return loaders[0] if all(loader is loaders[0] for loader in loaders) else PhaseLoaders(loaders)


def _write_table(info: ClassInfo, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # every rank writes the same content, and a file appears complete or not at all
    with atomic_file(path) as temporary:
        rows = [f"{_quoted(id)},{index}\n" for index, id in enumerate(info.class_ids)]
        temporary.write_text("".join(["id,class_idx\n", *rows]), encoding="utf-8")
    return path


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text


def _log_sizes(dataset: AudioDataset, val: ResumableLoader | None) -> None:
    classes = ", ".join(f"{len(info)} {name}s" for name, info in dataset.class_infos.items())
    logger.info("training data: %d segments, %s", len(dataset), classes)
    if val is not None:
        logger.info("validation data: %d segments", len(val.dataset))
