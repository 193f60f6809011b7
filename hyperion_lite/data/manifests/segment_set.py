"""Segments: stretches of recordings, with attributes such as the speaker."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from hyperion_lite.data.manifests.columns import ColumnRules
from hyperion_lite.data.manifests.info_table import InfoTable
from hyperion_lite.data.manifests.recording_set import RecordingSet


def _end_to_duration(columns: dict[str, pa.ChunkedArray]) -> None:
    if "end" not in columns or "duration" in columns:
        return
    end = columns["end"].to_numpy()
    start = np.nan_to_num(columns["start"].to_numpy(), nan=0.0) if "start" in columns else 0.0
    columns["duration"] = pa.chunked_array([pa.array(np.where(end == -1, np.nan, end - start))])


class SegmentSet(InfoTable):
    """Segments. Columns: ``id``; optional ``recording`` (default: the id), ``start`` (s, default 0), ``duration`` (s, missing: to the
    end of the recording), ``channel`` (from 0, of a recording of several), and any attributes.

    A column ``end`` beside no ``duration`` is turned into one; -1 there means the end of the recording, as in Kaldi.
    """

    rules: ClassVar[ColumnRules] = ColumnRules(
        "segment manifest",
        required=("id",),
        text=frozenset({"id", "recording"}),
        floats=frozenset({"start", "duration", "end"}),
        integers=frozenset({"channel"}),
        aliases={
            "segmentid": "id",
            "segment_id": "id",
            "utt_id": "id",
            "recordingid": "recording",
            "recording_id": "recording",
            "recordings": "recording",
            "tbeg": "start",
            "tend": "end",
        },
        finish=_end_to_duration,
    )

    @property
    def start(self) -> np.ndarray:
        """Start of each segment in its recording (rows,) float64, seconds; missing values are 0."""
        if not self.has("start"):
            return np.zeros(len(self))
        start = self.column("start")
        return np.nan_to_num(start, nan=0.0) if np.isnan(start).any() else start

    @property
    def duration(self) -> np.ndarray:
        """Duration of each segment (rows,) float64, seconds; NaN: to the end of the recording."""
        return self.column("duration") if self.has("duration") else np.full(len(self), np.nan)

    def recording_id(self, id: str) -> str:
        """The recording that a segment is part of.

        Raises:
            KeyError: unknown segment.
        """
        row = self.index(id)
        recording = self._value("recording", row) if self.has("recording") else None
        return str(id) if recording is None else recording

    def recording_ids(self) -> pa.ChunkedArray:
        """The recording of each segment, as an Arrow column of text."""
        import pyarrow.compute as pc

        if not self.has("recording"):
            return self._columns["id"]
        recordings = self._columns["recording"]
        return pc.coalesce(recordings, self._columns["id"]) if recordings.null_count else recordings

    @classmethod
    def from_recordings(cls, recordings: RecordingSet) -> SegmentSet:
        """One segment a recording, with its id, its whole duration and its attributes."""
        dropped = {"storage_path", "sample_freq", "num_samples", "channel", "recording", "start", "end"}
        kept = [name for name in recordings.column_names if name not in dropped]
        columns = {name: recordings.table.column(name) for name in kept}
        columns["recording"] = recordings.table.column("id")
        columns["start"] = pa.chunked_array([pa.array(np.zeros(len(recordings)))])
        return cls(pa.table(columns), recordings.file)
