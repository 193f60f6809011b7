"""Checkpoints before torch 1.6: pickles one after the other, then the storages' bytes."""

from __future__ import annotations

from typing import Any

from hyperion_lite.pth.checks import checked_int
from hyperion_lite.pth.container import Container
from hyperion_lite.pth.errors import (
    PthError,
    PthFormatError,
    PthLimitError,
    PthTruncatedError,
    PthUnsupportedError,
    shorten,
)
from hyperion_lite.pth.limits import Limits
from hyperion_lite.pth.machine import Machine, PersistentLoad, refuse_persistent_id
from hyperion_lite.pth.source import Source
from hyperion_lite.pth.values import GlobalRef, StorageRef

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001
_FIRST_WINDOW = 1 << 20


class LegacyContainer(Container):
    """A pre-zip checkpoint: magic number, version, system, value and key list as pickles, then the storages."""

    format = "legacy"

    def __init__(self, source: Source, limits: Limits) -> None:
        super().__init__(source, limits)
        self._window = source.read(0, min(_FIRST_WINDOW, source.size))
        self._views: dict[str, StorageRef] = {}
        self._places: dict[str, int] = {}
        self._position = 0
        self._read_head()
        start = self._position
        self.root, self.protocol = self._pickle("value", self._persistent_load)
        self.facts.update(
            version=str(PROTOCOL_VERSION), pickle_bytes=self._position - start, trailing_bytes=0, checksums=False
        )
        keys, _ = self._pickle("key list")
        self._window = b""
        self._locate_storages(keys)

    def _read_head(self) -> None:
        magic, _ = self._pickle("magic number")
        if type(magic) is not int or magic != MAGIC_NUMBER:
            raise PthFormatError("a pickle, but not one of torch.save: the magic number is missing", offset=0)
        version, _ = self._pickle("version")
        if type(version) is not int or version != PROTOCOL_VERSION:
            raise PthUnsupportedError(f"version {shorten(version)} of the file format; {PROTOCOL_VERSION} is known")
        system, _ = self._pickle("system description")
        # Elements are written little-endian by every machine; what this says has no effect.
        if type(system) is not dict:
            raise PthFormatError("the system description is not a dictionary")

    def _pickle(self, part: str, load: PersistentLoad = refuse_persistent_id) -> tuple[Any, int]:
        """The next pickle's value and protocol. Its length is unknown, so it is read in a window that grows."""
        while True:
            machine = Machine(self._window, self.limits, load, self._position)
            try:
                value, self._position = machine.run()
                return value, machine.protocol
            except PthTruncatedError as error:
                if len(self._window) == self.source.size:
                    error.message += f" (in the {part}: the file is truncated)"
                    raise
            except PthError as error:
                error.locate(entry=part)
                raise
            self._grow(part)

    def _grow(self, part: str) -> None:
        if len(self._window) >= self.limits.max_pickle_bytes:
            raise PthLimitError(f"more than {len(self._window)} bytes of pickles (Limits.max_pickle_bytes)", entry=part)
        self._window = self.source.read(0, min(2 * len(self._window), self.source.size))
        self.storages.clear()
        self._views.clear()

    def _persistent_load(self, machine: Machine, identifier: Any) -> Any:
        kind = identifier[0] if type(identifier) is tuple and identifier and type(identifier[0]) is str else None
        machine.spend(300)
        if kind == "module" and len(identifier) == 4 and type(identifier[1]) is GlobalRef:
            # A class together with its source text.
            return identifier[1]
        if kind != "storage" or len(identifier) not in (5, 6):
            raise PthFormatError("a persistent id that is not (storage, class, key, device, count, view)")
        base = self.add_storage(identifier[:5])
        view = identifier[5] if len(identifier) == 6 else None
        return base if view is None else self._view(base, view)

    def _view(self, base: StorageRef, view: Any) -> StorageRef:
        """`(key, offset, count)`: a part of a storage, itself a storage."""
        if type(view) is not tuple or len(view) != 3 or type(view[0]) is not str:
            raise PthFormatError(f"malformed view of storage {shorten(base.key)}")
        offset = checked_int(view[1], "the offset of a storage view")
        numel = checked_int(view[2], "the element count of a storage view")
        if offset + numel > base.numel:
            raise PthFormatError(
                f"a view of elements {offset} to {offset + numel} of storage {shorten(base.key)} of {base.numel}"
            )
        known = self._views.get(view[0])
        if known is None:
            known = self._views[view[0]] = StorageRef(view[0], base.dtype, numel, base.device, base, offset)
        elif (known.base, known.base_offset, known.numel) != (base, offset, numel):
            raise PthFormatError(f"storage view {shorten(view[0])} is described in two ways")
        return known

    def check_size(self, storage: StorageRef) -> None:
        """The bytes follow all pickles: only a bound is known yet."""
        if storage.nbytes > self.source.size:
            raise PthFormatError(
                f"storage {shorten(storage.key)} needs {storage.nbytes} bytes; the whole file has {self.source.size}"
            )

    def _locate_storages(self, keys: Any) -> None:
        """Each storage: its element count (int64, little-endian), then its bytes, in the order of the key list."""
        if type(keys) is not list:
            raise PthFormatError("the key list is not a list")
        position = self._position
        for key in keys:
            key = str(key) if type(key) is int and 0 <= key < 1 << 64 else key
            storage = self.storages.get(key) if type(key) is str else None
            if storage is None:
                raise PthFormatError(f"the key list names {shorten(key)}, which no tensor uses", offset=position)
            if key in self._places:
                raise PthFormatError(f"the key list names {shorten(key)} twice", offset=position)
            position = self._locate(storage, position)
        if len(self._places) != len(self.storages):
            missing = next(key for key in self.storages if key not in self._places)
            raise PthFormatError(f"storage {shorten(missing)} is not in the key list", offset=self._position)
        if position != self.source.size:
            raise PthFormatError(f"{self.source.size - position} bytes after the last storage", offset=position)

    def _locate(self, storage: StorageRef, position: int) -> int:
        try:
            count = int.from_bytes(self.source.read(position, 8), "little", signed=True)
            if count != storage.numel:
                raise PthFormatError(
                    f"storage {shorten(storage.key)} has {count} elements here and {storage.numel} in the pickle",
                    offset=position,
                )
            self.source.check(position + 8, storage.nbytes)
        except PthTruncatedError as error:
            error.message = f"the file is truncated in storage {shorten(storage.key)}: {error.message}"
            raise
        self._places[storage.key] = position + 8
        return position + 8 + storage.nbytes

    def read_range(self, storage: StorageRef, start: int, target: memoryview) -> None:
        skip = storage.base_offset * storage.dtype.itemsize
        self.source.read_into(self._places[storage.base.key] + skip + start, target)

    def place(self, storage: StorageRef) -> int | None:
        return self._places[storage.base.key] + storage.base_offset * storage.dtype.itemsize

    def accepts(self, storage: StorageRef, content: Any) -> bool:
        return True

    def verify_storage(self, storage: StorageRef) -> None:
        """There are no checksums; sizes were compared when the file was opened."""
