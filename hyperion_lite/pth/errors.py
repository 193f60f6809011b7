"""What can go wrong with a file: one error tree that names the file, the place and what was found there."""

from __future__ import annotations

from typing import Any


class PthError(ValueError):
    """A checkpoint file that cannot be read, and where it went wrong.

    Args:
        message: what was found, and what was expected.
        path: the file, when it has a name.
        offset: byte offset inside `entry` if that is given, else inside the file.
        entry: name of the archive entry (or of the part of a pre-zip file) concerned.
    """

    def __init__(
        self, message: str, *, path: str | None = None, offset: int | None = None, entry: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.offset = offset
        self.entry = entry

    def locate(self, *, path: str | None = None, offset: int | None = None, entry: str | None = None) -> None:
        """Fill in the parts of the place that were not known where the error was raised."""
        self.path = path if self.path is None else self.path
        self.offset = offset if self.offset is None else self.offset
        self.entry = entry if self.entry is None else self.entry

    def __str__(self) -> str:
        place = []
        if self.path is not None:
            place.append(self.path)
        if self.entry is not None:
            place.append(f"entry {shorten(self.entry)}")
        if self.offset is not None:
            place.append(f"byte {self.offset}")
        return f"{', '.join(place)}: {self.message}" if place else self.message


class PthFormatError(PthError):
    """The bytes are damaged, contradict each other, or are no checkpoint at all."""


class PthTruncatedError(PthFormatError):
    """The bytes end before the structure does."""


class PthUnsupportedError(PthError):
    """Well-formed, but of a kind that this reader does not read."""


class PthLimitError(PthError):
    """Reading on would need more time or memory than `Limits` allows."""


def shorten(value: Any, length: int = 80) -> str:
    """A printable form of `value` for a message, bounded whatever the value is (control characters escaped)."""
    if isinstance(value, (str, bytes)):
        head = value[:length]
        shown = repr(head) if isinstance(head, bytes) or head.isprintable() else ascii(head)
        return shown if len(value) <= length and len(shown) <= 2 * length else f"{shown[:length]}..."
    if isinstance(value, int):
        return str(value) if -(1 << 128) < value < 1 << 128 else f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (float, complex)):
        return repr(value)
    if type(value) in (list, tuple) and all(type(item) is int for item in value[:length]):
        shown = ", ".join(map(shorten, value[:length]))
        return f"[{shown if len(value) <= length else shown + ', ...'}]"
    return f"a {type(value).__name__}"
