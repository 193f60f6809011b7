"""The audio of segments: a table of segments, a table of recordings, and a reader, put together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.audio_errors import AudioRangeError
from hyperion_lite.data.audio_reader import AudioData, AudioReader

if TYPE_CHECKING:
    from hyperion_lite.data.manifests import RecordingSet, SegmentSet

RANGE_TOLERANCE = 0.001
"""Seconds by which a range may leave its segment: what times written with three digits can be wrong by."""


class SegmentAudio:
    """Reads segments, and ranges of segments, by row.

    Args:
        segments: ids; optionally ``recording`` (default: the recording with the segment's id), ``start`` (default 0) and ``duration``
            (default: to the end of the recording).
        recordings: ids and storage paths.
        reader: how files are read.
    """

    def __init__(self, segments: SegmentSet, recordings: RecordingSet, reader: AudioReader) -> None:
        self.segments = segments
        self.recordings = recordings
        self.reader = reader
        self._readers = {reader.target_sample_freq: reader}

    def __len__(self) -> int:
        return len(self.segments)

    def id(self, row: int) -> str:
        """Id of the segment in a row."""
        return self.segments.ids[row]

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """Rows of segments (int64).

        Raises:
            KeyError: an id is not in the table.
        """
        return self.segments.indices(ids)

    def _cell(self, row: int, column: str) -> Any:
        return self.segments.column(column)[row] if column in self.segments.column_names else None

    def recording_row(self, row: int) -> dict[str, Any]:
        """The row of the recording table for a segment, with the segment's own ``channel`` where it has one."""
        recording_id = self._cell(row, "recording")
        recording = dict(self.recordings[recording_id if recording_id is not None else self.id(row)])
        channel = self._cell(row, "channel")
        if channel is not None:
            recording["channel"] = channel
        return recording

    def extent(self, row: int) -> tuple[float, float]:
        """Start and duration of a segment in its recording, in seconds.

        Where neither table has the duration, it is asked of the file.
        """
        start, duration = self._cell(row, "start"), self._cell(row, "duration")
        start = 0.0 if start is None or start != start else float(start)
        if duration is not None and duration == duration:
            return start, float(duration)
        recording = self.recording_row(row)
        total = recording.get("duration")
        if total is None or total != total:
            total = self.reader.info(recording, self.id(row)).duration
        return start, float(total) - start

    def duration(self, row: int) -> float:
        """Duration of a segment in seconds; see :meth:`extent`."""
        return self.extent(row)[1]

    def read(
        self, row: int, start: float = 0.0, duration: float | None = None, sample_freq: int | None = None
    ) -> AudioData:
        """Read a segment or a range of it.

        Args:
            row: of the segment.
            start: in seconds from the start of the segment.
            duration: in seconds; ``None`` is to the end of the segment.
            sample_freq: to convert to; default: the reader's setting.

        Raises:
            AudioRangeError: the range is empty, or leaves the segment by more than :data:`RANGE_TOLERANCE`.
            AudioFileError: the file cannot be read.
        """
        segment_start, segment_duration = self.extent(row)
        recording = self.recording_row(row)
        name = self.id(row)
        if start == 0.0 and duration is None:
            duration = segment_duration
        else:
            if duration is None:
                duration = segment_duration - start
            start, duration = self._check_range(recording, name, start, duration, segment_duration)
        return self._reader(sample_freq).read(recording, segment_start + start, duration, name)

    def _check_range(
        self, recording: dict[str, Any], name: str, start: float, duration: float, whole: float
    ) -> tuple[float, float]:
        if not (math.isfinite(start) and math.isfinite(duration) and duration > 0):
            reason = "must be finite, with a positive duration"
        elif start < -RANGE_TOLERANCE or start + duration > whole + RANGE_TOLERANCE:
            reason = f"is not inside the segment, which lasts {whole:.6g} s (tolerance {RANGE_TOLERANCE} s)"
        else:
            # the range is moved rather than cut: all ranges of one duration have one number of samples
            duration = min(duration, whole)
            return max(0.0, min(start, whole - duration)), duration
        raise AudioRangeError(
            recording.get("storage_path"), f"the range start {start}, duration {duration} {reason}", name
        )

    def _reader(self, sample_freq: int | None) -> AudioReader:
        if sample_freq is None:
            return self.reader
        if sample_freq not in self._readers:
            config = {**self.reader.get_config(), "target_sample_freq": sample_freq}
            self._readers[sample_freq] = AudioReader.from_config(config)
        return self._readers[sample_freq]

    @classmethod
    def open(
        cls,
        reader: AudioReader,
        dataset_path: str | None = None,
        recordings_file: str | None = None,
        segments_file: str | None = None,
    ) -> SegmentAudio:
        """From the files of a data set; without segments, every recording is one segment.

        Raises:
            FileNotFoundError: a table does not exist.
            ManifestError: a table that is needed is not named.
        """
        from hyperion_lite.data.manifests import HyperDataset, RecordingSet, SegmentSet

        recordings = segments = None
        if dataset_path is not None:
            dataset = HyperDataset.load(dataset_path)
            recordings, segments = dataset.recordings, dataset.segments
        if recordings_file is not None:
            recordings = RecordingSet.from_file(recordings_file)
        if segments_file is not None:
            segments = SegmentSet.from_file(segments_file)
        if recordings is None:
            raise ManifestError(
                f"no table of recordings: give recordings_file{' or complete ' + dataset_path if dataset_path else ''}"
            )
        if segments is None:
            segments = SegmentSet.from_recordings(recordings)
        return cls(segments, recordings, reader)
