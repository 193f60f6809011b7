"""Checkpoints since torch 1.6: a zip archive with a pickle and one entry for each storage."""

from __future__ import annotations

import threading
import zlib
from typing import Any

from hyperion_lite.pth.checks import is_text
from hyperion_lite.pth.container import Container
from hyperion_lite.pth.errors import PthError, PthFormatError, PthLimitError, PthUnsupportedError, shorten
from hyperion_lite.pth.limits import Limits
from hyperion_lite.pth.machine import Machine
from hyperion_lite.pth.sniff import describe_archive
from hyperion_lite.pth.source import Source
from hyperion_lite.pth.values import StorageRef
from hyperion_lite.pth.zip_directory import STORED, ZipDirectory, ZipEntry, read_directory

_CHUNK = 1 << 20
# Deflated entries up to this size are inflated whatever their ratio.
_SMALL_ENTRY = 1 << 20
# Entries of a line of text: version numbers, the byte order.
_MAX_NOTE = 1024


class ZipContainer(Container):
    """A zip checkpoint."""

    format = "zip"

    def __init__(self, source: Source, limits: Limits, allow_torchscript: bool = False) -> None:
        super().__init__(source, limits)
        self._lock = threading.Lock()
        self._inflated: tuple[str, bytes] | None = None
        directory = read_directory(source, limits)
        self.entries = directory.entries
        # torch can be told to write no checksums: every CRC is zero then. A damaged file has others.
        self._has_checksums = any(entry.crc for entry in self.entries.values())
        pickle_entry = self._find_pickle(allow_torchscript)
        self.prefix = pickle_entry.name[: -len("data.pkl")]
        self._folder = f"{self.prefix}data/"
        self._read_notes()
        self._run(pickle_entry)
        self._collect_facts(directory, pickle_entry)

    def _find_pickle(self, allow_torchscript: bool) -> ZipEntry:
        found = [name for name in self.entries if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(found) > 1:
            raise PthFormatError(f"{len(found)} entries are named data.pkl", entry=found[1])
        if not found:
            raise describe_archive(self.entries, self.read_entry_head)
        prefix = found[0][: -len("data.pkl")]
        if f"{prefix}.data/extern_modules" in self.entries or f"{prefix}.data/python_version" in self.entries:
            raise PthUnsupportedError("a torch.package archive: it holds code; only its author's program can read it")
        if f"{prefix}constants.pkl" in self.entries or any(n.startswith(f"{prefix}code/") for n in self.entries):
            if not allow_torchscript:
                raise PthUnsupportedError(
                    "a TorchScript archive (torch.jit.save): a program, not a checkpoint; "
                    "pass allow_torchscript=True to read its parameters as data"
                )
            self.format = "torchscript"
        return self.entries[found[0]]

    def _read_notes(self) -> None:
        order = self._note("byteorder")
        if order not in (None, "little", "big"):
            raise PthFormatError(f"byte order {shorten(order)}", entry=f"{self.prefix}byteorder")
        self.byteorder = order or "little"
        self.facts["version"] = self._note("version") or self._note(".format_version")

    def _note(self, name: str) -> str | None:
        entry = self.entries.get(self.prefix + name)
        if entry is None:
            return None
        if entry.size > _MAX_NOTE:
            raise PthFormatError(f"{entry.size} bytes where a word is expected", entry=entry.name)
        return self.read_entry(entry).decode("utf-8", "replace").strip()

    def _run(self, entry: ZipEntry) -> None:
        if entry.size > self.limits.max_pickle_bytes:
            raise PthLimitError(f"a pickle of {entry.size} bytes (Limits.max_pickle_bytes)", entry=entry.name)
        data = self.read_entry(entry)
        machine = Machine(data, self.limits, self._persistent_load)
        try:
            self.root, end = machine.run()
            if end != len(data):
                raise PthFormatError(f"{len(data) - end} bytes after the end of the pickle", offset=end)
        except PthError as error:
            error.locate(entry=entry.name)
            raise
        self.protocol = machine.protocol

    def _persistent_load(self, machine: Machine, identifier: Any) -> StorageRef:
        if type(identifier) is not tuple or len(identifier) != 5 or not is_text(identifier[0], "storage"):
            raise PthFormatError("a persistent id that is not (storage, class, key, device, count)")
        machine.spend(300)
        return self.add_storage(identifier)

    def _collect_facts(self, directory: ZipDirectory, pickle_entry: ZipEntry) -> None:
        used = {self._entry_name(key) for key in self.storages}
        unused = [entry for name, entry in self.entries.items() if name.startswith(self._folder) and name not in used]
        self.facts.update(
            prefix=self.prefix.rstrip("/"),
            checksums=self._has_checksums,
            entries=len(self.entries),
            compressed_entries=sum(entry.method != STORED for entry in self.entries.values()),
            pickle_bytes=pickle_entry.size,
            comment=directory.comment,
            trailing_bytes=directory.trailing,
            unreferenced_entries=[entry.name for entry in unused],
            unreferenced_entry_bytes=sum(entry.size for entry in unused),
        )

    def _entry_name(self, key: str) -> str:
        return self._folder + key

    def _entry_of(self, storage: StorageRef) -> ZipEntry:
        return self.entries[self._entry_name(storage.base.key)]

    def check_size(self, storage: StorageRef) -> None:
        name = self._entry_name(storage.key)
        entry = self.entries.get(name)
        if entry is None:
            raise PthFormatError(f"storage {shorten(storage.key)}: there is no entry {shorten(name)}")
        if entry.size != storage.nbytes:
            raise PthFormatError(
                f"storage {shorten(storage.key)} of {storage.numel} {storage.dtype.name} elements needs {storage.nbytes} bytes; "
                f"entry {shorten(name)} has {entry.size}"
            )

    def read_entry_head(self, entry: ZipEntry, length: int = 64) -> bytes:
        """The first bytes of a stored entry; none of a compressed one."""
        return self.source.read(entry.data, min(length, entry.size)) if entry.method == STORED else b""

    def read_entry(self, entry: ZipEntry) -> bytes:
        """All bytes of an entry, compared with its CRC."""
        if entry.method != STORED:
            return self._inflate(entry)
        data = self.source.read(entry.data, entry.size)
        self._check_crc(entry, zlib.crc32(data))
        return data

    def _inflate(self, entry: ZipEntry) -> bytes:
        """The uncompressed bytes, never more than declared, compared with their CRC."""
        if entry.size > self.limits.max_inflate_bytes:
            raise PthLimitError(f"inflates to {entry.size} bytes (Limits.max_inflate_bytes)", entry=entry.name)
        if entry.size > max(_SMALL_ENTRY, entry.compressed * self.limits.max_inflate_ratio):
            raise PthLimitError(
                f"{entry.compressed} bytes inflate to {entry.size} (Limits.max_inflate_ratio)", entry=entry.name
            )
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        result = bytearray()
        position = entry.data
        end = entry.data + entry.compressed
        try:
            while position < end and not inflater.eof:
                chunk = self.source.read(position, min(_CHUNK, end - position))
                position += len(chunk)
                # One byte more than declared is enough to see that there is too much.
                while chunk and len(result) <= entry.size:
                    result += inflater.decompress(chunk, min(_CHUNK, entry.size + 1 - len(result)))
                    chunk = inflater.unconsumed_tail
        except zlib.error as error:
            raise PthFormatError(f"damaged compressed data: {error}", entry=entry.name) from error
        if len(result) != entry.size or not inflater.eof or inflater.unused_data or position != end:
            raise PthFormatError(f"compressed data that is not the declared {entry.size} bytes", entry=entry.name)
        self._check_crc(entry, zlib.crc32(result))
        return bytes(result)

    def _inflated_storage(self, entry: ZipEntry) -> bytes:
        # Tensors that share a storage are usually read one after the other.
        with self._lock:
            if self._inflated is None or self._inflated[0] != entry.name:
                self._inflated = None
                self._inflated = (entry.name, self._inflate(entry))
            return self._inflated[1]

    def read_range(self, storage: StorageRef, start: int, target: memoryview) -> None:
        entry = self._entry_of(storage)
        if entry.method == STORED:
            self.source.read_into(entry.data + start, target)
        else:
            target[:] = memoryview(self._inflated_storage(entry))[start : start + len(target)]

    def place(self, storage: StorageRef) -> int | None:
        entry = self._entry_of(storage)
        return entry.data if entry.method == STORED else None

    def accepts(self, storage: StorageRef, content: Any) -> bool:
        return not self._has_checksums or zlib.crc32(content) == self._entry_of(storage).crc

    def verify_storage(self, storage: StorageRef) -> None:
        if storage.base.key not in self.verified:
            self.verify_entry(self._entry_of(storage))
            self.verified.add(storage.base.key)

    def verify_all(self) -> None:
        """Compare every entry with its CRC."""
        for entry in self.entries.values():
            self.verify_entry(entry)
        self.verified.update(self.storages)

    def verify_entry(self, entry: ZipEntry) -> None:
        """Compare an entry with its CRC, by bounded reads."""
        if entry.method != STORED:
            self._inflate(entry)
            return
        buffer = memoryview(bytearray(min(_CHUNK, entry.size)))
        crc = 0
        for position in range(0, entry.size, _CHUNK):
            part = buffer[: min(_CHUNK, entry.size - position)]
            self.source.read_into(entry.data + position, part)
            crc = zlib.crc32(part, crc)
        self._check_crc(entry, crc)

    def _check_crc(self, entry: ZipEntry, crc: int) -> None:
        if crc != entry.crc and self._has_checksums:
            raise PthFormatError(f"damaged: CRC-32 {crc:08x} where {entry.crc:08x} is recorded", entry=entry.name)
