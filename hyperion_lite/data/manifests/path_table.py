"""Tables that name files: where a relative path is looked for, and what becomes of it when the table moves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa

from hyperion_lite.data.kaldi_io import is_pipe
from hyperion_lite.data.manifests.info_table import InfoTable

_P = TypeVar("_P", bound="PathTable")


class PathTable(InfoTable):
    """Rows that may have a ``storage_path``. A relative one is looked for beside the manifest file, then in the working directory."""

    def resolve(self, storage_path: str) -> str:
        """The path to open: ``storage_path`` itself if absolute or a command, else relative to the manifest or the working directory."""
        if self.file is None or os.path.isabs(storage_path) or is_pipe(storage_path):
            return storage_path
        beside = os.path.join(os.path.dirname(os.path.abspath(self.file)), storage_path)
        plain, _, offset = storage_path.rpartition(":")
        tail = storage_path if not (plain and offset.isdigit()) else plain
        if not os.path.exists(os.path.join(os.path.dirname(beside), os.path.basename(tail))) and os.path.exists(tail):
            return storage_path
        return beside

    def absolute(self: _P) -> _P:
        """With each relative ``storage_path`` made absolute, so that the rows may be saved elsewhere."""
        paths = self._columns["storage_path"].to_pylist() if self.has("storage_path") else []
        if self.file is None or all(path is None or os.path.isabs(path) or is_pipe(path) for path in paths):
            return self
        resolved = [path if path is None or is_pipe(path) else os.path.abspath(self.resolve(path)) for path in paths]
        return self.with_column("storage_path", pa.array(resolved, pa.string()))

    def save(self, path: str | os.PathLike[str], sep: str | None = None) -> None:
        """As in :class:`InfoTable`; saved into another folder, relative storage paths become absolute."""
        origin = os.path.dirname(os.path.abspath(self.file)) if self.file else None
        elsewhere = origin != os.path.dirname(os.path.abspath(os.fspath(path)))
        InfoTable.save(self.absolute() if elsewhere else self, path, sep)

    @classmethod
    def concatenate(cls: type[_P], tables: Sequence[_P]) -> _P:
        """As in :class:`InfoTable`, with absolute storage paths."""
        return super().concatenate([table.absolute() for table in tables])
