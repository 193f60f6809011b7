"""The audio of segments: a table of segments, a table of recordings, and a reader, put together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.audio_errors import AudioRangeError
from hyperion_lite.data.audio_reader import AudioData, AudioReader
from hyperion_lite.data.manifests import HyperDataset, InfoTable, RecordingSet, SegmentSet

RANGE_TOLERANCE = 0.001
"""Seconds by which a range may leave its segment: what times written with three digits can be wrong by."""


class SegmentRangeError(AudioRangeError):
    """A range is empty or not inside its segment: a fault of who asked for it, not of a file."""


@dataclass(frozen=True)
class Place:
    """Where the audio of a segment is.

    Attributes:
        row: of the segment in its table.
        id: of the segment.
        recording: row of the recording: ``storage_path``, and what else the reader uses.
        start: in the recording, in seconds.
        duration: in seconds; NaN: to the end of the recording.
    """

    row: int
    id: str
    recording: Mapping[str, Any]
    start: float
    duration: float


class SegmentAudio:
    """Finds and reads segments, and ranges of segments, by row.

    Args:
        segments: ids; optionally ``recording`` (default: the recording with the segment's id), ``start`` (default 0), ``duration``
            (default: to the end of the recording) and ``channel``.
        recordings: ids and storage paths.
        reader: how files are read.
    """

    def __init__(self, segments: SegmentSet, recordings: RecordingSet, reader: AudioReader) -> None:
        self.segments = segments
        self.recordings = recordings
        self.reader = reader
        self._readers = {reader.target_sample_freq: reader}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.segments, self.recordings, self.reader)

    def __len__(self) -> int:
        return len(self.segments)

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """Rows of segments (int64).

        Raises:
            KeyError: an id is not in the table.
        """
        return self.segments.indices(ids)

    def places(self, rows: Sequence[int]) -> list[Place]:
        """Where the segments of ``rows`` are; one pass over the tables for all of them.

        Raises:
            ManifestError: the table of recordings has no such recording.
        """
        ids = self.segments.ids.take(rows)
        recording_ids = cells(self.segments, "recording", rows) or [None] * len(ids)
        recording_ids = [own if given is None else given for own, given in zip(ids, recording_ids, strict=True)]
        recordings = self._recordings(recording_ids, ids)
        starts, durations = self._times("start", rows, 0.0), self._times("duration", rows, math.nan)
        channels = cells(self.segments, "channel", rows)
        if channels:
            for recording, channel in zip(recordings, channels, strict=True):
                recording["channel"] = channel
        return [Place(*values) for values in zip(rows, ids, recordings, starts, durations, strict=True)]

    def _recordings(self, recording_ids: list[str], segment_ids: list[str]) -> list[dict[str, Any]]:
        rows = self.recordings.find(recording_ids)
        for row, recording_id, segment_id in zip(rows, recording_ids, segment_ids, strict=True):
            if row < 0:
                raise ManifestError(
                    f"{self.segments.where}segment {segment_id!r} is of recording {recording_id!r}, which "
                    f"{self.recordings.file or 'the table of recordings'} does not have"
                )
        paths = cells(self.recordings, "storage_path", rows) or []
        found = [
            {"id": recording_id, "storage_path": self.recordings.resolve(path)}
            for recording_id, path in zip(recording_ids, paths, strict=True)
        ]
        for name in ("sample_freq", "duration", "channel"):
            values = cells(self.recordings, name, rows)
            if values:
                for recording, value in zip(found, values, strict=True):
                    recording[name] = value
        return found

    def _times(self, column: str, rows: Sequence[int], missing: float) -> list[float]:
        if not self.segments.has(column):
            return [missing] * len(rows)
        values = self.segments.column(column)
        return [missing if value != value else value for value in (float(values[row]) for row in rows)]

    def duration(self, place: Place) -> float:
        """Duration of a segment in seconds. Where neither table has it, it is asked of the file."""
        if place.duration == place.duration:
            return place.duration
        total = place.recording.get("duration")
        if total is None or total != total:
            total = self.reader.info(place.recording, place.id).duration
        return float(total) - place.start

    def read(
        self, place: Place, start: float = 0.0, duration: float | None = None, sample_freq: int | None = None
    ) -> AudioData:
        """Read a segment or a range of it.

        Args:
            place: of the segment.
            start: in seconds from the start of the segment.
            duration: in seconds; ``None`` is to the end of the segment.
            sample_freq: to convert to; default: the reader's setting.

        Raises:
            SegmentRangeError: the range is empty, or leaves the segment by more than :data:`RANGE_TOLERANCE`.
            AudioReadError: the file cannot be read.
        """
        if start == 0.0 and duration is None:
            wanted: float | None = place.duration
        else:
            whole = self.duration(place)
            start, wanted = _within(place, start, whole - start if duration is None else duration, whole)
        return self._reader(sample_freq).read(place.recording, place.start + start, wanted, place.id)

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
        recordings = segments = None
        if dataset_path is not None:
            dataset = HyperDataset.load(dataset_path)
            recordings, segments = dataset.recordings, dataset.segments
        if recordings_file is not None:
            recordings = RecordingSet.from_file(recordings_file)
        if segments_file is not None:
            segments = SegmentSet.from_file(segments_file)
        return cls.of_tables(segments, recordings, reader, dataset_path)

    @classmethod
    def of_tables(
        cls,
        segments: SegmentSet | None,
        recordings: RecordingSet | None,
        reader: AudioReader,
        origin: str | None = None,
    ) -> SegmentAudio:
        """As :meth:`open`, for tables in memory; ``origin`` is for messages."""
        if recordings is None:
            raise ManifestError(
                f"no table of recordings: give recordings_file{f', or name one in {origin}' if origin else ''}"
            )
        return cls(SegmentSet.from_recordings(recordings) if segments is None else segments, recordings, reader)


def cells(table: InfoTable, column: str, rows: Sequence[int] | np.ndarray) -> list[Any] | None:
    """The values of a column in ``rows`` as Python objects; ``None`` where there is no such column."""
    if not table.has(column):
        return None
    values = table.table.column(column)
    return [values[int(row)].as_py() for row in rows]


def _within(place: Place, start: float, duration: float, whole: float) -> tuple[float, float]:
    if not (math.isfinite(start) and math.isfinite(duration) and duration > 0):
        reason = "must be finite, with a positive duration"
    elif start < -RANGE_TOLERANCE or start + duration > whole + RANGE_TOLERANCE:
        reason = f"is not inside the segment, which lasts {whole:.6g} s (tolerance {RANGE_TOLERANCE} s)"
    else:
        # the range is moved rather than cut: all ranges of one duration have one number of samples
        duration = min(duration, whole)
        return max(0.0, min(start, whole - duration)), duration
    raise SegmentRangeError(
        place.recording["storage_path"], f"the range start {start}, duration {duration} {reason}", place.id
    )
