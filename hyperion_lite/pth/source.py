"""Where the bytes come from: a file on disk, a file object, or memory; always read by bounded ranges."""

from __future__ import annotations

import io
import os
import stat
import threading
from typing import Any, BinaryIO

from hyperion_lite.pth.errors import PthFormatError, PthLimitError, PthTruncatedError
from hyperion_lite.pth.limits import Limits

_CHUNK = 1 << 20


class Source:
    """Bytes that can be read at any position, by several threads at once.

    Attributes:
        size: bytes in all.
        name: for messages; None for bytes without a name.
    """

    size: int
    name: str | None = None

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` (bytes) from `offset`.

        Raises:
            PthTruncatedError: the bytes end before `target` is full.
        """
        raise NotImplementedError

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; compared with the size before anything is allocated."""
        self.check(offset, length)
        target = bytearray(length)
        self.read_into(offset, memoryview(target))
        return bytes(target)

    def check(self, offset: int, length: int) -> None:
        """Make sure that a range lies inside."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise PthTruncatedError(
                f"{length} bytes are needed where {max(self.size - offset, 0)} are left", offset=offset
            )

    def buffer(self) -> Any:
        """All bytes as one writable, private buffer for zero-copy tensors, or None where there is no such thing."""
        return None

    def close(self) -> None:
        """Release what the source owns; reading is over."""


class MemorySource(Source):
    """Bytes in memory."""

    def __init__(self, data: Any, name: str | None = None) -> None:
        self._view = memoryview(data).cast("B")
        self.size = len(self._view)
        self.name = name

    def read_into(self, offset: int, target: memoryview) -> None:
        self.check(offset, len(target))
        target[:] = self._view[offset : offset + len(target)]

    def read(self, offset: int, length: int) -> bytes:
        self.check(offset, length)
        return bytes(self._view[offset : offset + length])


class FileSource(Source):
    """A regular file, read by position, and memory-mapped (copy on write) where views are asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path) if isinstance(os.fspath(path), str) else os.fsdecode(path)
        # Without O_NONBLOCK a named pipe would wait for a writer for ever.
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        self._descriptor = os.open(path, flags)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or device"
            raise PthFormatError(f"{kind}, not a file", path=self.name)
        self.size = status.st_size
        self._map: Any = None
        self._lock = threading.Lock()

    def read_into(self, offset: int, target: memoryview) -> None:
        self.check(offset, len(target))
        done = 0
        while done < len(target):
            count = self._read_some(offset + done, target[done:])
            if count == 0:
                raise PthTruncatedError("the file became shorter while it was open", offset=offset + done)
            done += count

    def _read_some(self, offset: int, target: memoryview) -> int:
        if self._descriptor < 0:
            raise ValueError(f"{self.name} is closed")
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [target], offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            data = os.read(self._descriptor, len(target))
        target[: len(data)] = data
        return len(data)

    def read(self, offset: int, length: int) -> bytes:
        self.check(offset, length)
        if self._descriptor >= 0 and hasattr(os, "pread"):
            data = os.pread(self._descriptor, length, offset)
            if len(data) == length:
                return data
        return super().read(offset, length)

    def buffer(self) -> Any:
        import mmap

        with self._lock:
            if self._map is None and self.size and self._descriptor >= 0:
                self._map = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_COPY)
            return self._map

    def close(self) -> None:
        with self._lock:
            # Tensors that still look into the map keep it alive.
            self._map = None
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __del__(self) -> None:
        # Whoever forgets to close a file leaks no descriptor.
        if getattr(self, "_descriptor", -1) >= 0 and hasattr(self, "_lock"):
            self.close()


class ObjectSource(Source):
    """A seekable binary file object, from its current position to its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._start = file.tell()
        self.size = max(file.seek(0, io.SEEK_END) - self._start, 0)
        file.seek(self._start)
        name = getattr(file, "name", None)
        self.name = name if isinstance(name, str) else None

    def read_into(self, offset: int, target: memoryview) -> None:
        self.check(offset, len(target))
        with self._lock:
            self._file.seek(self._start + offset)
            done = 0
            while done < len(target):
                data = self._file.read(len(target) - done)
                if not data:
                    raise PthTruncatedError("the file object ends early", offset=offset + done)
                target[done : done + len(data)] = data
                done += len(data)


def open_source(file: Any, limits: Limits) -> Source:
    """The source behind a path, bytes, or a file object.

    Raises:
        OSError: a path that cannot be opened.
        TypeError: something else.
        PthLimitError: a stream without positions that is too long to keep in memory.
    """
    if isinstance(file, (str, os.PathLike)):
        return FileSource(file)
    if isinstance(file, (bytes, bytearray, memoryview)):
        return MemorySource(file)
    if not hasattr(file, "read"):
        raise TypeError(f"a path, bytes or a binary file object is needed, not {type(file).__name__}")
    if isinstance(file, io.TextIOBase):
        raise TypeError("a file object opened in binary mode is needed")
    if hasattr(file, "seekable") and file.seekable():
        return ObjectSource(file)
    chunks, total = [], 0
    while chunk := file.read(_CHUNK):
        if not isinstance(chunk, (bytes, bytearray)):
            raise TypeError("a file object opened in binary mode is needed")
        total += len(chunk)
        if total > limits.max_stream_bytes:
            raise PthLimitError(f"a stream of more than {limits.max_stream_bytes} bytes (Limits.max_stream_bytes)")
        chunks.append(chunk)
    return MemorySource(b"".join(chunks))
