"""A data set from the audio files below a folder, speakers from folder names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.manifests.durations import with_durations
from hyperion_lite.data.manifests.hyper_dataset import HyperDataset
from hyperion_lite.data.manifests.recording_set import RecordingSet

AUDIO_SUFFIXES = (
    ".wav",
    ".flac",
    ".ogg",
    ".oga",
    ".opus",
    ".mp3",
    ".aiff",
    ".aif",
    ".au",
    ".snd",
    ".sph",
    ".nist",
    ".w64",
    ".rf64",
    ".caf",
)


def find_audio(root: Path, suffixes: Iterable[str] = AUDIO_SUFFIXES) -> list[Path]:
    """Audio files below ``root`` by suffix, sorted; hidden files and folders are left out, links to folders are followed once."""
    wanted = tuple(s.lower() for s in suffixes)
    found: list[Path] = []
    seen: set[str] = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        found.extend(
            Path(folder) / name for name in files if name.lower().endswith(wanted) and not name.startswith(".")
        )
    return sorted(found)


def dataset_from_folder(
    root: str | os.PathLike[str],
    speaker_level: int | None = 0,
    suffixes: Iterable[str] = AUDIO_SUFFIXES,
    reader: AudioReader | None = None,
    num_jobs: int = 4,
    progress: bool = True,
    skip_bad: bool = False,
) -> HyperDataset:
    """One recording and one segment for each audio file.

    The id of ``root/spk1/session/a.wav`` is ``spk1-session-a``; where two files would have the same id, theirs keep the suffix.

    Args:
        root: the folder.
        speaker_level: which folder below ``root`` names the speaker: 0 the first, -1 the one that holds the file; ``None``: no speakers.
        suffixes: of audio files.
        reader: settings for reading the lengths.
        num_jobs: threads for reading the lengths.
        progress: show a progress bar.
        skip_bad: leave out files that cannot be read, with a warning each.

    Raises:
        FileNotFoundError: no such folder, or no audio file in it.
        ManifestError: a file lies in no folder that could name its speaker, or ids clash.
        AudioFileError: files cannot be read; names them.
    """
    base = Path(root)
    if not base.is_dir():
        raise FileNotFoundError(f"no folder {base}")
    files = find_audio(base, suffixes)
    if not files:
        raise FileNotFoundError(f"no audio files ({', '.join(suffixes)}) below {base}")
    for file in files:
        try:
            os.fspath(file).encode()
        except UnicodeEncodeError:
            # a table could not hold it
            raise ManifestError(f"{os.fsencode(file)!r}: the name of the file is not UTF-8; rename it") from None
    columns = {
        "id": pa.array(ids_of_files([file.relative_to(base) for file in files]), pa.string()),
        "storage_path": pa.array([os.path.abspath(file) for file in files], pa.string()),
    }
    if speaker_level is not None:
        columns["speaker"] = pa.array([_speaker(f.relative_to(base), speaker_level, base) for f in files], pa.string())
    recordings = with_durations(RecordingSet(pa.table(columns)), reader, num_jobs, progress, skip_bad)
    return HyperDataset.from_recordings(recordings)


def ids_of_files(paths: list[Path]) -> list[str]:
    """Ids of files by their paths relative to a common folder: ``spk1/session/a.wav`` is ``spk1-session-a``.

    Raises:
        ManifestError: two files would have the same id.
    """
    # white space would break lists whose fields are separated by it
    plain = ["-".join("_".join(part.split()) for part in path.with_suffix("").parts) for path in paths]
    counts = Counter(plain)
    ids = [id if counts[id] == 1 else id + path.suffix for id, path in zip(plain, paths, strict=True)]
    first: dict[str, Path] = {}
    for id, path in zip(ids, paths, strict=True):
        if id in first:
            raise ManifestError(f"{first[id]} and {path} would both have the id {id!r}; rename one of them")
        first[id] = path
    return ids


def _speaker(path: Path, level: int, root: Path) -> str:
    folders = path.parts[:-1]
    try:
        return folders[level]
    except IndexError:
        raise ManifestError(
            f"{root / path}: no folder at level {level} below {root} to name its speaker; move the file into a folder, or choose "
            "another speaker level, or none"
        ) from None
