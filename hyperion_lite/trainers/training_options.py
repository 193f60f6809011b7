"""The document that describes a training run, as command-line options and as a commented YAML file.

seed: ...
data: {train: {dataset, sampler, data_loader}, val: {dataset, sampler, data_loader, trials}}
model: {class_name, ...}         a new model, the same document as its config.json; or
finetune: {path, ...}            a trained one
trainer: {optim, lrsched, wdsched, ...}
"""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import yaml

from hyperion_lite.core.config import REQUIRED, Configurable, config_fields, nearest, to_plain
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.loader import LoaderFactory
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from hyperion_lite.lr_schedulers.factory import LRSchedulerFactory
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN
from hyperion_lite.optim.factory import OptimizerFactory
from hyperion_lite.trainers.xvector_trainer import XVectorTrainer
from hyperion_lite.wd_schedulers.factory import WDSchedulerFactory

BUILTIN = "builtin:"
"""``--config builtin:demo`` is the file ``demo.yaml`` that comes with the package."""
_BUILTIN_FOLDER = Path(__file__).resolve().parent.parent / "configs"

DEFAULT_MODEL = "Wav2ResNet1dXVector"
USAGE = "%(prog)s --config FILE [--config FILE ...] [--KEY.KEY VALUE ...] [--print_config]"

_DESCRIPTIONS = {
    "train": "Train a speaker embedder.",
    "finetune": "Train a trained model further: give --finetune.path. With --model.class_name and a Hugging Face encoder in place of it, "
    "the options are those of hyperion-lite train. Which there are depends on the model: --help after it shows them.",
}
_SECTIONS = {
    "data": "What is read.",
    "data.train": "Training: chunks or segments in random order.",
    "data.train.dataset": "Segments, their audio, classes and augmentation.",
    "data.train.sampler": "Which segments or chunks make a batch; options that the type does not have are left aside.",
    "data.train.data_loader": "Reading in the background.",
    "data.val": "Validation; without manifests there is none. Its speakers have the class table of training.",
    "data.val.dataset": "As for training. class_names: [] for speakers that training does not know: then only trials are scored.",
    "data.val.sampler": "As for training.",
    "data.val.data_loader": "As for training.",
    "model": "A new model: its class and the arguments of that class, as in the config.json of a saved one.",
    "finetune": "A trained model that is trained further.",
    "finetune.change": "What is changed in it; null leaves a value as it is.",
    "feats": "The front end of a model that takes features.",
    "trainer": "The course of training.",
    "trainer.optim": "Optimizer; options that the type does not have are left aside.",
    "trainer.lrsched": "Learning rate over time; without a type it is constant.",
    "trainer.wdsched": "Weight decay over time; without a type it is constant.",
}


def make_parser(
    class_name: str | None = DEFAULT_MODEL, finetune_class: str | None = None, command: str = "train"
) -> ArgumentParser:
    """The parser of a training run.

    Args:
        class_name: class of the new model, whose arguments become options under ``--model.``.
        finetune_class: class of the trained model that the run starts from, in place of a new one.
        command: of ``hyperion-lite``, for the help.

    Raises:
        UnknownClassError: no such model class.
    """
    parser = ArgumentParser(
        prog=f"hyperion-lite {command}", usage=USAGE, description=_DESCRIPTIONS[command], exit_on_error=True
    )
    parser.add_argument("--config", action="config", help="YAML file of options; later ones, and options, win")
    parser.add_argument("--seed", type=int, default=1234, help="of the initial weights and of dropout and the like")
    _add_data(parser)
    cls = find_model_class(finetune_class or class_name or DEFAULT_MODEL)
    if finetune_class is None:
        parser.add_argument("--model.class_name", type=str, default=cls.__name__, help="class of the model")
        _add_fields(parser, cls, "model")
    else:
        _add_finetune(parser, cls)
    if not takes_waveforms(cls):
        _add_fields(parser, AudioFeatsMVN, "feats")
    XVectorTrainer.add_class_args(parser, "trainer", skip=("optim", "lrsched", "wdsched", "loggers"))
    OptimizerFactory.add_class_args(parser, "trainer.optim")
    LRSchedulerFactory.add_class_args(parser, "trainer.lrsched")
    WDSchedulerFactory.add_class_args(parser, "trainer.wdsched")
    _make_defaults_canonical(parser)
    return parser


