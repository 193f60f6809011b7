"""A data set from the manifests of lhotse, read as the JSON they are."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from hyperion_lite.core.errors import HyperionLiteError, ManifestError
from hyperion_lite.data.audio_errors import PipeRefusedError
from hyperion_lite.data.manifests.hyper_dataset import HyperDataset
from hyperion_lite.data.manifests.recording_set import RecordingSet
from hyperion_lite.data.manifests.segment_set import SegmentSet

_ATTRIBUTES = ("speaker", "language", "gender", "text")


def dataset_from_lhotse(
    manifest: str | os.PathLike[str],
    supervisions: str | os.PathLike[str] | None = None,
    allow_pipes: bool = False,
) -> HyperDataset:
    """Read recordings (with or without supervisions), or cuts: ``.jsonl``, ``.json``, each also ``.gz``.

    A supervision becomes a segment, with its speaker, language, gender, text, and the plain values of ``custom``; without supervisions
    each recording does. A cut becomes a segment with the attributes of its supervision (those that agree, if it has several).
    Relative paths are relative to the working directory, as in lhotse, or else to the manifest.

    Args:
        manifest: recordings or cuts.
        supervisions: supervisions, for recordings.
        allow_pipes: accept recordings whose source is a shell command.

    Raises:
        FileNotFoundError: no such file.
        ManifestError: malformed, or a kind that has no place here (mixed cuts, recordings in memory or behind a URL); names file and line.
        PipeRefusedError: a source is a shell command.
    """
    reader = _Reader(Path(manifest), allow_pipes)
    entries = list(_read_entries(reader.file))
    if not entries:
        raise ManifestError(f"{manifest}: holds no recordings or cuts")
    if "sources" in entries[0][1]:
        for line, entry in entries:
            with _malformed(f"{manifest}:{line}"):
                reader.add_recording(line, entry)
        if supervisions is not None:
            for line, entry in _read_entries(Path(supervisions)):
                with _malformed(f"{supervisions}:{line}"):
                    reader.add_supervision(f"{supervisions}:{line}", entry)
        else:
            reader.whole_recordings()
    elif supervisions is not None:
        raise ManifestError(f"{manifest}: holds no recordings; supervisions belong to recordings, cuts have their own")
    else:
        for line, entry in entries:
            with _malformed(f"{manifest}:{line}"):
                reader.add_cut(line, entry)
    return reader.dataset()


@contextmanager
def _malformed(where: str) -> Iterator[None]:
    # JSON can hold anything anywhere: null for a list, a text for a number
    try:
        yield
    except HyperionLiteError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"{where}: not as lhotse writes it: {type(error).__name__}: {error}") from error


def _read_entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if not path.is_file():
        raise FileNotFoundError(f"no manifest {path}")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            if ".jsonl" in path.name:
                lines = [(n, json.loads(line)) for n, line in enumerate(file, 1) if line.strip()]
            else:
                loaded = json.load(file)
                lines = list(enumerate(loaded if isinstance(loaded, list) else [loaded], 1))
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ManifestError(f"{path}: is no JSON: {error}") from error
    for number, entry in lines:
        if not isinstance(entry, dict) or "id" not in entry:
            raise ManifestError(f"{path}:{number}: an object with an id was expected")
        yield number, entry


class _Reader:
    """Collects rows."""

    def __init__(self, file: Path, allow_pipes: bool) -> None:
        self.file, self.allow_pipes = file, allow_pipes
        self.recordings: dict[str, dict[str, Any]] = {}
        self.channels: dict[str, list[int]] = {}
        self.segments: list[dict[str, Any]] = []

    def add_recording(self, line: int, entry: dict[str, Any]) -> None:
        where = f"{self.file}:{line}"
        if len(entry.get("sources", ())) != 1:
            raise ManifestError(
                f"{where}: recording {entry['id']!r} has {len(entry.get('sources', ()))} sources; one file is needed"
            )
        source = entry["sources"][0]
        kind, path = source.get("type"), source.get("source")
        if kind == "command":
            if not self.allow_pipes:
                raise PipeRefusedError(
                    where,
                    f"the source is a shell command, {path!r}; allow pipes if you trust this manifest",
                    entry["id"],
                )
            path = f"{path} |"
        elif kind == "file":
            beside = self.file.parent / path
            path = os.path.abspath(beside if not os.path.exists(path) and beside.exists() else path)
        else:
            raise ManifestError(
                f"{where}: recording {entry['id']!r} has a source of type {kind!r}; only files can be read here"
            )
        row = {
            "id": entry["id"],
            "storage_path": path,
            "sample_freq": entry.get("sampling_rate"),
            "duration": entry.get("duration"),
        }
        self.channels[entry["id"]] = list(source.get("channels") or [0])
        known = self.recordings.setdefault(entry["id"], row)
        if known != row:
            raise ManifestError(f"{where}: recording {entry['id']!r} occurs twice, with different values")

    def add_supervision(self, where: str, entry: dict[str, Any]) -> None:
        recording = entry.get("recording_id")
        if recording not in self.recordings:
            raise ManifestError(
                f"{where}: supervision {entry['id']!r} is of recording {recording!r}, which {self.file} does not have"
            )
        self._add_segment(entry, recording, [entry])

    def whole_recordings(self) -> None:
        for id, row in self.recordings.items():
            self._add_segment({"id": id, "duration": row["duration"]}, id, [])

    def add_cut(self, line: int, entry: dict[str, Any]) -> None:
        where = f"{self.file}:{line}"
        kind = entry.get("type", "MonoCut")
        recording = entry.get("recording")
        if kind not in ("MonoCut", "MultiCut") or not recording:
            raise ManifestError(
                f"{where}: cut {entry['id']!r} is a {kind} without one recording; only plain cuts can be read here"
            )
        self.add_recording(line, recording)
        self._add_segment(entry, recording["id"], entry.get("supervisions") or [])

    def _add_segment(self, entry: dict[str, Any], recording: str, supervisions: list[dict[str, Any]]) -> None:
        start, duration = float(entry.get("start", 0.0)), entry.get("duration")
        row: dict[str, Any] = {"id": entry["id"], "recording": recording, "start": start, "duration": duration}
        channels, channel = self.channels[recording], entry.get("channel")
        if len(channels) > 1 and isinstance(channel, int) and channel in channels:
            row["channel"] = channels.index(channel)
        attributes = [_attributes(s) for s in supervisions]
        for name in dict.fromkeys(name for a in attributes for name in a):
            values = [a.get(name) for a in attributes]
            if all(v == values[0] for v in values) and name not in row:
                row[name] = values[0]
        self.segments.append(row)

    def dataset(self) -> HyperDataset:
        recordings = RecordingSet.from_rows(self.recordings.values(), self.file)
        names = list(dict.fromkeys(name for row in self.segments for name in row))
        columns = {name: _column([row.get(name) for row in self.segments]) for name in names}
        return HyperDataset.from_segments(SegmentSet(pa.table(columns), self.file), recordings)


def _attributes(supervision: dict[str, Any]) -> dict[str, Any]:
    plain = {k: v for k, v in (supervision.get("custom") or {}).items() if isinstance(v, (str, int, float, bool))}
    return {**plain, **{k: supervision[k] for k in _ATTRIBUTES if supervision.get(k) is not None}}


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # numbers in some rows, text in others
        return pa.array([None if v is None else str(v) for v in values], pa.string())
