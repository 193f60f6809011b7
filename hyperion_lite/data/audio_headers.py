"""How much audio the header of a file promises, and how much the file can hold.

libsndfile silently shortens a truncated WAV, AIFF, AU or SPHERE file to what is there, so the promise is read here. Harmless
differences, all seen in real collections, are not truncation: a wrong RIFF size beside a complete data chunk, junk after the data,
an odd data size without its pad byte, and the sizes that programs write when they stream and cannot know the length.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

_MAX_CHUNKS = 1000
_HEAD = 1024


@dataclass(frozen=True)
class PcmLayout:
    """Where the samples of a plain WAV lie.

    Attributes:
        sample_freq: in Hz.
        channels: interleaved channels.
        dtype: numpy type of a sample, ``<i2`` or ``<f4``.
        offset: byte in the audio file where the samples begin.
    """

    sample_freq: int
    channels: int
    dtype: str
    offset: int


@dataclass(frozen=True)
class DataExtent:
    """Size of the sample data of a file, in bytes.

    Attributes:
        promised: what the header says.
        available: what lies between the start of the data and the end of the file.
        frame: bytes of one sample of all channels (of one block, for block codecs).
        patch: (position, bytes) to put in the place of a size of 0 that means "unknown", which decoders take at its word.
        pcm: layout of the samples, for the WAV files that need no decoder: 16-bit integers and 32-bit floats.
    """

    promised: int
    available: int
    frame: int
    patch: tuple[int, bytes] | None = None
    pcm: PcmLayout | None = None

    @property
    def truncated(self) -> bool:
        """Whether at least one frame is missing."""
        return self.promised - self.available >= max(1, self.frame)


def read_head(file: BinaryIO, start: int = 0) -> bytes:
    """The first bytes of an audio file, which begins at byte ``start``."""
    file.seek(start)
    return file.read(_HEAD)


def data_extent(file: BinaryIO, head: bytes, size: int, start: int = 0) -> DataExtent | None:
    """Read the promise in the header; ``None`` where the format makes none or it means "unknown".

    Args:
        file: open for binary reading, seekable.
        head: what :func:`read_head` gave.
        size: bytes in the file.
        start: where the audio file begins (inside an archive).
    """
    reader = _ChunkReader(file, head, start, size)
    magic = head[:4]
    if magic in (b"RIFF", b"RIFX", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        return _riff(reader, ">" if magic == b"RIFX" else "<")
    if magic == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return _aiff(reader)
    if magic in (b".snd", b"dns."):
        return _au(head, size - start)
    if magic == b"NIST":
        return _sphere(head, size - start)
    return None


class _ChunkReader:
    """Header bytes, from the first block where possible: most headers fit into it."""

    def __init__(self, file: BinaryIO, head: bytes, start: int, size: int) -> None:
        self.file, self.head, self.start, self.size = file, head, start, size

    def read(self, offset: int, count: int) -> bytes:
        if offset + count <= len(self.head):
            return self.head[offset : offset + count]
        self.file.seek(self.start + offset)
        return self.file.read(count)


def _is_streaming_size(size: int) -> bool:
    # written by programs that stream to a pipe: 0, all ones (less a header), and the largest signed number (less a header)
    return size == 0 or size >= 0xFFFFFF00 or 0x7FFFF000 <= size <= 0x7FFFFFFF


def _riff(reader: _ChunkReader, order: str) -> DataExtent | None:
    offset, frame, wide_size, fields = 12, 1, 0, b""
    for _ in range(_MAX_CHUNKS):
        header = reader.read(offset, 8)
        if len(header) < 8:
            return None
        name, size = header[:4], struct.unpack(order + "I", header[4:])[0]
        if name == b"ds64":
            wide = reader.read(offset + 8, 16)
            wide_size = struct.unpack("<Q", wide[8:16])[0] if len(wide) == 16 else 0
        elif name == b"fmt ":
            fields = reader.read(offset + 8, 16)
            frame = struct.unpack(order + "H", fields[12:14])[0] if len(fields) == 16 else 1
        elif name == b"data":
            if size == 0xFFFFFFFF and wide_size:
                size = wide_size
            available = max(0, reader.size - reader.start - offset - 8)
            if size == 0 and available >= frame and not _is_chunk(reader.read(offset + 8, 8), available, order):
                whole = min(available - available % frame, 0xFFFFFFFE)
                return DataExtent(whole, available, frame, (offset + 4, struct.pack(order + "I", whole)))
            if _is_streaming_size(size) and not wide_size:
                return None
            return DataExtent(size, available, frame, pcm=_pcm_layout(fields, offset + 8) if order == "<" else None)
        offset += 8 + size + (size & 1)
    return None


def _pcm_layout(fields: bytes, offset: int) -> PcmLayout | None:
    if len(fields) < 16:
        return None
    tag, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", fields)
    dtype = {(1, 16): "<i2", (3, 32): "<f4"}.get((tag, bits))
    if dtype is None or channels == 0 or rate == 0 or frame != channels * bits // 8:
        return None
    return PcmLayout(rate, channels, dtype, offset)


def _is_chunk(header: bytes, available: int, order: str) -> bool:
    # after an honest data size of 0 stands another chunk, if anything
    if len(header) < 8 or not all(32 <= byte < 127 for byte in header[:4]):
        return False
    return struct.unpack(order + "I", header[4:])[0] + 8 <= available


def _aiff(reader: _ChunkReader) -> DataExtent | None:
    offset, frame = 12, 1
    for _ in range(_MAX_CHUNKS):
        header = reader.read(offset, 8)
        if len(header) < 8:
            return None
        name, size = header[:4], struct.unpack(">I", header[4:])[0]
        if name == b"COMM":
            fields = reader.read(offset + 8, 8)
            if len(fields) == 8:
                channels, _, bits = struct.unpack(">HIH", fields)
                frame = channels * ((bits + 7) // 8)
        elif name == b"SSND":
            if _is_streaming_size(size):
                return None
            # 8 bytes of offset and block size belong to the chunk, not to the samples
            return DataExtent(size - 8, max(0, reader.size - reader.start - offset - 16), frame)
        offset += 8 + size + (size & 1)
    return None


_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}


def _au(head: bytes, size: int) -> DataExtent | None:
    if len(head) < 24:
        return None
    order = ">" if head[:4] == b".snd" else "<"
    offset, promised, encoding, _, channels = struct.unpack(order + "5I", head[4:24])
    if _is_streaming_size(promised):
        return None
    return DataExtent(promised, max(0, size - offset), _AU_BYTES.get(encoding, 1) * max(1, channels))


def _sphere(head: bytes, size: int) -> DataExtent | None:
    fields: dict[str, str] = {}
    for line in head.decode("latin-1").splitlines()[2:]:
        parts = line.split(maxsplit=2)
        if parts[:1] == ["end_head"]:
            break
        if len(parts) == 3:
            fields[parts[0]] = parts[2]
    try:
        header = int(head[8:16])
        count, width = int(fields["sample_count"]), int(fields["sample_n_bytes"])
        channels = int(fields.get("channel_count", "1"))
    except (KeyError, ValueError):
        return None
    if fields.get("sample_coding", "pcm").strip() not in ("pcm", "ulaw", "alaw", "mu-law"):
        return None
    return DataExtent(count * width * channels, max(0, size - header), width * channels)
