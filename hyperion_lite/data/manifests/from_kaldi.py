"""A data set from a Kaldi data folder."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.audio_errors import PipeRefusedError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.kaldi_io import is_pipe, read_lines
from hyperion_lite.data.manifests.durations import with_durations
from hyperion_lite.data.manifests.hyper_dataset import HyperDataset
from hyperion_lite.data.manifests.recording_set import RecordingSet
from hyperion_lite.data.manifests.segment_set import SegmentSet
from hyperion_lite.data.manifests.vad_set import VADSet

_ATTRIBUTES = {"utt2spk": "speaker", "utt2lang": "language", "utt2gender": "gender", "utt2sess": "session"}
_SPEAKER_ATTRIBUTES = {"spk2gender": "gender", "spk2lang": "language"}


def dataset_from_kaldi(
    folder: str | os.PathLike[str],
    allow_pipes: bool = False,
    read_durations: bool = True,
    num_jobs: int = 4,
    progress: bool = True,
    skip_bad: bool = False,
) -> HyperDataset:
    """Read ``wav.scp`` and, where present, ``segments``, ``utt2spk``, ``utt2lang``, ``spk2gender``, ``reco2dur``, ``vad.scp``.

    A segment end of -1 is the end of the recording. Relative paths are relative to the working directory, as in Kaldi, or else to the
    folder.

    Args:
        folder: the data folder.
        allow_pipes: accept entries of ``wav.scp`` that are shell commands, and run them to read lengths.
        read_durations: read lengths that ``reco2dur`` does not give from the files.
        num_jobs: threads for that.
        progress: show a progress bar.
        skip_bad: leave out recordings that cannot be read, and their segments, with a warning each.

    Raises:
        FileNotFoundError: no folder or no ``wav.scp``.
        ManifestError: a malformed line; names file and line.
        PipeRefusedError: a command in ``wav.scp``.
        AudioFileError: recordings cannot be read; names them.
    """
    base = Path(folder)
    if not (base / "wav.scp").is_file():
        raise FileNotFoundError(f"no {base / 'wav.scp'}: not a Kaldi data folder")
    recordings = recordings_from_scp(base / "wav.scp", allow_pipes)
    if read_durations:
        reader = AudioReader(allow_pipes=allow_pipes)
        recordings = with_durations(recordings, reader, num_jobs, progress, skip_bad)
    segments = _segments(base, recordings, skip_bad)
    if len(segments) == 0:
        raise ManifestError(f"{base}: holds no usable segment (of {len(recordings)} recordings in wav.scp)")
    vad = _vad(base) if (base / "vad.scp").is_file() else None
    dataset = HyperDataset.from_segments(segments, recordings)
    return HyperDataset(segments, recordings, dataset.classes, vad=vad)


def _pairs(path: Path, rest: bool = True) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for number, (key, value) in read_lines(path, 2, rest):
        if key in pairs:
            raise ManifestError(f"{path}:{number}: {key!r} occurs twice")
        pairs[key] = value
    return pairs


def _absolute(base: Path, storage_path: str) -> str:
    plain, _, offset = storage_path.rpartition(":")
    file = plain if plain and offset.isdigit() else storage_path
    if not os.path.exists(file) and (base / file).exists():
        return str((base / storage_path).absolute())
    return os.path.abspath(storage_path)


def recordings_from_scp(scp: str | os.PathLike[str], allow_pipes: bool = False) -> RecordingSet:
    """The recordings of a ``wav.scp``, with the lengths of a ``reco2dur`` beside it.

    Raises:
        ManifestError: a malformed line; names file and line.
        PipeRefusedError: an entry is a shell command and ``allow_pipes`` is false.
    """
    scp = Path(scp)
    base = scp.parent
    entries = _pairs(scp)
    pipes = [id for id, path in entries.items() if is_pipe(path)]
    if pipes and not allow_pipes:
        raise PipeRefusedError(
            scp,
            f"{len(pipes)} entries are shell commands, the first {entries[pipes[0]]!r}; a manifest must not run a shell. Write their "
            "output to files, or allow pipes if you trust this folder",
            pipes[0],
        )
    paths = [path if is_pipe(path) else _absolute(base, path) for path in entries.values()]
    columns = {"id": pa.array(list(entries), pa.string()), "storage_path": pa.array(paths, pa.string())}
    if (base / "reco2dur").is_file():
        known = {id: _number(base / "reco2dur", id, text) for id, text in _pairs(base / "reco2dur").items()}
        columns["duration"] = pa.array([known.get(id, float("nan")) for id in entries])
    return RecordingSet(pa.table(columns), scp)


def _number(path: Path, id: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ManifestError(f"{path}: {id!r}: {text!r} is not a number") from None


def _segments(base: Path, recordings: RecordingSet, skip_bad: bool) -> SegmentSet:
    length = recordings.column("duration") if recordings.has("duration") else np.full(len(recordings), np.nan)
    if (base / "segments").is_file():
        ids, recording_ids, start, end = _read_segments(base / "segments")
    else:
        ids, recording_ids = list(recordings.ids), list(recordings.ids)
        start, end = np.zeros(len(ids)), np.full(len(ids), -1.0)
    rows = recordings.find(recording_ids)
    unknown = np.flatnonzero(rows < 0)
    if len(unknown) and not skip_bad:
        first = int(unknown[0])
        raise ManifestError(
            f"{base / 'segments'}: segment {ids[first]!r} is of recording {recording_ids[first]!r}, which wav.scp does not have "
            f"({len(unknown)} such segments)"
        )
    whole = np.where(rows >= 0, length[rows], np.nan) if len(length) else np.full(len(rows), np.nan)
    columns: dict[str, pa.Array] = {
        "id": pa.array(ids, pa.string()),
        "recording": pa.array(recording_ids, pa.string()),
        "start": pa.array(start),
        "duration": pa.array(np.where(end == -1, whole, end) - start),
    }
    columns.update(_attributes(base, ids))
    segments = SegmentSet(pa.table(columns), base / ("segments" if (base / "segments").is_file() else "wav.scp"))
    return segments.take(np.flatnonzero(rows >= 0)) if len(unknown) else segments


def _read_segments(path: Path) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    rows = []
    for number, fields in read_lines(path, 4):
        try:
            rows.append((fields[0], fields[1], float(fields[2]), float(fields[3])))
        except ValueError:
            raise ManifestError(f"{path}:{number}: start and end must be numbers, found {fields[2:]}") from None
        start, end = rows[-1][2:]
        if not (0 <= start < math.inf and (start < end < math.inf or end == -1)):
            raise ManifestError(
                f"{path}:{number}: segment {fields[0]!r} from {fields[2]} to {fields[3]}: the end must come after the start, which must "
                "be 0 or more; -1 is the end of the recording"
            )
    return [r[0] for r in rows], [r[1] for r in rows], np.array([r[2] for r in rows]), np.array([r[3] for r in rows])


def _attributes(base: Path, ids: list[str]) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for file, name in _ATTRIBUTES.items():
        if (base / file).is_file():
            values = _pairs(base / file)
            columns[name] = pa.array([values.get(id) for id in ids], pa.string())
    if "speaker" in columns:
        speakers = columns["speaker"].to_pylist()
        for file, name in _SPEAKER_ATTRIBUTES.items():
            if (base / file).is_file() and name not in columns:
                values = _pairs(base / file)
                columns[name] = pa.array([values.get(s) for s in speakers], pa.string())
    return columns


def _vad(base: Path) -> VADSet:
    entries = _pairs(base / "vad.scp")
    for id, path in entries.items():
        if is_pipe(path):
            raise PipeRefusedError(base / "vad.scp", f"{path!r} is a shell command; name archives", id)
    paths = [_absolute(base, path) for path in entries.values()]
    table = pa.table({"id": pa.array(list(entries), pa.string()), "storage_path": pa.array(paths, pa.string())})
    return VADSet(table, base / "vad.scp")
