"""The central directory of a zip or zip64 archive: entries whose places and names have been checked."""

from __future__ import annotations

import struct
from operator import attrgetter
from typing import NamedTuple

from hyperion_lite.pth.errors import PthFormatError, PthLimitError, PthTruncatedError, PthUnsupportedError, shorten
from hyperion_lite.pth.limits import Limits
from hyperion_lite.pth.source import Source

STORED = 0
DEFLATED = 8

_LOCAL = struct.Struct("<4s22xHH")
_CENTRAL = struct.Struct("<4s4xHH4xIIIHHH8xI")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQ4xIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_MAX32 = 0xFFFFFFFF
_MAX_COMMENT = 0xFFFF


class ZipEntry:
    """One entry of an archive.

    Attributes:
        name: as in the central directory.
        method: `STORED` or `DEFLATED`.
        crc: CRC-32 of the uncompressed bytes.
        compressed: bytes in the file.
        size: uncompressed bytes.
        header: position of the local header.
        data: position of the first byte of the (compressed) content; known once the local header was read.
    """

    __slots__ = ("compressed", "crc", "data", "header", "method", "name", "raw_name", "size")

    def __init__(self, raw_name: bytes, method: int, crc: int, compressed: int, size: int, header: int) -> None:
        self.name = _decode_name(raw_name)
        self.raw_name = raw_name
        self.method = method
        self.crc = crc
        self.compressed = compressed
        self.size = size
        self.header = header
        self.data = -1


class ZipDirectory(NamedTuple):
    """All entries by name, and how many bytes follow the archive's end record and its comment."""

    entries: dict[str, ZipEntry]
    comment: bytes
    trailing: int


class _End(NamedTuple):
    entries: int
    size: int
    offset: int
    comment: bytes
    trailing: int


def read_directory(source: Source, limits: Limits) -> ZipDirectory:
    """Read and check the directory of `source`, which must begin with a local header.

    Raises:
        PthTruncatedError: no end record: the usual sign of an interrupted download.
        PthFormatError: bytes before the archive, duplicate, overlapping or misplaced entries.
        PthUnsupportedError: encryption, several disks, other compression methods.
        PthLimitError: too many entries.
    """
    end = _find_end(source)
    if end.entries > limits.max_entries:
        raise PthLimitError(f"{end.entries} entries (Limits.max_entries is {limits.max_entries})")
    if end.entries * _CENTRAL.size > end.size:
        raise PthFormatError(f"a central directory of {end.size} bytes for {end.entries} entries", offset=end.offset)
    if end.size > limits.max_pickle_bytes:
        raise PthLimitError(f"a central directory of {end.size} bytes (Limits.max_pickle_bytes)", offset=end.offset)
    directory = source.read(end.offset, end.size)
    entries = []
    position = 0
    for _ in range(end.entries):
        entry, position = _central_entry(directory, position, end.offset)
        entries.append(entry)
    if position != end.size:
        raise PthFormatError(f"the central directory has {end.size - position} bytes too many", offset=end.offset)
    return ZipDirectory(_place(source, entries, end.offset), end.comment, end.trailing)


def _find_end(source: Source) -> _End:
    """The last end record whose directory ends where the record begins."""
    start = max(0, source.size - _END.size - _MAX_COMMENT)
    tail = source.read(start, source.size - start)
    position = len(tail)
    reason = None
    while (position := tail.rfind(b"PK\5\6", 0, position)) >= 0:
        if position + _END.size > len(tail):
            continue
        try:
            return _read_end(source, tail, position, start)
        except PthFormatError as error:
            reason = reason or error
    if reason is not None:
        raise reason
    raise PthTruncatedError("a zip archive without its central directory: the file is truncated (incomplete download?)")


def _read_end(source: Source, tail: bytes, position: int, start: int) -> _End:
    _, disk, first_disk, here, count, size, offset, comment = _END.unpack_from(tail, position)
    at = start + position
    after = position + _END.size
    rest = len(tail) - after
    if comment > rest:
        raise PthTruncatedError(f"an archive comment of {comment} bytes where {rest} are left", offset=at)
    end_of_directory = at
    if at >= _LOCATOR64.size + _END64.size:
        locator = source.read(at - _LOCATOR64.size, _LOCATOR64.size)
        signature, _, record, _ = _LOCATOR64.unpack(locator)
        if signature == b"PK\6\7":
            disk, first_disk, here, count, size, offset = _read_end64(source, record, at - _LOCATOR64.size)
            end_of_directory = record
    if disk or first_disk or here != count:
        raise PthUnsupportedError("an archive in several parts", offset=at)
    if offset + size != end_of_directory:
        missing = end_of_directory - offset - size
        found = f"{missing} bytes before the archive" if missing > 0 else "a central directory that overlaps its end"
        raise PthFormatError(f"{found}, or between its parts", offset=at)
    return _End(count, size, offset, tail[after : after + comment], rest - comment)


