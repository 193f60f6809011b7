"""Where there is speech in each segment."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.kaldi_io import archive_position, is_pipe, read_archive_item
from hyperion_lite.data.manifests.columns import ColumnRules
from hyperion_lite.data.manifests.path_table import PathTable

DEFAULT_FRAME_SHIFT = 0.01


class VADSet(PathTable):
    """Speech of segments, in one of two layouts.

    Intervals: columns ``id`` (of the segment; any number of rows each), ``start`` and ``duration`` in seconds from the start of the
    segment. Frames: ``id``, ``storage_path`` of a vector with a value > 0 for each frame of speech (``file.ark:offset`` or ``.npy``),
    and optionally ``frame_shift`` in seconds (default 0.01, Kaldi's).
    """

    rules: ClassVar[ColumnRules] = ColumnRules(
        "VAD manifest",
        text=frozenset({"id", "storage_path"}),
        floats=frozenset({"start", "duration", "frame_shift"}),
        aliases={"segmentid": "id", "segment_id": "id"},
        unique_id=False,
    )

    def _check(self) -> None:
        if self.has_frames:
            duplicates = self.id_index.duplicates(self._columns["id"])
            if duplicates:
                raise ManifestError(
                    f"{self.where}id {self.ids[duplicates[0][0]]!r} occurs twice; it can have one file of frames"
                )
        elif not (self.has("start") and self.has("duration")):
            raise ManifestError(
                f"{self.where}a VAD manifest needs start and duration, or storage_path; it has {self.column_names}"
            )
        else:
            bad = self.bad_intervals()
            if len(bad):
                row = int(bad[0])
                start, duration = self.column("start")[row], self.column("duration")[row]
                raise ManifestError(
                    f"{self.where}row {row + 1}: {self.ids[row]!r}: an interval needs a start and a duration of at least 0, found "
                    f"{start} and {duration}"
                )

    def bad_intervals(self) -> np.ndarray:
        """Rows (n,) int64 whose interval is no stretch of time: missing, infinite or negative numbers."""
        start, duration = self.column("start"), self.column("duration")
        return np.flatnonzero(~(np.isfinite(start) & np.isfinite(duration) & (duration >= 0)))

    @property
    def has_frames(self) -> bool:
        """Whether the layout is that of frames."""
        return self.has("storage_path")

    def intervals(self, id: str) -> np.ndarray:
        """Intervals of speech (n, 2) float64: start and end in seconds from the start of the segment, sorted, joined where they meet.

        Raises:
            KeyError: unknown id.
        """
        rows = self.id_index.find_all(str(id), self._columns["id"])
        if len(rows) == 0:
            raise KeyError(self._unknown([str(id)]))
        if self.has_frames:
            row = self.row(int(rows[0]))
            shift = row.get("frame_shift") or DEFAULT_FRAME_SHIFT
            return _runs(self._frames(str(id), row["storage_path"])) * (
                DEFAULT_FRAME_SHIFT if shift != shift else shift
            )
        start = self.column("start")[rows]
        return _join(np.stack([start, start + self.column("duration")[rows]], axis=1))

    def mask(self, id: str, num_samples: int, sample_freq: int) -> np.ndarray:
        """Speech by sample (num_samples,) bool, True where there is speech; what models take as ``vad_samples``.

        Raises:
            KeyError: unknown id.
        """
        mask = np.zeros(num_samples, bool)
        for first, last in np.rint(self.intervals(id) * sample_freq).astype(np.int64):
            mask[max(0, first) : last] = True
        return mask

    def _frames(self, id: str, storage_path: str) -> np.ndarray:
        if is_pipe(storage_path):
            raise ManifestError(
                f"{self.where}{id!r}: {storage_path!r} is a shell command; a VAD manifest must name files"
            )
        path = self.resolve(storage_path)
        position = archive_position(path)
        if position is not None:
            return np.ravel(read_archive_item(position, id)[1]) > 0
        try:
            return np.ravel(np.load(path, allow_pickle=False)) > 0
        except ValueError as error:
            raise ManifestError(f"{self.where}{id!r}: {path} is no array of numbers: {error}") from error

    @classmethod
    def from_intervals(cls, intervals: dict[str, np.ndarray]) -> VADSet:
        """From id -> (n, 2) start and end in seconds."""
        ids = [id for id, spans in intervals.items() for _ in range(len(spans))]
        spans = np.concatenate([np.reshape(s, (-1, 2)) for s in intervals.values()] or [np.zeros((0, 2))])
        return cls(
            pa.table({"id": pa.array(ids, pa.string()), "start": spans[:, 0], "duration": spans[:, 1] - spans[:, 0]})
        )


def _runs(speech: np.ndarray) -> np.ndarray:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], speech, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.float64)


def _join(spans: np.ndarray) -> np.ndarray:
    joined: list[list[float]] = []
    for start, end in spans[np.argsort(spans[:, 0], kind="stable")].tolist():
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return np.array(joined, np.float64).reshape(-1, 2)
