"""Numbers that a caller gives."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """``value`` as an ``int``.

    Raises:
        ValueError: not a whole number, or below ``least``; says so of ``name``.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from error
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number
