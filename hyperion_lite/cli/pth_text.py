"""How `hyperion-lite pth` prints: text that a hostile file cannot use to write to the terminal, tables, sizes and strict JSON."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hyperion_lite.pth.selection import select_names

_SHORT = 100
_NESTED = 12


def printable(text: str) -> str:
    """``text`` with control characters, lone surrogates and everything else that is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def clip(text: str, length: int = _SHORT) -> str:
    """At most ``length`` characters of ``text``."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def size_text(nbytes: int) -> str:
    """Bytes in a unit that people read: 327.2 MB."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def selected(names: Iterable[str], args: argparse.Namespace) -> list[str]:
    """The names that ``--include`` and ``--exclude`` choose; none where the file holds no tensor and nothing was asked for."""
    known = list(names)
    return select_names(known, args.include, args.exclude) if known or args.include else []


def shape_text(shape: Sequence[int]) -> str:
    """A shape or stride without spaces, so that a table stays one word a column: [512,1,3]."""
    return f"[{','.join(map(str, shape))}]"


def number_text(value: float | int | None) -> str:
    """A statistic in at most about a dozen characters; "-" for none."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """Lines of an aligned table; the last column is not padded."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    for line in lines:
        yield "  ".join([cell.ljust(width) for cell, width in zip(line, widths, strict=False)] + [line[-1]])


def value_text(value: Any, depth: int = 3) -> str:
    """One line that describes any value of a checkpoint, bounded in length and depth."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, str):
        return clip(printable(repr(value)))
    if isinstance(value, bytes | bytearray):
        return clip(f"{len(value)} bytes {bytes(value[:16])!r}")
    if isinstance(value, float | complex):
        return repr(value)
    if isinstance(value, Mapping):
        return _container(type(value).__name__, len(value), (_item(pair, depth) for pair in value.items()), "{}", depth)
    if isinstance(value, list | tuple | set | frozenset):
        brackets = {list: "[]", tuple: "()"}.get(type(value), "{}")
        return _container(
            type(value).__name__, len(value), (value_text(item, depth - 1) for item in value), brackets, depth
        )
    return clip(printable(repr(value)))


def _integer(value: int) -> str:
    # Python refuses to print integers of thousands of digits
    return str(value) if value.bit_length() <= 256 else f"<integer of {value.bit_length()} bits>"


def _item(pair: tuple[Any, Any], depth: int) -> str:
    return f"{value_text(pair[0], 0)}: {value_text(pair[1], depth - 1)}"


def _container(kind: str, length: int, items: Iterable[str], brackets: str, depth: int) -> str:
    if length > _NESTED or depth <= 0:
        return f"<{kind} of {length}>"
    text = f"{brackets[0]}{', '.join(items)}{brackets[1]}"
    return text if len(text) <= 2 * _SHORT else f"<{kind} of {length}>"


def print_json(value: Any) -> None:
    """Print ``value`` as JSON that any parser takes: NaN and infinities become strings, other objects their description."""
    print(json.dumps(_Plain().convert(value), indent=1, allow_nan=False))


class _Plain:
    """Conversion to JSON types that ends for cycles, and for aliases that would unfold without bound."""

    def __init__(self) -> None:
        self.depth = 32
        self.budget = 1_000_000

    def convert(self, value: Any) -> Any:
        self.budget -= 1
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return value if value.bit_length() <= 256 else _integer(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        if type(value).__module__ == "numpy" and getattr(value, "size", None) == 1 and value.dtype != object:
            return self.convert(value.item())
        if self.depth <= 0 or self.budget <= 0:
            return value_text(value, 0)
        self.depth -= 1
        try:
            if isinstance(value, Mapping):
                return {
                    key if isinstance(key, str) else value_text(key, 0): self.convert(item)
                    for key, item in value.items()
                }
            if isinstance(value, list | tuple):
                return [self.convert(item) for item in value]
            return value_text(value, 1)
        finally:
            self.depth += 1
