"""Numbers that a caller gives."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any) -> int:
    """``value`` as an ``int``, for numbers that count from 0.

    Raises:
        ValueError: not a whole number, or negative; says so of ``name``.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from error
    if number < 0:
        raise ValueError(f"epochs and batches count from 0, got {name} {number}")
    return number
