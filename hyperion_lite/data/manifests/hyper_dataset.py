"""A data set: the manifests that belong together, named by one ``dataset.yaml``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import yaml

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.config import nearest
from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests.class_info import ClassInfo
from hyperion_lite.data.manifests.enrollment_map import EnrollmentMap
from hyperion_lite.data.manifests.recording_set import RecordingSet
from hyperion_lite.data.manifests.segment_set import SegmentSet
from hyperion_lite.data.manifests.trials import TrialKey, TrialNdx
from hyperion_lite.data.manifests.vad_set import VADSet
from hyperion_lite.data.manifests.validation_split import split_validation

DATASET_FILE = "dataset.yaml"
_SINGLE = ("recordings", "segments", "vad")
_NAMED = ("classes", "enrollments", "trials")
# written by the original toolkit; without meaning here
_IGNORED = ("features", "sparse_trials", "table_sep")


class HyperDataset:
    """The manifests of a data set. Those given as paths are read when first used.

    Args:
        segments: segments, or their file.
        recordings: recordings, or their file.
        classes: attribute name -> class table or its file.
        enrollments: name -> enrolment map or its file.
        trials: name -> trials or their file; read as a key where there are labels.
        vad: speech of the segments, or its file.
        description: free text.
        file: the YAML it comes from.
    """

    _loaders: ClassVar[dict[str, Any]] = {
        "recordings": RecordingSet.from_file,
        "segments": SegmentSet.from_file,
        "vad": VADSet.from_file,
        "classes": ClassInfo.from_file,
        "enrollments": EnrollmentMap.from_file,
    }

    def __init__(
        self,
        segments: SegmentSet | str | os.PathLike[str],
        recordings: RecordingSet | str | os.PathLike[str] | None = None,
        classes: Mapping[str, ClassInfo | str | os.PathLike[str]] | None = None,
        enrollments: Mapping[str, EnrollmentMap | str | os.PathLike[str]] | None = None,
        trials: Mapping[str, TrialNdx | str | os.PathLike[str]] | None = None,
        vad: VADSet | str | os.PathLike[str] | None = None,
        description: str = "",
        file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._parts: dict[str, Any] = {"segments": segments, "recordings": recordings, "vad": vad}
        self._groups: dict[str, dict[str, Any]] = {
            "classes": dict(classes or {}),
            "enrollments": dict(enrollments or {}),
            "trials": dict(trials or {}),
        }
        self.description = description
        self.file = None if file is None else os.fspath(file)

    # --- reading

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HyperDataset:
        """Read ``dataset.yaml``, or the one in a folder. Relative paths in it are relative to it.

        Raises:
            FileNotFoundError: no such file, or no ``dataset.yaml`` in the folder.
            ManifestError: malformed, or an unknown key.
        """
        target = Path(path)
        file = target / DATASET_FILE if target.is_dir() else target
        if not file.is_file():
            raise FileNotFoundError(f"no data set {file}" + (f" in {target}" if target.is_dir() else ""))
        entries = _read_yaml(file)
        singles: dict[str, Any] = {key: _absolute(file, key, entries.get(key)) for key in _SINGLE}
        named: dict[str, Any] = {key: _named_paths(file, key, entries.get(key)) for key in _NAMED}
        return cls(**singles, **named, description=str(entries.get("description") or ""), file=file)

    from_file = load

    def sources(self) -> dict[str, Any]:
        """Manifest name (``segments``, ``classes.speaker``, ...) -> its file where it was not read yet, else the manifest."""
        found = {key: part for key, part in self._parts.items() if part is not None}
        for key, group in self._groups.items():
            found.update({f"{key}.{name}": part for name, part in group.items()})
        return found

    def _part(self, key: str) -> Any:
        part = self._parts[key]
        if isinstance(part, (str, os.PathLike)):
            part = self._parts[key] = self._loaders[key](part)
        return part

    def _group(self, key: str) -> dict[str, Any]:
        group = self._groups[key]
        for name, part in group.items():
            if isinstance(part, (str, os.PathLike)):
                group[name] = load_trials(part) if key == "trials" else self._loaders[key](part)
        return dict(group)

    # --- manifests

    @property
    def segments(self) -> SegmentSet:
        """The segments."""
        return self._part("segments")

    @property
    def recordings(self) -> RecordingSet | None:
        """The recordings, or ``None`` (data sets of features or embeddings)."""
        return self._part("recordings")

    @property
    def vad(self) -> VADSet | None:
        """Speech of the segments, or ``None``."""
        return self._part("vad")

    @property
    def classes(self) -> dict[str, ClassInfo]:
        """Attribute name -> class table."""
        return self._group("classes")

    @property
    def enrollments(self) -> dict[str, EnrollmentMap]:
        """Name -> enrolment map."""
        return self._group("enrollments")

    @property
    def trials(self) -> dict[str, TrialNdx]:
        """Name -> trials, a :class:`TrialKey` where there are labels."""
        return self._group("trials")

    def __len__(self) -> int:
        return len(self.segments)

    def __repr__(self) -> str:
        named = ", ".join(f"{key}: {', '.join(group)}" for key, group in self._groups.items() if group)
        return f"HyperDataset({len(self)} segments{'; ' + named if named else ''})"

    # --- making

    @classmethod
    def from_recordings(cls, recordings: RecordingSet, class_names: Iterable[str] = ("speaker",)) -> HyperDataset:
        """One segment a recording; attributes of the recordings become those of the segments."""
        segments = SegmentSet.from_recordings(recordings)
        attributes = {"storage_path", "id", "sample_freq", "duration", "num_samples", "channel"}
        kept = recordings.without_columns([n for n in recordings.column_names if n not in attributes])
        return cls.from_segments(segments, kept, class_names)

    @classmethod
    def from_segments(
        cls, segments: SegmentSet, recordings: RecordingSet | None = None, class_names: Iterable[str] = ("speaker",)
    ) -> HyperDataset:
        """With a class table for each attribute of ``class_names`` that the segments have."""
        tables = {name: ClassInfo.from_segments(segments, name) for name in class_names if segments.has(name)}
        return cls(segments, recordings, tables)

    @classmethod
    def from_folder(cls, root: str | os.PathLike[str], **options: Any) -> HyperDataset:
        """The audio files below a folder; see :func:`~hyperion_lite.data.manifests.from_folder.dataset_from_folder`."""
        from hyperion_lite.data.manifests.from_folder import dataset_from_folder

        return dataset_from_folder(root, **options)

    @classmethod
    def from_kaldi(cls, folder: str | os.PathLike[str], **options: Any) -> HyperDataset:
        """A Kaldi data folder; see :func:`~hyperion_lite.data.manifests.from_kaldi.dataset_from_kaldi`."""
        from hyperion_lite.data.manifests.from_kaldi import dataset_from_kaldi

        return dataset_from_kaldi(folder, **options)

    @classmethod
    def from_lhotse(
        cls, manifest: str | os.PathLike[str], supervisions: str | os.PathLike[str] | None = None, **options: Any
    ) -> HyperDataset:
        """Lhotse manifests; see :func:`~hyperion_lite.data.manifests.from_lhotse.dataset_from_lhotse`."""
        from hyperion_lite.data.manifests.from_lhotse import dataset_from_lhotse

        return dataset_from_lhotse(manifest, supervisions, **options)

    # --- new data sets from this one

    def with_segments(self, segments: SegmentSet) -> HyperDataset:
        """With other segments, and what the other manifests say of these. Class tables stay, so that indices do."""
        recordings, vad, enrollments, trials = self.recordings, self.vad, self.enrollments, self.trials
        if recordings is not None:
            recordings = RecordingSet.from_segments(segments, recordings)
        if vad is not None:
            vad = vad.take(np.flatnonzero(segments.find(vad.table.column("id")) >= 0))
        if enrollments or trials:
            ids = set(segments.ids)
            enrollments = {name: table.filter(segments=ids) for name, table in enrollments.items()}
            models = {model for table in enrollments.values() for model in table.model_ids} if enrollments else ids
            trials = {name: table.filter(models, ids) for name, table in trials.items()}
        return HyperDataset(
            segments, recordings, dict(self._groups["classes"]), enrollments, trials, vad, self.description
        )

    def with_durations(self, **options: Any) -> HyperDataset:
        """With missing durations read from the files; segments without one reach to the end of their recording.

        Args:
            options: of :func:`~hyperion_lite.data.manifests.durations.with_durations` (``progress``, ``num_jobs``, ``reader``).

        Raises:
            AudioFileError: files cannot be read; names them.
            KeyError: a segment of an unknown recording.
        """
        from hyperion_lite.data.manifests.durations import with_durations

        recordings, segments = self.recordings, self.segments
        if recordings is None:
            return self
        recordings = with_durations(recordings, **options)
        if np.isnan(segments.duration).any():
            whole = recordings.column("duration")[recordings.indices(segments.recording_ids())]
            filled = np.where(np.isnan(segments.duration), whole - segments.start, segments.duration)
            segments = segments.with_column("duration", filled)
        groups: dict[str, Any] = {key: dict(group) for key, group in self._groups.items()}
        return HyperDataset(segments, recordings, **groups, vad=self._parts["vad"], description=self.description)

    def filter(self, ids: Iterable[str] | None = None, **criteria: Any) -> HyperDataset:
        """With the segments that :meth:`SegmentSet.filter` keeps."""
        return self.with_segments(self.segments.filter(ids, **criteria))

    def split(self, part: int, num_parts: int, group_by: str | None = None) -> HyperDataset:
        """Part ``part`` (from 0) of ``num_parts``; see :meth:`SegmentSet.split`."""
        return self.with_segments(self.segments.split(part, num_parts, group_by))

    def split_validation(
        self, fraction: float = 0.05, by: str = "speaker", seed: int = 0
    ) -> tuple[HyperDataset, HyperDataset]:
        """Training and validation data; see :func:`~hyperion_lite.data.manifests.validation_split.split_validation`."""
        train, validation = split_validation(self.segments, fraction, by, seed)
        return self.with_segments(train), self.with_segments(validation)

    @classmethod
    def concatenate(cls, datasets: Sequence[HyperDataset]) -> HyperDataset:
        """Segments and recordings of several data sets; class tables are made anew from the attributes that any of them had one for.

        Raises:
            ManifestError: an id occurs twice, or only some have recordings.
        """
        if not datasets:
            raise ValueError("nothing to concatenate")
        recordings = [d.recordings for d in datasets]
        present = [r for r in recordings if r is not None]
        if present and len(present) < len(recordings):
            raise ManifestError("some of the data sets have recordings and some have not")
        names = list(dict.fromkeys(name for d in datasets for name in d._groups["classes"]))
        segments = SegmentSet.concatenate([d.segments for d in datasets])
        return cls.from_segments(segments, RecordingSet.concatenate(present) if present else None, names)

    # --- writing

    def save(self, folder: str | os.PathLike[str], format: str = "csv") -> Path:
        """Write all manifests and ``dataset.yaml`` into ``folder``, which is made.

        Args:
            folder: where to.
            format: ``csv``, ``tsv``, ``parquet`` or ``arrow``, for recordings, segments and VAD; the rest is CSV.

        Returns:
            The ``dataset.yaml``.
        """
        if format not in ("csv", "tsv", "parquet", "arrow"):
            raise ValueError(f"format must be csv, tsv, parquet or arrow, found {format!r}")
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {"description": self.description} if self.description else {}
        for key in ("recordings", "segments", "vad"):
            part = self._part(key)
            if part is not None:
                document[key] = f"{key}.{format}"
                part.save(target / document[key])
        for key in _NAMED:
            for name, part in self._group(key).items():
                file = f"{name}.csv" if key == "classes" else f"{key}_{name}.csv"
                part.save(target / file)
                document.setdefault(key, {})[name] = file
        with atomic_file(target / DATASET_FILE) as temporary:
            temporary.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return target / DATASET_FILE


def load_trials(
    path: str | os.PathLike[str], check: bool = True, faults: list[tuple[int, str]] | None = None
) -> TrialNdx:
    """Read a trial list: a :class:`TrialKey` where it has labels, else a :class:`TrialNdx`. With ``faults``, see ``read_trials``."""
    from hyperion_lite.data.manifests.trial_io import read_trials

    columns = read_trials(Path(path), faults=faults)
    kind = TrialNdx if columns.target is None else TrialKey
    return kind.from_columns(columns, os.fspath(path), check)


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file}: is no YAML: {error}") from error
    if not isinstance(entries, dict):
        raise ManifestError(f"{file}: a mapping with a key `segments` was expected, found {type(entries).__name__}")
    known = ("description", *_SINGLE, *_NAMED, *_IGNORED)
    for key in entries:
        if key not in known:
            raise ManifestError(f"{file}: unknown key {key!r}{nearest(str(key), known)}; known: {', '.join(known)}")
    if not entries.get("segments"):
        raise ManifestError(f"{file}: needs a key `segments` that names the segment manifest")
    return entries


def _absolute(file: Path, key: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ManifestError(f"{file}: {key} must name a file, found {value!r}")
    return str(file.parent / value)


def _named_paths(file: Path, key: str, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        value = {Path(value).stem: value}
    if not isinstance(value, dict):
        raise ManifestError(f"{file}: {key} must map names to files, found {value!r}")
    return {str(name): str(_absolute(file, f"{key}.{name}", path)) for name, path in value.items()}
