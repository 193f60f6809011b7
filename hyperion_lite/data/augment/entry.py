"""Reading the entries of an augmentation configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyperion_lite.core.config import config_fields, nearest
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.augment.base import Augmenter, augmenter_class


@dataclass(frozen=True)
class Entry:
    """One augmenter of a configuration.

    Attributes:
        name: unique in its list; part of what its random numbers depend on.
        weight: the probability of being applied, or the weight among the entries of a choice.
        augmenter: what it does.
    """

    name: str
    weight: float
    augmenter: Augmenter


def parse_entries(entries: Any, base_folder: str | None, weight_key: str, where: str) -> list[Entry]:
    """The augmenters of a configured list.

    Args:
        entries: list of mappings: ``type``, the keys of that type, ``name`` (default: the type) and ``weight_key`` (default 1).
        base_folder: what relative paths are relative to; ``None``: the working directory.
        weight_key: ``prob`` or ``weight``.
        where: name of the configuration for messages.

    Raises:
        ConfigError: wrong, unknown (with the nearest known one) or missing keys, two entries of one name.
    """
    if not isinstance(entries, (list, tuple)) or not entries:
        raise ConfigError(f"{where}: expected a list of augmenters, got {entries!r}")
    parsed: list[Entry] = []
    for index, entry in enumerate(entries):
        label = f"{where}, augmenter {index + 1}"
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{label}: expected a mapping with a type, got {entry!r}")
        if isinstance(entry.get("name"), str):
            label += f" ({entry['name']!r})"
        parsed.append(_parse_entry(dict(entry), base_folder, weight_key, label))
        name = parsed[-1].name
        if any(name == other.name for other in parsed[:-1]):
            raise ConfigError(
                f"{label}: another augmenter of this list is called {name!r}; give one of them another name"
            )
    return parsed


def _parse_entry(entry: dict[Any, Any], base_folder: str | None, weight_key: str, label: str) -> Entry:
    if "type" not in entry:
        raise ConfigError(f"{label}: missing key 'type'{_typo(entry, 'type')}")
    try:
        cls = augmenter_class(str(entry.pop("type")))
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from error
    fields = [field for field in config_fields(cls) if field != "base_folder"]
    unknown = [key for key in entry if key not in (*fields, "name", weight_key)]
    if unknown:
        hints = [f"unknown key {key!r}{nearest(str(key), [*fields, 'name', weight_key])}" for key in unknown]
        known = ", ".join(["type", "name", weight_key, *fields])
        raise ConfigError(f"{label}: {'; '.join(hints)}. Keys of type {cls.type_name!r}: {known}")
    name = entry.pop("name", cls.type_name)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{label}: name must be a text, got {name!r}")
    weight = entry.pop(weight_key, 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise ConfigError(f"{label}: {weight_key} must be a number, got {weight!r}")
    if weight_key == "prob" and not 0 <= weight <= 1:
        raise ConfigError(f"{label}: prob must be within 0 to 1, got {weight!r}")
    for key in cls.path_keys:
        if base_folder is not None and isinstance(entry.get(key), (str, os.PathLike)):
            entry[key] = os.path.join(base_folder, entry[key])
    if base_folder is not None and "base_folder" in config_fields(cls):
        entry["base_folder"] = base_folder
    try:
        return Entry(name, float(weight), cls.from_config(entry))
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from error


def _typo(entry: Mapping[Any, Any], key: str) -> str:
    for other in entry:
        if nearest(str(other), [key]):
            return f" (there is {other!r}, did you mean {key!r}?)"
    return ""
