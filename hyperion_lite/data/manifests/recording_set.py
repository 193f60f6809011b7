"""Recordings: audio files with their rate and length."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hyperion_lite.data.manifests.columns import ColumnRules
from hyperion_lite.data.manifests.info_table import InfoTable
from hyperion_lite.data.manifests.path_table import PathTable


class RecordingSet(PathTable):
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

    def recording(self, id: str) -> dict[str, Any]:
        """The row of ``id`` with its ``storage_path`` resolved: what :meth:`AudioReader.read` takes.

        Raises:
            KeyError: unknown id.
        """
        return self.recording_at(self.index(id))

    def recording_at(self, row: int) -> dict[str, Any]:
        """As :meth:`recording`, by row number."""
        values = self.row(row)
        values["storage_path"] = self.resolve(values["storage_path"])
        return values

    @classmethod
    def from_segments(cls, segments: InfoTable, recordings: RecordingSet) -> RecordingSet:
        """The recordings that ``segments`` are part of, in the order of ``recordings``.

        Raises:
            KeyError: a segment of an unknown recording.
        """
        wanted = segments.table.column("recording" if segments.has("recording") else "id")
        return recordings.take(np.unique(recordings.indices(wanted)))
