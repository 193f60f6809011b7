"""What to extract: a folder, a list, a table, a ``wav.scp`` or a data set, as one list of utterances."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.kaldi_io import read_lines
from hyperion_lite.data.manifests import HyperDataset, RecordingSet
from hyperion_lite.data.manifests.from_folder import find_audio, ids_of_files
from hyperion_lite.data.manifests.from_kaldi import recordings_from_scp
from hyperion_lite.extraction.extractor import Utterance

_TABLES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")
_LISTS = (".txt", ".lst", ".list")


def list_utterances(source: str | os.PathLike[str], allow_pipes: bool = False) -> list[Utterance]:
    """The utterances that ``source`` names.

    Args:
        source: a folder of audio files (searched recursively; ids as :func:`~hyperion_lite.data.manifests.from_folder.ids_of_files`
            makes them) or of a data set; ``dataset.yaml``; a table of recordings (``id``, ``storage_path``); ``wav.scp``; a text list
            with a path or ``id path`` on each line.
        allow_pipes: accept shell commands in a ``wav.scp``.

    Raises:
        FileNotFoundError: nothing there, or a folder without audio files.
        ConfigError: a file of unknown kind.
        ManifestError: a malformed table or list.
    """
    utterances = _list(Path(source), allow_pipes)
    if not utterances:
        raise ConfigError(f"{source} lists no utterances")
    return utterances


def _list(path: Path, allow_pipes: bool) -> list[Utterance]:
    if not path.exists():
        raise FileNotFoundError(f"there is no input at {path}")
    if path.is_dir():
        return _from_dataset(path) if (path / "dataset.yaml").is_file() else _from_folder(path)
    if path.suffix in (".yaml", ".yml"):
        return _from_dataset(path)
    if path.suffix in _TABLES:
        return _from_recordings(RecordingSet.from_file(path))
    if path.suffix == ".scp":
        return _from_recordings(recordings_from_scp(path, allow_pipes))
    if path.suffix in _LISTS:
        return _from_list(path)
    raise ConfigError(
        f"cannot tell what kind of input {path} is; expected a folder, dataset.yaml, a table ({', '.join(_TABLES)}), wav.scp, or a list "
        f"({', '.join(_LISTS)})"
    )


def _from_folder(folder: Path) -> list[Utterance]:
    files = find_audio(folder)
    if not files:
        raise FileNotFoundError(f"there are no audio files in {folder}")
    ids = ids_of_files([file.relative_to(folder) for file in files])
    return [Utterance(id, str(file)) for id, file in zip(ids, files, strict=True)]


def _from_list(path: Path) -> list[Utterance]:
    utterances = []
    for _, fields in read_lines(path, 1, rest=True):
        line = fields[0]
        if line.startswith("#"):
            continue
        first, _, rest = line.partition(" ")
        # a line that is a path as a whole may hold spaces
        id, file = (line, line) if not rest or (path.parent / line).exists() else (first, rest.strip())
        utterances.append(Utterance(id, file if os.path.isabs(file) else str(path.parent / file)))
    return utterances


def _from_recordings(recordings: RecordingSet) -> list[Utterance]:
    return [Utterance(id, recordings.recording(id), 0.0, _known(recordings, id)) for id in recordings.ids]


def _known(table: Any, id: str) -> float | None:
    if not table.has("duration"):
        return None
    duration = table.get(id, "duration")
    return None if duration is None or math.isnan(duration) else float(duration)


def _from_dataset(path: Path) -> list[Utterance]:
    dataset = HyperDataset.load(path)
    segments, recordings = dataset.segments, dataset.recordings
    if recordings is None:
        raise ConfigError(f"{path} names no recordings, so there is no audio to read")
    starts, durations = segments.start, segments.duration
    utterances = []
    for row, id in enumerate(segments.ids):
        duration = None if math.isnan(durations[row]) else float(durations[row])
        utterances.append(Utterance(id, recordings.recording(segments.recording_id(id)), float(starts[row]), duration))
    return utterances
