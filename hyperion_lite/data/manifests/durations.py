"""Fills in what a recording manifest does not say, from the headers of the files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from hyperion_lite.core.errors import AudioFileError
from hyperion_lite.data.audio_file import AudioInfo
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.manifests.recording_set import RecordingSet

logger = logging.getLogger(__name__)


class FileAnswer(NamedTuple):
    """What reading the header of one recording gave: information or an error."""

    row: int
    info: AudioInfo | None
    error: AudioFileError | None


def read_headers(
    recordings: RecordingSet, rows: np.ndarray, reader: AudioReader, num_jobs: int = 4, progress: bool = True
) -> Iterator[FileAnswer]:
    """Read the headers of the recordings ``rows``, in that order, with a progress bar.

    MP3 files, and streams that do not say their length, are scanned to their end.
    """

    def answer(row: int) -> FileAnswer:
        recording = recordings.row(row)
        try:
            return FileAnswer(row, reader.info(recordings.resolve(recording["storage_path"]), recording["id"]), None)
        except AudioFileError as error:
            return FileAnswer(row, None, error)

    with ThreadPoolExecutor(max(1, num_jobs)) as pool:
        yield from tqdm(
            pool.map(answer, (int(r) for r in rows)),
            total=len(rows),
            desc="reading audio headers",
            disable=not progress,
        )


def rows_to_read(recordings: RecordingSet) -> np.ndarray:
    """Rows (n,) int64 that lack a duration or a rate."""
    missing = np.zeros(len(recordings), bool)
    if recordings.has("duration"):
        missing |= np.isnan(recordings.column("duration"))
    if recordings.has("sample_freq"):
        missing |= recordings.table.column("sample_freq").is_null().to_numpy()
    if not (recordings.has("duration") and recordings.has("sample_freq")):
        missing[:] = True
    return np.flatnonzero(missing)


def with_durations(
    recordings: RecordingSet,
    reader: AudioReader | None = None,
    num_jobs: int = 4,
    progress: bool = True,
    skip_bad: bool = False,
) -> RecordingSet:
    """With missing ``duration`` and ``sample_freq`` read from the files; what the manifest says is kept.

    Args:
        recordings: the manifest.
        reader: settings for pipes and truncated files.
        num_jobs: threads.
        progress: show a progress bar.
        skip_bad: leave out recordings that cannot be read, with a warning each, instead of raising.

    Raises:
        AudioFileError: files that cannot be read or hold no audio; names all of them (the first twenty).
    """
    rows = rows_to_read(recordings)
    if len(rows) == 0:
        return recordings
    duration = recordings.column("duration").copy() if recordings.has("duration") else np.full(len(recordings), np.nan)
    known = recordings.table.column("sample_freq").fill_null(0).to_numpy() if recordings.has("sample_freq") else None
    rate = np.zeros(len(recordings), np.int64) if known is None else known.copy()
    errors: list[AudioFileError] = []
    bad = np.zeros(len(recordings), bool)
    for row, info, error in read_headers(recordings, rows, reader or AudioReader(), num_jobs, progress):
        if info is not None and info.num_samples > 0:
            duration[row] = info.duration if np.isnan(duration[row]) else duration[row]
            rate[row] = rate[row] or info.sample_freq
            continue
        path = recordings.row(row)["storage_path"]
        errors.append(error or AudioFileError(f"{recordings.ids[row]!r}: {path}: holds 0 samples"))
        bad[row] = True
    if errors and not skip_bad:
        listed = "\n  ".join(str(error) for error in errors[:20])
        more = f"\n  and {len(errors) - 20} more" if len(errors) > 20 else ""
        raise AudioFileError(f"{recordings.where}{len(errors)} recordings cannot be used:\n  {listed}{more}")
    for error in errors:
        logger.warning("left out: %s", error)
    filled = recordings.with_column("duration", pa.array(duration)).with_column("sample_freq", pa.array(rate))
    return filled.take(np.flatnonzero(~bad)) if bad.any() else filled
