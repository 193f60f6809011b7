"""Keep the configuration keys of this package apart from those that the original toolkit knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperion_lite.core.config import Configurable


def split_own_keys(cls: type[Configurable], config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``config`` into what the original toolkit reads and what only this package does.

    Returns:
        ``(theirs, ours)``, both nested like ``config``; merging ``ours`` into ``theirs`` restores it.
    """
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for key, value in config.items():
        nested = cls.nested_class(key, value) if isinstance(value, Mapping) else None
        if key in cls.own_config_keys:
            ours[key] = value
        elif nested is not None:
            theirs[key], inner = split_own_keys(nested, value)
            if inner:
                ours[key] = inner
        else:
            theirs[key] = value
    return theirs, ours
