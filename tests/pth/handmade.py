"""Archives and pickles made byte by byte, so that every field can be wrong."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from hyperion_lite.pth import Limits
from hyperion_lite.pth.machine import Machine

MAX32 = 0xFFFFFFFF


@dataclass
class Entry:
    """One zip entry; what is None is made right."""

    name: bytes
    content: bytes
    method: int = 0
    flags: int = 0
    crc: int | None = None
    size: int | None = None
    compressed: int | None = None
    local_name: bytes | None = None
    local_extra: bytes = b""
    local_sizes: tuple[int, int, int] | None = None
    central_extra: bytes = b""
    header: int | None = None
    gap: bytes = b""
    descriptor: bytes = b""
    zip64: bool = False
    stored: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.stored = self.content
        if self.method == 8:
            packer = zlib.compressobj(9, zlib.DEFLATED, -15)
            self.stored = packer.compress(self.content) + packer.flush()
        self.crc = zlib.crc32(self.content) if self.crc is None else self.crc
        self.size = len(self.content) if self.size is None else self.size
        self.compressed = len(self.stored) if self.compressed is None else self.compressed


def local_part(entry: Entry) -> bytes:
    name = entry.name if entry.local_name is None else entry.local_name
    crc, compressed, size = entry.local_sizes or (entry.crc, entry.compressed, entry.size)
    head = struct.pack(
        "<4s5H3I2H", b"PK\3\4", 20, entry.flags, entry.method, 0, 0, crc, compressed & MAX32, size & MAX32, len(name),
        len(entry.local_extra),
    )  # fmt: skip
    return head + name + entry.local_extra + entry.stored + entry.descriptor


def central_part(entry: Entry, position: int) -> bytes:
    extra = entry.central_extra
    size, compressed = entry.size, entry.compressed
    header = position if entry.header is None else entry.header
    if entry.zip64:
        extra = extra + struct.pack("<HHQQQ", 1, 24, size, compressed, header)
        size = compressed = header = MAX32
    return struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, entry.flags, entry.method, 0, 0, entry.crc, compressed, size, len(entry.name),
        len(extra), 0, 0, 0, 0, header,
    ) + entry.name + extra  # fmt: skip


def make_zip(
    entries: list[Entry],
    *,
    comment: bytes = b"",
    zip64: bool = False,
    count: int | None = None,
    directory_size: int | None = None,
    directory_offset: int | None = None,
    disk: int = 0,
) -> bytes:
    body = b""
    directory = b""
    for entry in entries:
        body += entry.gap
        directory += central_part(entry, len(body))
        body += local_part(entry)
    number = len(entries) if count is None else count
    size = len(directory) if directory_size is None else directory_size
    offset = len(body) if directory_offset is None else directory_offset
    tail = b""
    if zip64:
        at = len(body) + len(directory)
        tail = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, number, number, size, offset)
        tail += struct.pack("<4sIQI", b"PK\6\7", 0, at, 1)
        number, size, offset = min(number, 0xFFFF), MAX32, MAX32
    tail += struct.pack("<4s4H2IH", b"PK\5\6", disk, disk, number, number, size, offset, len(comment))
    return body + directory + tail + comment


def text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def integer(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(integer, values)) + b"t"


def storage(key: str = "0", count: int = 6, kind: str = "FloatStorage", module: str = "torch") -> bytes:
    return b"(" + text("storage") + name(module, kind) + text(key) + text("cpu") + integer(count) + b"tQ"


def tensor(
    source: bytes | None = None,
    offset: int = 0,
    shape: tuple[int, ...] = (2, 3),
    stride: tuple[int, ...] = (3, 1),
    extra: bytes = b"",
) -> bytes:
    """A call of `_rebuild_tensor_v2`."""
    return (
        name("torch._utils", "_rebuild_tensor_v2") + b"(" + (storage() if source is None else source)
        + integer(offset) + numbers(shape) + numbers(stride) + b"\x89" + name("collections", "OrderedDict") + b")R"
        + extra + b"tR"
    )  # fmt: skip


def mapping(**values: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in values.items()) + b"u"


def pickled(body: bytes, protocol: int = 2) -> bytes:
    return b"\x80" + bytes([protocol]) + body + b"."


FLOATS = struct.pack("<6f", 0, 1, 2, 3, 4, 5)


def parts(
    data_pkl: bytes | None = None,
    storages: dict[str, bytes] | None = None,
    prefix: str = "archive/",
    byteorder: bytes | None = b"little",
) -> list[Entry]:
    """The entries of a checkpoint; by default `{"w": [[0, 1, 2], [3, 4, 5]]}`."""
    pickle = pickled(mapping(w=tensor())) if data_pkl is None else data_pkl
    entries = [Entry(f"{prefix}data.pkl".encode(), pickle)]
    if byteorder is not None:
        entries.append(Entry(f"{prefix}byteorder".encode(), byteorder))
    for key, content in ({"0": FLOATS} if storages is None else storages).items():
        entries.append(Entry(f"{prefix}data/{key}".encode(), content))
    return [*entries, Entry(f"{prefix}version".encode(), b"3\n")]


def checkpoint(body: bytes | None = None, storages: dict[str, bytes] | None = None, protocol: int = 2) -> bytes:
    """A zip checkpoint whose pickle is `body`."""
    return make_zip(parts(None if body is None else pickled(body, protocol), storages))


def legacy(
    body: bytes | None = None,
    storages: dict[str, tuple[int, bytes]] | None = None,
    keys: bytes | None = None,
    magic: bytes = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
) -> bytes:
    """A checkpoint of the kind before zip; storages are (count, bytes) by key."""
    stored = {"0": (6, FLOATS)} if storages is None else storages
    source = storage().removesuffix(b"tQ") + b"NtQ"
    listed = b"".join(map(text, stored)) if keys is None else keys
    result = magic + pickled(b"M\xe9\x03") + pickled(b"}")
    result += pickled(mapping(w=tensor(source))) if body is None else body
    result += pickled(b"](" + listed + b"e")
    for count, content in stored.values():
        result += struct.pack("<q", count) + content
    return result


def run(data: bytes, **limits: int) -> Any:
    return Machine(data, Limits(**limits)).run()[0]


def value_of(body: bytes) -> Any:
    return run(pickled(body))
