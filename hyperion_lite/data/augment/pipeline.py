"""The augmentation of a data set: a list of named augmenters, applied in order, each with its probability."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hyperion_lite.core.config import Configurable, nearest
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.augment import additive, codec, one_of, reverb, simple, speed  # noqa: F401 (their types register)
from hyperion_lite.data.augment.entry import parse_entries
from hyperion_lite.data.rng import item_rng


@dataclass(frozen=True)
class Occasion:
    """Which use of which item is being augmented: all that random numbers may depend on, besides the augmenter's name.

    Attributes:
        seed: of the data set.
        epoch: pass over the data.
        item_id: segment id.
        occurrence: how often the segment came before in this epoch.
        view: index of the augmented copy of the same occurrence, where several are made.
    """

    seed: int
    epoch: int
    item_id: str
    occurrence: int = 0
    view: int = 0

    def rng(self, name: str) -> np.random.Generator:
        """The generator of the augmenter called ``name``."""
        return item_rng(self.seed, self.epoch, self.item_id, self.occurrence, f"augment/{self.view}/{name}")


@dataclass
class Augmented:
    """An augmented waveform.

    Attributes:
        audio: (num_samples,) float32.
        info: for each augmenter that was applied, by name, what it drew.
        class_shift: by how many tables of classes the indices of the new classes move (speed perturbation).
    """

    audio: np.ndarray
    info: dict[str, dict[str, Any]] = field(default_factory=dict)
    class_shift: int = 0


class AugmentPipeline(Configurable):
    """Applies augmenters in the order of the list, each with its own probability and its own random numbers.

    What an augmenter draws depends on the :class:`Occasion` and on its name only: adding, removing or reordering others does not
    change it.

    Args:
        augmenters: entries: ``type``, ``name`` (default: the type), ``prob`` (default 1), and the parameters of the type.
        base_folder: what relative paths are relative to; default: the working directory.

    Raises:
        ConfigError: see :func:`~hyperion_lite.data.augment.entry.parse_entries`; or more than one augmenter makes new classes.
    """

    def __init__(self, augmenters: list[dict[str, Any]], base_folder: str | None = None) -> None:
        self._entries = parse_entries(augmenters, base_folder, weight_key="prob", where="augmentation")
        growing = [entry for entry in self._entries if entry.augmenter.new_classes]
        if len(growing) > 1:
            raise ConfigError(f"augmenters {growing[0].name!r} and {growing[1].name!r} both make new classes; one may")
        self.new_classes = growing[0].augmenter.new_classes if growing else []
        self.class_multiplier = growing[0].augmenter.class_multiplier if growing else 1

    @property
    def names(self) -> list[str]:
        """Names of the augmenters, in order."""
        return [entry.name for entry in self._entries]

    @classmethod
    def load(cls, config: str | os.PathLike[str] | dict[str, Any] | list[Any]) -> AugmentPipeline:
        """From a YAML file, or from what such a file holds: a list of entries, or a mapping with the list under ``augmenters``.

        Relative paths in a file are relative to the file.

        Raises:
            FileNotFoundError: no such file.
            ConfigError: the content is wrong; the file and the entry are named.
        """
        if not isinstance(config, (str, os.PathLike)):
            return cls(_entries_of(config))
        path = Path(config)
        if not path.is_file():
            raise FileNotFoundError(f"augmentation configuration {path} does not exist")
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
            return cls(_entries_of(content), base_folder=str(path.parent))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not YAML: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def __call__(self, audio: np.ndarray, sample_freq: int, occasion: Occasion) -> Augmented:
        """Augment ``audio`` (num_samples,), float32 and within -1 to 1, which is left as it is."""
        result = Augmented(audio)
        for entry in self._entries:
            rng = occasion.rng(entry.name)
            if rng.random() < entry.weight:
                result.audio, info = entry.augmenter(result.audio, sample_freq, rng)
                result.info[entry.name] = info
                result.class_shift += info.get("class_shift", 0)
        return result


def _entries_of(content: Any) -> list[Any]:
    if isinstance(content, dict):
        unknown = [key for key in content if key != "augmenters"]
        if unknown:
            raise ConfigError(
                f"unknown key {unknown[0]!r}{nearest(str(unknown[0]), ['augmenters'])}; the list is under 'augmenters'"
            )
        return content.get("augmenters", [])
    return content


def _is_pipeline(config: Any) -> bool:
    # a file, a list, or a mapping with the list under "augmenters"; a choice (one_of) has that key too, beside its type
    return not isinstance(config, dict) or ("augmenters" in config and "type" not in config)


def load_pipelines(configs: Any) -> list[AugmentPipeline]:
    """The pipelines of a data set's ``aug_cfgs``.

    Args:
        configs: nothing; one file; a list of files and inline configurations, one pipeline each; or one inline list of entries.
    """
    if not configs:
        return []
    if isinstance(configs, (str, os.PathLike, dict)):
        return [AugmentPipeline.load(configs)]
    if not any(_is_pipeline(config) for config in configs):
        return [AugmentPipeline.load(list(configs))]
    return [AugmentPipeline.load(config) for config in configs]
