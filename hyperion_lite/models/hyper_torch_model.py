"""The base of all models: configuration, saving and loading, train modes, parameter bookkeeping."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from hyperion_lite.core.allocation_budget import AllocationBudget
from hyperion_lite.core.config import Configurable, check_config
from hyperion_lite.core.errors import ConfigError, ModelFileError, UnknownClassError
from hyperion_lite.models.adapter_state import resolve_adapters
from hyperion_lite.models.frontend_rules import FrontendRules, resolve_frontend_rules
from hyperion_lite.models.learning_parts import LearningParts, TrainModes
from hyperion_lite.models.own_keys import split_own_keys
from hyperion_lite.models.registry import MODELS, find_model_class
from hyperion_lite.models.state_loading import load_state
from hyperion_lite.serialization.artifact import ModelArtifact
from hyperion_lite.serialization.classes import check_classes
from hyperion_lite.serialization.directory import write_directory
from hyperion_lite.serialization.legacy import modernise_config
from hyperion_lite.serialization.locate import read_model
from hyperion_lite.serialization.lora_names import spell_adapters_as_loralib
from hyperion_lite.serialization.names import clean_names, strip_compiled
from hyperion_lite.serialization.single_file import SUFFIXES, write_single_file

logger = logging.getLogger(__name__)

_M = TypeVar("_M", bound="HyperTorchModel")


class HyperTorchModel(LearningParts):
    """Base class of models that save and load themselves.

    A subclass has a constructor whose arguments are plain JSON types. It is registered under its class name when it is defined, and
    that name is what a file records. Two different classes under one name are an error.

    A base class that must not be registered is defined with ``class Base(HyperTorchModel, abstract=True)``.

    Class attributes:
        valid_train_modes: names accepted by :meth:`set_train_mode`.
    """

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.valid_train_modes = TrainModes(cls.valid_train_modes)
        if not abstract:
            MODELS.register(cls)

    def __init__(self) -> None:
        super().__init__()
        self._class_names: list[str] | None = None

    # configuration

    def get_config(self) -> dict[str, Any]:
        """``class_name`` and the constructor arguments as plain JSON types; ``cls(**config)`` rebuilds the model."""
        return {"class_name": type(self).__name__, **super().get_config()}

    @property
    def class_names(self) -> list[str] | None:
        """Class ids in index order, saved with the model; ``None`` without a class table."""
        return None if self._class_names is None else list(self._class_names)

    @class_names.setter
    def class_names(self, ids: Iterable[str] | None) -> None:
        if ids is None:
            self._class_names = None
            return
        checked = check_classes(list(ids), type(self).__name__)
        expected = getattr(self, "num_classes", None)
        if isinstance(expected, int) and expected != len(checked):
            raise ValueError(f"the class table has {len(checked)} ids, but the model has {expected} classes")
        self._class_names = checked

    # saving

    def save(self, path: str | Path) -> None:
        """Save the model; atomically, an old file survives any failure.

        Args:
            path: ends in ``.pth`` or ``.pt``: one file, in the original toolkit's format. Anything else: a model directory
                (``config.json``, ``model.safetensors``, ``classes.csv``).

        Raises:
            FileExistsError: a directory with other content is in the way.
            OSError: nothing was written.
        """
        target = Path(path)
        self._check_saveable()
        if target.suffix in SUFFIXES:
            config, own = split_own_keys(type(self), self.get_config())
            state = spell_adapters_as_loralib(strip_compiled(self.state_dict()))
            write_single_file(target, config, own, state, self.class_names)
        else:
            self.save_to_dir(target)

    def save_to_dir(self, path: str | Path) -> None:
        """Save as a model directory, whatever its name. Raises as :meth:`save`."""
        self._check_saveable()
        write_directory(Path(path), self.get_config(), strip_compiled(self.state_dict()), self.class_names)

    def _check_saveable(self) -> None:
        reason = getattr(self, "unsaveable_because", None)
        if reason is not None:
            raise ValueError(f"this {type(self).__name__} cannot be saved: {reason}")

    # loading

    @classmethod
    def load(
        cls: type[_M],
        path: str | Path | None = None,
        cfg: Mapping[str, Any] | None = None,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        model_name: str = "model",
        map_location: str | torch.device | None = None,
        strict: bool = True,
        frontend_rules: FrontendRules = "auto",
        lora_merged: bool | None = None,
    ) -> _M:
        """Build a model of this class.

        Args:
            path: as in :meth:`auto_load`; or
            cfg: a configuration (unknown keys are errors); a new model, in training mode. Optionally
            state_dict: its tensors; wrapper prefixes and both spellings of weight norm are understood.
            model_name, map_location, strict, frontend_rules, lora_merged: as in :meth:`auto_load`.

        Raises:
            ConfigError: unknown, missing or ill-typed keys in ``cfg``.
            ModelFileError: the tensors do not fit, or the file holds another class.
        """
        if path is not None:
            if cfg is not None or state_dict is not None:
                raise ValueError("give either a path, or cfg and state_dict")
            return cls.auto_load(path, model_name, None, map_location, strict, frontend_rules, lora_merged)
        if cfg is None:
            raise ValueError("give a path, or a configuration as cfg=")
        target = cls._class_of(cfg)
        model = target.from_config(modernise_config({"class_name": target.__name__, **cfg}))
        if state_dict is not None:
            load_state(model, clean_names(state_dict), strict=strict)
        return model.to(map_location) if map_location is not None else model

    @classmethod
    def _class_of(cls: type[_M], cfg: Mapping[str, Any]) -> type[_M]:
        """The class that ``cfg`` names if it is a subclass of this one, else this one."""
        name = cfg.get("class_name")
        if name is None and cls is HyperTorchModel:
            raise ConfigError("the configuration has no 'class_name': add it, or call load of the model's own class")
        if name in (None, cls.__name__):
            return cls
        found = find_model_class(str(name))
        if not issubclass(found, cls):
            raise ConfigError(f"the configuration is of class {name!r}, which is not a {cls.__name__}")
        return found

    @classmethod
    def auto_load(
        cls: type[_M],
        path: str | Path,
        model_name: str = "model",
        extra_objs: Mapping[str, type] | Iterable[type] | None = None,
        map_location: str | torch.device | None = None,
        strict: bool = True,
        frontend_rules: FrontendRules = "auto",
        lora_merged: bool | None = None,
    ) -> _M:
        """Load a model of whatever class the file names; no code of the file is executed.

        Args:
            path: ``.pth`` or ``.pt`` file (this package's or the original toolkit's, a trainer checkpoint too), model directory,
                training checkpoint directory, experiment directory (its newest complete checkpoint), or ``hf:org/repo[/file]``.
            model_name: which weights: takes ``<model_name>_state_dict`` or ``<model_name>.safetensors``; ``swa_model`` for averaged ones.
            extra_objs: model classes of yours that the file may name, by name or as a list.
            map_location: device of the model; CPU by default, whatever the file says.
            strict: refuse missing and unexpected tensors.
            frontend_rules: ``legacy`` or ``modern`` features; ``auto`` decides from what the file stores.
            lora_merged: whether the weights of the file hold its low-rank adapters already, as those do that the original toolkit saved in
                evaluation mode. ``None``: they do not, with a warning where the file leaves it open.

        Returns:
            The model in evaluation mode; tensors keep their stored dtype.

        Raises:
            FileNotFoundError: nothing at ``path``.
            KeyError: unknown model class.
            ConfigError: missing or ill-typed configuration keys. Unknown ones are dropped with one warning: other releases carry them.
            ModelFileError: damaged file, tensors that do not fit (all of them are listed), or a class that is no ``cls``.
        """
        artifact = resolve_adapters(read_model(path, model_name), lora_merged)
        try:
            found = find_model_class(artifact.class_name, _by_name(extra_objs))
        except UnknownClassError as error:
            raise UnknownClassError(f"{artifact.source}: {error}") from error
        if not issubclass(found, cls):
            raise ModelFileError(
                f"{artifact.source} holds a {artifact.class_name}, which is not a {cls.__name__}; "
                f"load it with {artifact.class_name}.auto_load or HyperTorchModel.auto_load"
            )
        model = found.from_artifact(artifact, strict, frontend_rules)
        if map_location is not None:
            model = model.to(map_location)
        return model.eval()

    @classmethod
    def from_artifact(
        cls: type[_M], artifact: ModelArtifact, strict: bool = True, frontend_rules: FrontendRules = "auto"
    ) -> _M:
        """Build the model that ``artifact`` describes. Raises as :meth:`auto_load`."""
        try:
            # a model that is loaded in inference mode can be trained all the same
            with torch.inference_mode(False), AllocationBudget(artifact.state.values(), artifact.source):
                config = resolve_frontend_rules(artifact, frontend_rules)
                model = cls(**check_config(cls, config, on_unknown="warn"))
        except ModelFileError:
            raise
        except (ValueError, UnknownClassError) as error:
            raise ConfigError(f"{artifact.source}: {error}") from error
        except (TypeError, OverflowError, RuntimeError, MemoryError) as error:
            # values of the right type that no layer can have, such as a size beyond what torch counts in
            raise ConfigError(f"{artifact.source}: no model can be built from its configuration: {error}") from error
        load_state(model, artifact.state, artifact.tied, strict, artifact.source)
        try:
            model.class_names = artifact.classes
        except ValueError as error:
            raise ModelFileError(f"{artifact.source}: {error}") from error
        model.after_load(artifact)
        return model

    def after_load(self, artifact: ModelArtifact) -> None:
        """Hook for subclasses: called once the tensors are in place."""

    def copy(self: _M) -> _M:
        """An independent copy: configuration, tensors, mode."""
        return copy.deepcopy(self)

    def clone(self: _M) -> _M:
        """The same as :meth:`copy`."""
        return self.copy()

    def change_dropouts(self, dropout_rate: float) -> None:
        """Set the rate of every dropout layer that the model has, and record it in the configuration.

        A part that was built without dropout stays without. A rate of 0 is not recorded, because a model built with it has no
        dropout layers, which changes the names of the tensors behind them.

        Raises:
            ValueError: outside [0, 1).
        """
        if not 0.0 <= dropout_rate < 1.0:
            raise ValueError(f"dropout_rate must be in [0, 1), got {dropout_rate}")
        for module in self.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = dropout_rate
            elif isinstance(module, Configurable) and dropout_rate > 0 and module.get_config().get("dropout_rate"):
                module._update_config(dropout_rate=dropout_rate)


def _by_name(extra: Mapping[str, type] | Iterable[type] | None) -> dict[str, Any]:
    if extra is None:
        return {}
    if isinstance(extra, Mapping):
        return dict(extra)
    return {cls.__name__: cls for cls in extra}