def _read_end64(source: Source, record: int, locator: int) -> tuple[int, int, int, int, int, int]:
    if record > locator - _END64.size:
        raise PthFormatError("the zip64 end record is not where its locator says", offset=locator)
    signature, length, disk, first_disk, here, count, size, offset = _END64.unpack(source.read(record, _END64.size))
    if signature != b"PK\6\6" or record + 12 + length != locator:
        raise PthFormatError("malformed zip64 end record", offset=record)
    return disk, first_disk, here, count, size, offset


def _central_entry(directory: bytes, position: int, base: int) -> tuple[ZipEntry, int]:
    if position + _CENTRAL.size > len(directory):
        raise PthFormatError("the central directory ends inside an entry", offset=base + position)
    signature, flags, method, crc, compressed, size, name_length, extra_length, comment_length, header = (
        _CENTRAL.unpack_from(directory, position)
    )
    if signature != b"PK\1\2":
        raise PthFormatError("no entry of a central directory", offset=base + position)
    name_at = position + _CENTRAL.size
    extra_at = name_at + name_length
    after = extra_at + extra_length + comment_length
    if after > len(directory):
        raise PthFormatError("the central directory ends inside an entry", offset=base + position)
    if _MAX32 in (size, compressed, header):
        extra = directory[extra_at : extra_at + extra_length]
        size, compressed, header = _zip64_sizes(extra, size, compressed, header, base + position)
    entry = ZipEntry(directory[name_at:extra_at], method, crc, compressed, size, header)
    if flags & 0x2041:
        raise PthUnsupportedError("an encrypted entry", entry=entry.name)
    if method == STORED:
        if size != compressed:
            raise PthFormatError(f"a stored entry of {size} bytes takes {compressed}", entry=entry.name)
    elif method != DEFLATED:
        raise PthUnsupportedError(f"compression method {method}; stored and deflated are read", entry=entry.name)
    return entry, after


def _decode_name(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp437")


def _zip64_sizes(extra: bytes, size: int, compressed: int, header: int, at: int) -> tuple[int, int, int]:
    """Values that do not fit 32 bits are in extra field 1, in this order, each only if it is marked."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        field = extra[position + 4 : position + 4 + length]
        position += 4 + length
        if kind != 1:
            continue
        values = []
        for value in (size, compressed, header):
            if value == _MAX32:
                if len(field) < 8:
                    raise PthFormatError("a zip64 field is too short", offset=at)
                value = int.from_bytes(field[:8], "little")
                field = field[8:]
            values.append(value)
        return values[0], values[1], values[2]
    # A size may really be 2**32 - 1, without a field; what it says is checked against the file like any other.
    return size, compressed, header


def _place(source: Source, entries: list[ZipEntry], limit: int) -> dict[str, ZipEntry]:
    """Find each entry's content behind its local header; entries may neither share names nor bytes."""
    names: set[str] = set()
    end = 0
    previous = ""
    for entry in sorted(entries, key=attrgetter("header")):
        if entry.name in names:
            raise PthFormatError("two entries of this name", entry=entry.name)
        if entry.header < end:
            raise PthFormatError(f"overlaps entry {shorten(previous)}", entry=entry.name, offset=entry.header)
        if not names and entry.header:
            raise PthFormatError(f"{entry.header} bytes before the first entry", entry=entry.name)
        entry.data = _content_position(source, entry, limit)
        end = entry.data + entry.compressed
        if end > limit:
            raise PthFormatError(f"{entry.compressed} bytes reach into the central directory", entry=entry.name)
        previous = entry.name
        names.add(previous)
    return {entry.name: entry for entry in entries}


def _content_position(source: Source, entry: ZipEntry, limit: int) -> int:
    """Only the two lengths of a local header are used: real files carry wrong sizes and broken extra fields there."""
    length = len(entry.raw_name)
    if entry.header + _LOCAL.size + length > limit:
        raise PthFormatError("the local header lies outside the entries", entry=entry.name, offset=entry.header)
    raw = source.read(entry.header, _LOCAL.size + length)
    signature, name_length, extra_length = _LOCAL.unpack_from(raw)
    if signature != b"PK\3\4":
        raise PthFormatError("no local header where the directory says", entry=entry.name, offset=entry.header)
    if name_length != length or raw[_LOCAL.size :] != entry.raw_name:
        raise PthFormatError("the local header has another name", entry=entry.name, offset=entry.header)
    return entry.header + _LOCAL.size + length + extra_length
