"""The attributes of segments that go into items: class labels as indices, other columns as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hyperion_lite.core.errors import ConfigError, ManifestError
from hyperion_lite.data.manifests import ClassInfo, HyperDataset, RecordingSet, SegmentSet

if TYPE_CHECKING:
    ClassFiles = Sequence[str] | Mapping[str, str] | None


@dataclass(frozen=True)
class Tables:
    """What a data set is made of.

    Attributes:
        segments: or ``None``: every recording is one.
        recordings: or ``None`` where none is named.
        classes: class tables that the data set names.
        origin: its path, for messages.
    """

    segments: SegmentSet | None
    recordings: RecordingSet | None
    classes: Mapping[str, ClassInfo]
    origin: str | None


def open_tables(
    recordings_file: str | None,
    segments_file: str | None,
    dataset_path: str | None,
    dataset: HyperDataset | None,
    time_durs_file: str | None,
) -> Tables:
    """Open the tables that the options of a data set name.

    Raises:
        ConfigError: nothing is named, or a data set twice.
        FileNotFoundError: a table does not exist.
        ManifestError: a table is malformed; ``time_durs_file`` lacks a segment.
    """
    if dataset is not None and dataset_path is not None:
        raise ConfigError("give dataset_path or dataset, not both")
    if dataset is None and dataset_path is None and recordings_file is None:
        raise ConfigError("give recordings_file (with or without segments_file) or dataset_path")
    if dataset_path is not None:
        dataset = HyperDataset.load(dataset_path)
    segments = dataset.segments if dataset is not None else None
    recordings = dataset.recordings if dataset is not None else None
    if recordings_file is not None:
        recordings = RecordingSet.from_file(recordings_file)
    if segments_file is not None:
        segments = SegmentSet.from_file(segments_file)
    if time_durs_file is not None:
        if segments is None and recordings is not None:
            segments = SegmentSet.from_recordings(recordings)
        segments = _with_durations(segments, time_durs_file)
    return Tables(segments, recordings, dataset.classes if dataset is not None else {}, dataset_path)


def _with_durations(segments: SegmentSet | None, time_durs_file: str) -> SegmentSet:
    if segments is None:
        raise ConfigError("time_durs_file needs a table of segments or recordings")
    table = SegmentSet.from_file(time_durs_file)
    if not table.has("duration"):
        raise ManifestError(f"{time_durs_file} needs a column 'duration'; it has {table.column_names}")
    rows = table.find(segments.ids)
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise ManifestError(
            f"{time_durs_file} has no duration for {len(missing)} segments; the first is {segments.ids[int(missing[0])]!r}"
        )
    return segments.with_column("duration", table.duration[rows])


@dataclass(frozen=True)
class SegmentTable:
    """Which columns of the segments go into items.

    Attributes:
        segments: the table.
        class_infos: columns that become class indices, and their tables.
        class_indices: the indices of all rows, for tables in memory.
        attributes: columns that stay as they are.
        numbers_with_gaps: those of them that hold numbers, but not in every row.
    """

    segments: SegmentSet
    class_infos: Mapping[str, ClassInfo]
    class_indices: Mapping[str, np.ndarray]
    attributes: Sequence[str]
    numbers_with_gaps: frozenset[str]

    @classmethod
    def build(
        cls,
        segments: SegmentSet,
        class_names: Sequence[str],
        class_files: ClassFiles,
        attributes: Sequence[str],
        known_classes: Mapping[str, ClassInfo],
    ) -> SegmentTable:
        """Open the class tables and check that all columns and all classes are there.

        Raises:
            ConfigError: ``class_files`` does not go with ``class_names``.
            KeyError: a column is missing.
            ManifestError: a segment has no label, or one that its class table lacks.
        """
        files = _by_name(class_names, class_files)
        infos: dict[str, ClassInfo] = {}
        for name in class_names:
            if not segments.has(name):
                segments.column(name)  # raises, with the nearest name
            if name in files:
                infos[name] = ClassInfo.from_file(files[name])
            else:
                infos[name] = known_classes[name] if name in known_classes else ClassInfo.from_segments(segments, name)
            _check_labels(segments, name, infos[name])
        plain = [name for name in dict.fromkeys(attributes) if name not in infos]
        for name in plain:
            if not segments.has(name):
                segments.column(name)
        # columns as large as the table are made of tables in memory only
        indices = {} if segments.is_mapped else {name: _class_indices(segments, name, infos[name]) for name in infos}
        gaps = frozenset(name for name in plain if _has_gaps(segments.table.column(name)))
        return cls(segments, infos, indices, plain, gaps)

    def fields(self, row: int) -> dict[str, Any]:
        """The fields of the segment of a row: class indices, then attributes; missing numbers are NaN."""
        fields: dict[str, Any] = {}
        for name, info in self.class_infos.items():
            known = self.class_indices.get(name)
            if known is not None:
                fields[name] = int(known[row])
            else:
                fields[name] = info.class_idx(_label(self.segments.values(row, (name,))[0]))
        for name, value in zip(self.attributes, self.segments.values(row, self.attributes), strict=True):
            fields[name] = value
            if name in self.numbers_with_gaps:
                # every row in one type: a batch must not change its dtype with its items
                fields[name] = math.nan if value is None else float(value)
        return fields


def _class_indices(segments: SegmentSet, name: str, info: ClassInfo) -> np.ndarray:
    codes, labels = segments.codes(name)
    return info.class_idx_of(labels).astype(np.int32)[codes]


def _has_gaps(column: pa.ChunkedArray) -> bool:
    return column.null_count > 0 and (pa.types.is_floating(column.type) or pa.types.is_integer(column.type))


def _by_name(class_names: Sequence[str], class_files: ClassFiles) -> dict[str, str]:
    if class_files is None:
        return {}
    if len(set(class_names)) < len(class_names):
        raise ConfigError(f"class_names names a class twice: {list(class_names)}")
    if isinstance(class_files, Mapping):
        unknown = [name for name in class_files if name not in class_names]
        if unknown:
            raise ConfigError(
                f"class_files has a table of {unknown[0]!r}, which is not in class_names {list(class_names)}"
            )
        return dict(class_files)
    if len(class_files) != len(class_names):
        raise ConfigError(
            f"class_files has {len(class_files)} tables for the {len(class_names)} class_names {list(class_names)}"
        )
    return dict(zip(class_names, class_files, strict=True))


def _label(value: Any) -> str:
    # as class tables and the lists of different values write it
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_labels(segments: SegmentSet, name: str, info: ClassInfo) -> None:
    column = segments.table.column(name)
    if pa.types.is_floating(column.type):
        raise ManifestError(
            f"{segments.where}column {name!r} holds fractions; the classes of class_names are texts or whole numbers"
        )
    if column.null_count:
        row = next(index for index in range(len(segments)) if column[index].as_py() is None)
        raise ManifestError(
            f"{segments.where}{column.null_count} segments have no {name!r}; the first is {segments.ids[row]!r}. Label or remove them"
        )
    labels = segments.unique(name)
    unknown = [label for label, row in zip(labels, info.find(labels), strict=True) if row < 0]
    if unknown:
        raise ManifestError(
            f"{segments.where}{len(unknown)} values of {name!r} are not in the class table {info.file or 'of the data set'} of "
            f"{len(info)} classes; the first is {unknown[0]!r}. Use the table the labels were made with, or remove these segments"
        )
