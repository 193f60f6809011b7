"""A trained model for new training data: which speakers its output layer knows, and what of it is kept."""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.kaldi_io import text_lines
from hyperion_lite.data.manifests import ClassInfo
from hyperion_lite.data.manifests.table_io import table_format
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.xvectors.output_layers import RebuildReport

logger = logging.getLogger(__name__)

OUTPUT_FILE = "output_layer.csv"
"""File of an experiment that says of each speaker whether its prototype was kept, is new, or is gone."""


def trained_model(options: Mapping[str, Any], class_ids: Sequence[str]) -> tuple[Any, RebuildReport]:
    """The model that ``options`` (the section ``finetune``) names, with an output layer for these classes.

    Prototypes of speakers that the model knows by id are kept, the others begin at random.

    Args:
        options: ``path``, ``model_name``, ``classes_file``, ``rebuild_output``, ``allow_random_output`` and ``change``.
        class_ids: ids of the training data in index order.

    Returns:
        The model, and what happened to its classes.

    Raises:
        ConfigError: the whole output layer would begin at random, and ``allow_random_output`` does not say so; or wrong options.
        FileNotFoundError: no such model or table.
    """
    model: Any = HyperTorchModel.auto_load(options["path"], model_name=options["model_name"])
    old = _old_ids(model, options.get("classes_file"))
    ids = list(class_ids)
    is_dino = getattr(model, "head_type", getattr(getattr(model, "xvector", None), "head_type", "")) == "dino"
    knows_some = not is_dino and bool(set(old or ()) & set(ids))
    if not knows_some and not options.get("allow_random_output"):
        raise ConfigError(_refusal(model, options["path"], is_dino, old, ids))
    if knows_some and old == ids and not options["rebuild_output"]:
        model.class_names = ids
        report = RebuildReport(tuple(ids), (), (), len(ids))
    else:
        report = model.rebuild_output_layer(class_names=ids, old_class_names=old)
    logger.info(describe_output(report))
    _change(model, options["change"])
    return model, report


def _old_ids(model: Any, classes_file: str | None) -> list[str] | None:
    if classes_file is None:
        return model.class_names
    if model.class_names is not None:
        raise ConfigError("finetune.classes_file is given, but the model has class ids of its own; leave it out")
    ids = read_ids(classes_file)
    if len(ids) != model.num_classes:
        raise ConfigError(
            f"finetune.classes_file {classes_file} has {len(ids)} ids, the model has {model.num_classes} classes"
        )
    return ids


def read_ids(path: str) -> list[str]:
    """Class ids in index order: of a class table (see :class:`~hyperion_lite.data.manifests.ClassInfo`), or of a list, one id a line.

    Raises:
        ConfigError: a list that is empty, or has an id twice.
        FileNotFoundError: no such file.
        ManifestError: a table that is malformed: no column ``id``, indices that are not 0 ... n-1, each once.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no table of classes {path}")
    if table_format(file) != "text":
        return list(ClassInfo.from_file(file).class_ids)
    ids = [line for _, line in text_lines(file)]
    if not ids:
        raise ConfigError(f"{path} is empty, a table of classes or a list of their ids was expected")
    if ids[0] == "id" or "," in ids[0] or "\t" in ids[0]:
        return list(ClassInfo.from_file(file).class_ids)
    twice = next((i for i, number in Counter(ids).items() if number > 1), None)
    if twice is not None:
        raise ConfigError(f"{path} has {twice!r} twice")
    return ids


def _refusal(model: Any, path: str, is_dino: bool, old: Sequence[str] | None, ids: Sequence[str]) -> str:
    end = "say finetune.allow_random_output=true to begin with a random output layer"
    if is_dino:
        return f"{path} has a DINO head, whose prototypes are no speakers; {end}"
    if old is None:
        return (
            f"{path} has no class ids, so nobody knows which of its {model.num_classes} prototypes belong to the {len(ids)} speakers of "
            f"the training data. Give the ids in finetune.classes_file, or {end}"
        )
    return (
        f"{path} knows none of the {len(ids)} speakers of the training data ({ids[0]!r}, ...); its {len(old)} classes are "
        f"{old[0]!r}, ... If they are new speakers, {end}"
    )


def _change(model: Any, changes: Mapping[str, Any]) -> None:
    given = {key: value for key, value in changes.items() if value is not None}
    if isinstance(given.get("xvector"), Mapping):
        given["xvector"] = {key: value for key, value in given["xvector"].items() if value is not None}
    model.change_config(**given)


def describe_output(report: RebuildReport) -> str:
    """One sentence about the output layer."""
    text = f"output layer: {len(report.kept)} speakers keep their prototypes, {len(report.new)} begin at random"
    return f"{text}, {len(report.dropped)} of the model are gone ({OUTPUT_FILE})"


def write_output_report(report: RebuildReport, folder: Path) -> None:
    """Write :data:`OUTPUT_FILE`: a row for each speaker with what became of its prototype."""
    rows = [
        (i, status)
        for status, ids in (("kept", report.kept), ("new", report.new), ("gone", report.dropped))
        for i in ids
    ]
    with atomic_file(folder / OUTPUT_FILE) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "prototype"])
        writer.writerows(rows)


def is_pretrained(config: Mapping[str, Any]) -> bool:
    """Whether a run begins with trained weights: a model of ``finetune.path``, or a part of a new one with ``pretrained_model_path``."""

    def names_weights(value: Any) -> bool:
        if not isinstance(value, Mapping):
            return False
        return bool(value.get("pretrained_model_path")) or any(map(names_weights, value.values()))

    return bool(config.get("finetune", {}).get("path")) or names_weights(config.get("model", {}))
