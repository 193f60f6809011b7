"""Storage paths in the manner of Kaldi: archives (``file.ark:offset``), pipes (``command |``), tables of lines.

Nothing here runs a shell. Pickled objects, which kaldiio can keep in archives, are refused: a data file must not run code.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.core.extras import require
from hyperion_lite.data.audio_errors import AudioReadError

_ARCHIVE = re.compile(r"^(?P<path>.+):(?P<offset>\d+)$")
_AUDIO_STARTS = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b".snd", b"NIST", b"ID3")


class ArchivePosition(NamedTuple):
    """An item of a Kaldi archive: the archive and the byte where the item begins."""

    path: str
    offset: int


def archive_position(storage_path: str) -> ArchivePosition | None:
    """Split ``file.ark:offset``; ``None`` for anything else, such as a file whose name ends in that way."""
    match = _ARCHIVE.match(storage_path) if storage_path[-1:].isdigit() else None
    if match is None or os.path.exists(storage_path):
        return None
    return ArchivePosition(match["path"], int(match["offset"]))


def is_pipe(storage_path: str) -> bool:
    """Whether ``storage_path`` is a shell command to read from (or to write to), in Kaldi's notation."""
    text = storage_path.strip()
    return text.endswith("|") or text.startswith("|")


class FilePart(io.RawIOBase):
    """The part of a file from ``offset`` on, as a file of its own, so that a range of it can be read without the rest.

    Args:
        file: open for binary reading.
        offset: where the part begins.
        patch: (position in the part, bytes) that stand there instead of those of the file: a corrected header.
    """

    def __init__(self, file: BinaryIO, offset: int, patch: tuple[int, bytes] | None = None) -> None:
        super().__init__()
        self._file, self._offset, self._patch = file, offset, patch
        self._size = file.seek(0, os.SEEK_END) - offset
        file.seek(offset)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            position += self.tell()
        elif whence == os.SEEK_END:
            position += self._size
        return self._file.seek(self._offset + max(0, position)) - self._offset

    def tell(self) -> int:
        return self._file.tell() - self._offset

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        start = self.tell()
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        if self._patch is not None:
            position, content = self._patch
            first, last = max(start, position), min(start + len(data), position + len(content))
            if first < last:
                buffer[first - start : last - start] = content[first - position : last - position]
        return len(data)


def audio_start(head: bytes) -> int | None:
    """Where in an archive item that begins with ``head`` the audio file stands that libsndfile opens in place; ``None``: there is none."""
    if head.startswith(_AUDIO_STARTS):
        return 0
    if head.startswith(b"AUDIO") and len(head) > 5:
        # kaldiio's frame: the number of bytes of the length, then the length
        return 6 + head[5]
    return None


def read_archive_item(position: ArchivePosition, id: str | None = None) -> tuple[int | None, np.ndarray]:
    """Read one item with kaldiio.

    Returns:
        The sample frequency (``None`` for features and other plain arrays) and the array.

    Raises:
        AudioReadError: a pickled object, or not a Kaldi item.
        MissingDependencyError: kaldiio is not installed.
    """
    name = f"{position.path}:{position.offset}"
    with open(position.path, "rb") as file:
        file.seek(position.offset)
        head = file.read(8)
        if head.startswith(b"PKL"):
            raise AudioReadError(
                name, "holds a pickled Python object; reading it would run code, write a matrix instead", id
            )
        if not head:
            raise AudioReadError(name, "the offset is at or past the end of the archive", id)
        matio = require("kaldiio.matio", extra="kaldi", purpose="Kaldi archives")
        file.seek(position.offset)
        try:
            item = matio.read_kaldi(file)
        except (ValueError, AssertionError, RuntimeError, EOFError, OSError, IndexError, UnicodeDecodeError) as error:
            raise AudioReadError(
                name, f"is no item of a Kaldi archive ({error}); it begins with {head!r}", id
            ) from error
    if isinstance(item, tuple):
        first, second = item
        rate, array = (first, second) if isinstance(first, int) else (second, first)
        return int(rate), np.asarray(array)
    return None, np.asarray(item)


def text_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 text file without white space at the ends, with their numbers (from 1). Empty lines are skipped.

    Raises:
        FileNotFoundError: no such file.
        ManifestError: a line is no UTF-8; names file and line.
    """
    with open(Path(path), "rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise ManifestError(f"{path}:{number}: not UTF-8 text ({error.reason})") from error
            if line:
                yield number, line


def read_lines(path: str | os.PathLike[str], num_fields: int, rest: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Fields of a Kaldi text file, with the line number (from 1). Empty lines are skipped.

    Args:
        path: UTF-8 text.
        num_fields: fields expected in each line.
        rest: the last field is the rest of the line, spaces included (paths, commands).

    Raises:
        FileNotFoundError: no such file.
        ManifestError: a line has another number of fields, or is no UTF-8; names file and line.
    """
    for number, line in text_lines(path):
        fields = line.split(maxsplit=num_fields - 1) if rest else line.split()
        if len(fields) != num_fields:
            raise ManifestError(f"{path}:{number}: expected {num_fields} fields, found {len(fields)}: {line[:80]!r}")
        yield number, fields