def _make_defaults_canonical(parser: ArgumentParser) -> None:
    # a default of 10 where a number is expected reads back as 10.0
    for action in parser._actions:
        kinds = _alternatives(getattr(action, "_typehint", None) or action.type)
        if type(action.default) is int and float in kinds and int not in kinds:
            action.default = float(action.default)


def takes_waveforms(model_class: Any) -> bool:
    """Whether models of the class have a front end of their own."""
    return "feats" in config_fields(model_class) or hasattr(model_class, "sample_frequency")


def _add_data(parser: ArgumentParser) -> None:
    for part in ("train", "val"):
        prefix = f"data.{part}"
        AudioDataset.add_class_args(parser, f"{prefix}.dataset")
        SegSamplerFactory.add_class_args(parser, f"{prefix}.sampler")
        LoaderFactory.add_class_args(parser, f"{prefix}.data_loader")
    parser.add_argument(
        "--data.val.trials",
        type=Optional[str],
        default=None,
        help="file of trials with labels (columns modelid, segmentid, targettype) over the validation segments, or all: every pair",
    )
    parser.set_defaults(
        {
            "data.val.dataset.is_val": True,
            "data.val.sampler.sampler_type": "seg_sampler",
            "data.val.sampler.shuffle": False,
            "data.val.sampler.max_batch_length": 60.0,
        }
    )


def _add_finetune(parser: ArgumentParser, cls: Any) -> None:
    parser.add_argument(
        "--finetune.path",
        type=Optional[str],
        default=None,
        help="model file, model, checkpoint or experiment directory",
    )
    parser.add_argument(
        "--finetune.model_name", type=str, default="model", help="which of its weights, for instance swa_model"
    )
    parser.add_argument(
        "--finetune.rebuild_output",
        type=bool,
        default=False,
        help="make a new output layer even where the speakers are the same; speakers that both know keep their prototypes anyway",
    )
    parser.add_argument(
        "--finetune.classes_file",
        type=Optional[str],
        default=None,
        help="ids of the model's classes in index order, for a model file without: a table with a column id, or one id a line",
    )
    parser.add_argument(
        "--finetune.allow_random_output",
        type=bool,
        default=False,
        help="begin with a random output layer where the model knows none of the speakers; without this such a run is refused",
    )
    cls.add_finetune_args(parser, "finetune.change")


