"""The audio of segments: a table of segments, a table of recordings, and a reader, put together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.audio_errors import AudioRangeError, AudioRangeTooShortError
from hyperion_lite.data.audio_file import Allocate
from hyperion_lite.data.audio_reader import AudioData, AudioReader
from hyperion_lite.data.manifests import HyperDataset, RecordingSet, SegmentSet

RANGE_TOLERANCE = 0.001
"""Seconds by which a range may leave its segment: what times written with three digits can be wrong by."""


_PLACE_COLUMNS = ("id", "recording", "start", "duration", "channel")


class SegmentRangeError(AudioRangeError):
    """A range is empty or not inside its segment: a fault of who asked for it, not of a file."""


class Place(NamedTuple):
    """Where the audio of a segment is.

    Attributes:
        row: number of the segment in its table.
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
        self._columns = [name for name in _PLACE_COLUMNS if segments.has(name)]
        # tables in memory are joined once; large ones stay on the disk, and so does what would be as large
        self._recording_rows = (
            None
            if segments.is_mapped or recordings.is_mapped
            else recordings.find(segments.recording_ids()).astype(np.int32)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.segments, self.recordings, self.reader)

    def __len__(self) -> int:
        return len(self.segments)

    def row(self, segment_id: str) -> int:
        """Row of a segment.

        Raises:
            KeyError: unknown id.
        """
        return self.segments.index(segment_id)

    def place(self, row: int) -> Place:
        """Where the segment of a row is.

        Raises:
            ManifestError: the table of recordings has no such recording.
        """
        values = dict(zip(self._columns, self.segments.values(row, self._columns), strict=True))
        segment_id = values["id"]
        recording = self._recording(row, segment_id, values.get("recording"))
        if values.get("channel") is not None:
            recording["channel"] = values["channel"]
        start, duration = _number(values.get("start"), 0.0), _number(values.get("duration"), math.nan)
        return Place(row, segment_id, recording, start, duration)

    def _recording(self, row: int, segment_id: str, recording_id: str | None) -> dict[str, Any]:
        known = -1 if self._recording_rows is None else int(self._recording_rows[row])
        if known >= 0:
            return self.recordings.recording_at(known)
        if recording_id is None:
            recording_id = segment_id
        try:
            return self.recordings.recording(recording_id)
        except KeyError as error:
            raise ManifestError(
                f"{self.segments.where}segment {segment_id!r} is of recording {recording_id!r}, which "
                f"{self.recordings.file or 'the table of recordings'} does not have"
            ) from error

    def duration(self, place: Place) -> float:
        """Duration of a segment in seconds. Where neither table has it, it is asked of the file."""
        if place.duration == place.duration:
            return place.duration
        total = place.recording.get("duration")
        if total is None or total != total:
            total = self.reader.info(place.recording, place.id).duration
        return float(total) - place.start

    def read(
        self,
        place: Place,
        start: float = 0.0,
        duration: float | None = None,
        sample_freq: int | None = None,
        allocate: Allocate | None = None,
    ) -> AudioData:
        """Read a segment or a range of it.

        Args:
            place: of the segment.
            start: in seconds from the start of the segment.
            duration: in seconds; ``None`` is to the end of the segment.
            sample_freq: to convert to; default: the reader's setting.
            allocate: makes the array, see :meth:`AudioReader.read`.

        Raises:
            SegmentRangeError: the range is empty, or leaves the segment by more than :data:`RANGE_TOLERANCE`.
            AudioReadError: the file cannot be read.
        """
        reader = self._reader(sample_freq)
        if start == 0.0 and duration is None:
            return reader.read(place.recording, place.start, place.duration, place.id, allocate=allocate)
        whole = self.duration(place)
        begin, wanted = _within(place, start, whole - start if duration is None else duration, whole)
        try:
            return reader.read(place.recording, place.start + begin, wanted, place.id, allocate=allocate)
        except AudioRangeTooShortError as error:
            raise SegmentRangeError(error.file, error.reason, place.id) from error

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


def _number(value: Any, missing: float) -> float:
    return missing if value is None or value != value else float(value)


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
