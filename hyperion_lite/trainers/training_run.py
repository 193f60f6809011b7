"""A whole training run from its configuration: data, model, trainer, resume, report."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.trainers.checkpoint_files import CONFIG_YAML
from hyperion_lite.trainers.distribution import init_distributed
from hyperion_lite.trainers.finetuning import describe_output, trained_model, write_output_report
from hyperion_lite.trainers.mode_schedule import ModeSchedule
from hyperion_lite.trainers.report import ReportLogger
from hyperion_lite.trainers.rng_state import seed_generators
from hyperion_lite.trainers.training_data import TrainingData, make_training_data
from hyperion_lite.trainers.training_options import takes_waveforms, without_missing
from hyperion_lite.trainers.xvector_trainer import XVectorTrainer
from hyperion_lite.trainers.xvector_trainer_from_wav import XVectorTrainerFromWav

logger = logging.getLogger(__name__)


def run_training(config: Mapping[str, Any], config_text: str) -> dict[str, Any]:
    """Train as ``config`` says, from the last checkpoint of its ``exp_path`` on.

    Args:
        config: the resolved document of :func:`~hyperion_lite.trainers.training_options.parse_options`.
        config_text: the same as YAML, for ``config.yaml`` of the experiment and its checkpoints.

    Returns:
        Logs of the last epoch.

    Raises:
        ConfigError, ManifestError, FileNotFoundError: what the configuration names is wrong or missing.
        SystemExit: with code 75, after SIGTERM or SIGINT, once a checkpoint is written.
    """
    init_distributed(config["trainer"]["device"])
    seed = int(config["seed"])
    # the same initial weights on all ranks
    seed_generators(seed)
    exp_path = _folder_of(config)
    schedule = ModeSchedule(config["trainer"].get("phases"))
    changes = [schedule[index].sampler for index in range(len(schedule))]
    data = make_training_data(config["data"], config["trainer"]["target_key"], exp_path, changes)
    report = None
    if "finetune" in config:
        model, report = trained_model(config["finetune"], data.class_ids)
    else:
        model = make_model(config, data.class_ids)
    trainer = make_trainer(config, model, data)
    # dropout and the like differ from rank to rank
    seed_generators(seed + 1 + trainer.rank)
    if trainer.is_main:
        exp_path.mkdir(parents=True, exist_ok=True)
        with atomic_file(exp_path / CONFIG_YAML) as temporary:
            temporary.write_text(config_text, encoding="utf-8")
        if report is not None:
            write_output_report(report, exp_path)
    trainer.distribution.barrier()
    notes = [] if report is None else [describe_output(report)]
    trainer.loggers.append(ReportLogger(exp_path, trainer.module, config["trainer"], notes))
    trainer.load_last_checkpoint()
    return trainer.fit(data.train, data.val)


def _folder_of(config: Mapping[str, Any]) -> Path:
    # before models are loaded, which can take minutes
    exp_path = Path(config["trainer"]["exp_path"])
    try:
        exp_path.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(exp_path, os.W_OK | os.X_OK) else "it cannot be written to"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason is not None:
        raise ConfigError(f"trainer.exp_path {exp_path} is no folder for this run: {reason}; give another one")
    return exp_path


def make_model(config: Mapping[str, Any], class_ids: Sequence[str]) -> Any:
    """The new model of section ``model``, or the trained one of section ``finetune``, for these classes.

    Raises:
        ConfigError: wrong or missing keys, or another number of classes than the data has.
    """
    if "finetune" in config:
        return trained_model(config["finetune"], class_ids)[0]
    options = dict(config["model"])
    cls = find_model_class(options.pop("class_name"))
    options = without_missing(cls, options)
    part = options.get("xvector", options)
    if part.get("num_classes") is None:
        part["num_classes"] = len(class_ids)
    elif part["num_classes"] != len(class_ids):
        raise ConfigError(
            f"num_classes of the model is {part['num_classes']}, but the training data has {len(class_ids)} classes; leave it out"
        )
    model = cls.from_config(options)
    model.class_names = class_ids
    return model


def make_trainer(config: Mapping[str, Any], model: Any, data: TrainingData) -> XVectorTrainer:
    """The trainer of section ``trainer`` for ``model``; with a separate front end where the model takes features.

    Raises:
        ConfigError: options that do not go together.
    """
    options = {**config["trainer"], "trials": data.trials}
    if takes_waveforms(type(model)):
        return XVectorTrainer(model, **options)
    return XVectorTrainerFromWav(model, config["feats"], **options)
