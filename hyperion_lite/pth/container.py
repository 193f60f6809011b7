"""What the containers of tensors have in common: a root value, storages, and bytes of storages on demand."""

from __future__ import annotations

import re
from typing import Any

from hyperion_lite.pth.checks import checked_int
from hyperion_lite.pth.dtypes import DTYPES, STORAGE_DTYPES, STORAGE_MODULES
from hyperion_lite.pth.errors import PthFormatError, PthUnsupportedError, shorten
from hyperion_lite.pth.limits import Limits
from hyperion_lite.pth.source import Source
from hyperion_lite.pth.values import GlobalRef, StorageRef

# A plain name, never a path.
_STORAGE_KEY = re.compile(r"(?!\.{1,2}\Z)[^/\\\0]{1,256}")


class Container:
    """One checkpoint file, opened.

    Attributes:
        format: `zip`, `legacy` or `torchscript`.
        byteorder: `little` or `big`, of the elements.
        protocol: pickle protocol of the values.
        root: what the file holds.
        storages: by key.
        facts: further entries for the file's metadata.
    """

    format = ""

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source = source
        self.limits = limits
        self.byteorder = "little"
        self.protocol = 0
        self.root: Any = None
        self.storages: dict[str, StorageRef] = {}
        self.facts: dict[str, Any] = {}
        self.verified: set[str] = set()

    def read_range(self, storage: StorageRef, start: int, target: memoryview) -> None:
        """Fill `target` from byte `start` of a storage."""
        raise NotImplementedError

    def verify_storage(self, storage: StorageRef) -> None:
        """Compare a storage with its checksum, where the container has one."""
        raise NotImplementedError

    def accepts(self, storage: StorageRef, content: Any) -> bool:
        """Whether `content`, all bytes of a storage as just read, has the right checksum."""
        raise NotImplementedError

    def place(self, storage: StorageRef) -> int | None:
        """Position in the source of a storage's bytes, or None where they are compressed."""
        raise NotImplementedError

    def add_storage(self, identifier: tuple) -> StorageRef:
        """The storage that a persistent id `("storage", class, key, device, count)` names, once for each key."""
        _, kind, key, device, count = identifier
        if type(kind) is not GlobalRef or kind.module not in STORAGE_MODULES or kind.name not in STORAGE_DTYPES:
            shown = kind.qualified_name if isinstance(kind, GlobalRef) else type(kind).__name__
            raise PthUnsupportedError(f"storage class {shorten(shown)}")
        if type(key) is int:
            key = str(key) if 0 <= key < 1 << 64 else ""
        if type(key) is not str or not _STORAGE_KEY.fullmatch(key):
            raise PthFormatError(f"storage key {shorten(key)}")
        if type(device) is not str:
            raise PthFormatError(f"the device of storage {shorten(key)} is a {type(device).__name__}")
        dtype = DTYPES[STORAGE_DTYPES[kind.name]]
        numel = checked_int(count, "the element count of a storage")
        known = self.storages.get(key)
        if known is None:
            known = self.storages[key] = StorageRef(key, dtype, numel, device)
            self.check_size(known)
        elif (known.dtype, known.numel) != (dtype, numel) and not known.numel == numel == 0:
            raise PthFormatError(
                f"storage {shorten(key)} is {known.dtype.name}[{known.numel}] and also {dtype.name}[{numel}]"
            )
        return known

    def check_size(self, storage: StorageRef) -> None:
        """Compare a storage's size with the bytes that the file has for it, where that is known already."""
        raise NotImplementedError
