"""Recordings: audio files with their rate and length."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from hyperion_lite.data.kaldi_io import is_pipe
from hyperion_lite.data.manifests.columns import ColumnRules
from hyperion_lite.data.manifests.info_table import InfoTable


class RecordingSet(InfoTable):
    """Audio files. Columns: ``id``, ``storage_path``; optional ``sample_freq`` (Hz), ``duration`` (s), ``channel`` (from 0), any others.

    A relative ``storage_path`` is looked for beside the manifest file, then in the working directory.
    """

    rules: ClassVar[ColumnRules] = ColumnRules(
        "recording manifest",
        required=("id", "storage_path"),
        text=frozenset({"id", "storage_path"}),
        floats=frozenset({"duration"}),
        integers=frozenset({"sample_freq", "num_samples", "channel"}),
        aliases={
            "recordingid": "id",
            "recording_id": "id",
            "recording": "id",
            "segmentid": "id",
            "segment_id": "id",
            "path": "storage_path",
            "filename": "storage_path",
            "file": "storage_path",
            "wav": "storage_path",
            "sample_rate": "sample_freq",
            "sampling_rate": "sample_freq",
        },
    )

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

    def recording(self, id: str) -> dict[str, Any]:
        """The row of ``id`` with its ``storage_path`` resolved: what :meth:`AudioReader.read` takes.

        Raises:
            KeyError: unknown id.
        """
        row = self[id]
        row["storage_path"] = self.resolve(row["storage_path"])
        return row

    def absolute(self) -> RecordingSet:
        """With each relative ``storage_path`` made absolute, so that the rows may be saved elsewhere."""
        paths = self._columns["storage_path"].to_pylist()
        if self.file is None or all(os.path.isabs(path) or is_pipe(path) for path in paths):
            return self
        resolved = [path if is_pipe(path) else os.path.abspath(self.resolve(path)) for path in paths]
        return self.with_column("storage_path", pa.array(resolved, pa.string()))

    def save(self, path: str | os.PathLike[str], sep: str | None = None) -> None:
        """As in :class:`InfoTable`; saved into another folder, relative storage paths become absolute."""
        origin = os.path.dirname(os.path.abspath(self.file)) if self.file else None
        elsewhere = origin != os.path.dirname(os.path.abspath(os.fspath(path)))
        InfoTable.save(self.absolute() if elsewhere else self, path, sep)

    @classmethod
    def concatenate(cls, tables: Sequence[RecordingSet]) -> RecordingSet:  # type: ignore[override]
        """As in :class:`InfoTable`, with absolute storage paths."""
        return super().concatenate([table.absolute() for table in tables])

    @classmethod
    def from_segments(cls, segments: InfoTable, recordings: RecordingSet) -> RecordingSet:
        """The recordings that ``segments`` are part of, in the order of ``recordings``.

        Raises:
            KeyError: a segment of an unknown recording.
        """
        wanted = segments.table.column("recording" if segments.has("recording") else "id")
        return recordings.take(np.unique(recordings.indices(wanted)))