def _add_fields(parser: ArgumentParser, cls: type[Configurable], prefix: str) -> None:
    """Options of a class, in which everything may be missing: what it needs is checked when it is built."""
    for field in config_fields(cls).values():
        nested = cls.nested_configs.get(field.name)
        kinds = _alternatives(field.annotation)
        if nested is not None and type(None) not in kinds and str not in kinds:
            _add_fields(parser, nested, f"{prefix}.{field.name}")
            continue
        annotation = field.annotation
        if any(isinstance(kind, type) and issubclass(kind, Configurable) for kind in kinds):
            annotation = dict[str, Any]
        text = "null: as many as the training data has" if field.name == "num_classes" else field.help
        default = None if field.default is REQUIRED else copy.deepcopy(field.default)
        if default is None:
            annotation = Optional[annotation]
        parser.add_argument(f"--{prefix}.{field.name}", type=annotation, default=default, help=text)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def without_missing(cls: type[Configurable], config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` without the arguments that :func:`make_parser` made up as null because the class needs them."""
    fields = config_fields(cls)
    kept: dict[str, Any] = {}
    for key, value in config.items():
        nested = cls.nested_configs.get(key)
        if nested is not None and isinstance(value, Mapping):
            kept[key] = without_missing(nested, value)
        elif value is not None or key not in fields or fields[key].default is not REQUIRED:
            kept[key] = value
    return kept


# --- parsing


def parse_options(argv: Sequence[str], command: str = "train") -> tuple[ArgumentParser, dict[str, Any]]:
    """The parser that fits ``argv``, and the resolved document.

    Raises:
        ConfigError: a new and a trained model at once.
        FileNotFoundError: a file is missing.
        SystemExit: with code 2, after a message, for what the parser refuses.
    """
    argv = [_builtin_path(token) for token in argv]
    parser = make_parser(*_model_classes(argv, command), command)
    config = parser.parse_args(argv).as_dict()
    config.pop("config", None)
    return parser, to_plain(config)


def _builtin_path(token: str) -> str:
    """``token`` with the path of the file where it names a configuration of the package."""
    option, equals, value = token.partition("=") if token.startswith("--config=") else ("", "", token)
    if not value.startswith(BUILTIN):
        return token
    name = value[len(BUILTIN) :].removesuffix(".yaml")
    path = _BUILTIN_FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in _BUILTIN_FOLDER.glob("*.yaml"))
        raise ConfigError(
            f"there is no built-in configuration {name!r}{nearest(name, known)}; there are: {', '.join(known)}"
        )
    return f"{option}{equals}{path}"


def _model_classes(argv: Sequence[str], command: str) -> tuple[str | None, str | None]:
    """Class names of the new and of the trained model that options and files name; which options there are depends on them."""
    class_name, finetune_path, new_model = None, None, False
    for name, value in _given(argv):
        if name == "config":
            document = _read_yaml(value)
            model, finetune = document.get("model") or {}, document.get("finetune") or {}
            new_model = new_model or bool(model)
            class_name = model.get("class_name", class_name) if isinstance(model, Mapping) else class_name
            finetune_path = finetune.get("path", finetune_path) if isinstance(finetune, Mapping) else finetune_path
        elif name.startswith("model."):
            new_model = True
            class_name = value if name == "model.class_name" else class_name
        elif name == "finetune.path":
            finetune_path = value
    if finetune_path is None or finetune_path in ("null", "None"):
        # nothing is named yet, as in a call for help
        return class_name, DEFAULT_MODEL if command == "finetune" and not new_model else None
    if new_model:
        raise ConfigError("both model (a new one) and finetune.path (a trained one) are given; leave one of them out")
    from hyperion_lite.serialization.locate import read_model

    return None, read_model(finetune_path).class_name


def _given(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, token in enumerate(argv):
        if token.startswith("--"):
            name, equals, value = token[2:].partition("=")
            if not equals:
                value = argv[index + 1] if index + 1 < len(argv) else ""
            yield name.replace("-", "_"), value


def _read_yaml(path: str) -> Mapping[str, Any]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no configuration file {path}")
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path} must hold a mapping of options, it holds a {type(document).__name__}")
    return document


# --- writing


def commented_yaml(parser: ArgumentParser, config: Mapping[str, Any]) -> str:
    """``config`` as YAML with what each key means; :func:`parse_options` reads it back to the same document."""
    helps = {action.dest: action.help for action in parser._actions if action.help}
    lines = ["# Configuration of a training run: hyperion-lite train --config THIS_FILE"]
    lines += _commented(config, "", helps)
    return "\n".join(lines) + "\n"


def _commented(config: Mapping[str, Any], prefix: str, helps: Mapping[str, Any]) -> Iterator[str]:
    indent = "  " * (prefix.count(".") + 1 if prefix else 0)
    for key, value in config.items():
        name = f"{prefix}.{key}" if prefix else key
        help = helps.get(name)
        if isinstance(value, Mapping) and help is None:
            if not prefix:
                yield ""
            if name in _SECTIONS:
                yield f"{indent}# {_SECTIONS[name]}"
            yield f"{indent}{key}:" if value else f"{indent}{key}: {{}}"
            yield from _commented(value, name, helps)
            continue
        if help:
            yield f"{indent}# {' '.join(str(help).split())}"
        yield f"{indent}{key}: {_inline(value)}"


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.strip().removesuffix("...").strip()
