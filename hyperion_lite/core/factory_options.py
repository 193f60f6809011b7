"""Checks that factories share: types and ranges of options, names of types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from hyperion_lite.core.config import Configurable, check_config, config_fields, unknown_choice
from hyperion_lite.core.errors import ConfigError


def checked_options(
    factory: type[Configurable], options: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, Any]:
    """Options of a factory with their types checked; numbers that YAML leaves as text (``1e-3``) become numbers.

    Args:
        factory: whose ``create`` has the signature.
        options: what was given under known names.
        other: what was given under unknown names.

    Raises:
        ConfigError: unknown keys with the nearest known one, or wrong types.
    """
    fields = config_fields(factory)
    numbers = {key: _as_number(fields[key].annotation, value) for key, value in options.items() if key in fields}
    return check_config(factory, {**options, **numbers, **other})


def _as_number(annotation: Any, value: Any) -> Any:
    types = get_args(annotation) or (annotation,)
    try:
        if float in types and isinstance(value, (str, int)) and not isinstance(value, bool):
            return float(value)
        if int in types and isinstance(value, str):
            return int(value)
    except ValueError:
        # no number: the check of types says so, with the key
        return value
    return value


def choose(kind: str, name: str, known: Iterable[str]) -> str:
    """``name`` if it is among ``known``.

    Raises:
        ConfigError: it is not; says which one is nearest.
    """
    names = list(known)
    if name not in names:
        raise ConfigError(unknown_choice(kind, name, names))
    return name


def at_least(name: str, value: Any, minimum: float) -> Any:
    """``value`` if it is not below ``minimum``.

    Raises:
        ConfigError: it is.
    """
    if not value >= minimum:
        raise ConfigError(f"{name} must be at least {minimum:g}, got {value}")
    return value


def positive(name: str, value: Any) -> Any:
    """``value`` if it is above 0.

    Raises:
        ConfigError: it is not.
    """
    if not value > 0:
        raise ConfigError(f"{name} must be above 0, got {value}")
    return value


def fraction(name: str, value: float) -> float:
    """``value`` if it is in [0, 1].

    Raises:
        ConfigError: it is not.
    """
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} must be between 0 and 1, got {value}")
    return value
