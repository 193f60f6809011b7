"""Trial lists: which model is compared with which segment, and, in a key, whether they are the same speaker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests.arrow_tools import as_chunked, to_text
from hyperion_lite.data.manifests.trial_io import TrialColumns, read_trials, write_trials

_N = TypeVar("_N", bound="TrialNdx")


class TrialNdx:
    """Trials (model, segment), kept sparsely: one entry a trial, in the order of the file.

    Args:
        model_ids: ids of the models, each once.
        segment_ids: ids of the segments, each once.
        model_rows: model of each trial (num_trials,), an index into ``model_ids``.
        segment_rows: segment of each trial (num_trials,), an index into ``segment_ids``.
        file: where the trials come from, for messages.

    Raises:
        ManifestError: an id occurs twice, an index is out of range, a trial occurs twice.
    """

    def __init__(
        self,
        model_ids: Sequence[str],
        segment_ids: Sequence[str],
        model_rows: np.ndarray,
        segment_rows: np.ndarray,
        file: str | os.PathLike[str] | None = None,
        check: bool = True,
    ) -> None:
        self.model_ids, self.segment_ids = list(model_ids), list(segment_ids)
        self.model_rows = np.asarray(model_rows, np.int64)
        self.segment_rows = np.asarray(segment_rows, np.int64)
        self.file = None if file is None else os.fspath(file)
        if check:
            self._check()

    @property
    def _where(self) -> str:
        return f"{self.file}: " if self.file else ""

    def _check(self) -> None:
        for name, ids, rows in (
            ("model", self.model_ids, self.model_rows),
            ("segment", self.segment_ids, self.segment_rows),
        ):
            if len(set(ids)) < len(ids):
                raise ManifestError(f"{self._where}a {name} id occurs twice")
            if len(rows) and not (rows.min() >= 0 and rows.max() < len(ids)):
                raise ManifestError(f"{self._where}a trial names {name} number {rows.max()} of {len(ids)}")
        if len(self.model_rows) != len(self.segment_rows):
            raise ManifestError(f"{self._where}{len(self.model_rows)} models for {len(self.segment_rows)} segments")
        repeated = self.repeated()
        if repeated:
            row, first = repeated[0]
            raise ManifestError(f"{self._where}trial {self.pair(row)} occurs in rows {first + 1} and {row + 1}")

    def repeated(self) -> list[tuple[int, int]]:
        """Pairs (row, row of the first occurrence) of trials that stand in an earlier row."""
        keys = self._keys()
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        rows = np.flatnonzero(first[inverse] != np.arange(len(keys)))
        return [(int(row), int(first[inverse[row]])) for row in rows]

    def _keys(self) -> np.ndarray:
        return self.model_rows * max(1, len(self.segment_ids)) + self.segment_rows

    @classmethod
    def from_file(cls: type[_N], path: str | os.PathLike[str], sep: str | None = None, check: bool = True) -> _N:
        """Read a trial list: a table with ``modelid``, ``segmentid`` (and ``targettype``), or Kaldi's lines ``model segment target``.

        Args:
            path: CSV, TSV, Parquet or Arrow; or text without a header, fields separated by spaces. Lists whose lines are
                ``1 model segment`` are recognised too.
            sep: separator of a table.
            check: refuse repeated trials.

        Raises:
            FileNotFoundError: no such file.
            ManifestError: malformed; names file and row.
        """
        return cls.from_columns(read_trials(Path(path), sep), os.fspath(path), check)

    load = from_file

    @classmethod
    def from_columns(cls: type[_N], columns: TrialColumns, file: str | None = None, check: bool = True) -> _N:
        """From the columns of a list, one entry a trial."""
        models, model_rows = _encode(columns.models)
        segments, segment_rows = _encode(columns.segments)
        return cls(models, segments, model_rows, segment_rows, **cls._labels(columns, file), file=file, check=check)

    @classmethod
    def _labels(cls, columns: TrialColumns, file: str | None) -> dict[str, Any]:
        return {}

    @classmethod
    def from_pairs(cls: type[_N], pairs: Iterable[tuple[str, ...]]) -> _N:
        """From tuples (model, segment), or (model, segment, target) for a key."""
        listed = [tuple(pair) for pair in pairs]
        labels = [bool(pair[2]) for pair in listed] if listed and len(listed[0]) > 2 else None
        return cls.from_columns(
            TrialColumns(
                pa.array([str(pair[0]) for pair in listed], pa.string()),
                pa.array([str(pair[1]) for pair in listed], pa.string()),
                None if labels is None and listed else np.asarray(labels or [], bool),
            ),
            None,
            True,
        )

    def __len__(self) -> int:
        return len(self.model_rows)

    @property
    def num_trials(self) -> int:
        """Number of trials."""
        return len(self)

    def pair(self, row: int) -> tuple[str, str]:
        """Model and segment of trial ``row`` (from 0)."""
        return self.model_ids[self.model_rows[row]], self.segment_ids[self.segment_rows[row]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (self.pair(row) for row in range(len(self)))

    def mask(self) -> np.ndarray:
        """Dense form: (models, segments) bool, True where there is a trial."""
        dense = np.zeros((len(self.model_ids), len(self.segment_ids)), bool)
        dense[self.model_rows, self.segment_rows] = True
        return dense

    @classmethod
    def from_mask(cls, model_ids: Sequence[str], segment_ids: Sequence[str], mask: np.ndarray) -> TrialNdx:
        """From the dense form, trials in row order."""
        _check_shape(mask, model_ids, segment_ids)
        rows, columns = np.nonzero(mask)
        return TrialNdx(model_ids, segment_ids, rows, columns)

    def _select(self: _N, rows: np.ndarray) -> _N:
        kept_models, model_rows = _compact(self.model_ids, self.model_rows[rows])
        kept_segments, segment_rows = _compact(self.segment_ids, self.segment_rows[rows])
        extra = self._extra(rows)
        return type(self)(kept_models, kept_segments, model_rows, segment_rows, **extra, file=self.file, check=False)

    def _extra(self, rows: np.ndarray) -> dict[str, Any]:
        return {}

    def filter(self: _N, models: Iterable[str] | None = None, segments: Iterable[str] | None = None) -> _N:
        """The trials of these models and segments; without either, of all."""
        keep = np.ones(len(self), bool)
        for wanted, ids, rows in (
            (models, self.model_ids, self.model_rows),
            (segments, self.segment_ids, self.segment_rows),
        ):
            if wanted is not None:
                accepted = set(wanted)
                keep &= np.fromiter((i in accepted for i in ids), bool, len(ids))[rows]
        return self._select(np.flatnonzero(keep))

    def split(self: _N, part: int, num_parts: int) -> _N:
        """Part ``part`` (from 0) of ``num_parts``; the trials of one model stay together.

        Raises:
            ValueError: no such part.
        """
        if num_parts < 1 or not 0 <= part < num_parts:
            raise ValueError(f"part must be in 0 ... {num_parts - 1}, found {part}")
        owner = np.arange(len(self.model_ids)) * num_parts // max(1, len(self.model_ids))
        return self._select(np.flatnonzero(owner[self.model_rows] == part))

    def _columns(self) -> TrialColumns:
        models = pa.array(self.model_ids, pa.string()).take(pa.array(self.model_rows))
        return TrialColumns(models, pa.array(self.segment_ids, pa.string()).take(pa.array(self.segment_rows)), None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write by suffix: ``.txt`` and no suffix in Kaldi's lines, else a table (``.csv``, ``.tsv``, ``.parquet``, ``.arrow``)."""
        write_trials(self._columns(), Path(path))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} trials; {len(self.model_ids)} models, {len(self.segment_ids)} segments)"
        )


class TrialKey(TrialNdx):
    """Trials with their truth.

    Args:
        target: (num_trials,) bool, True where model and segment are of the same speaker; the rest as in :class:`TrialNdx`.
    """

    def __init__(
        self,
        model_ids: Sequence[str],
        segment_ids: Sequence[str],
        model_rows: np.ndarray,
        segment_rows: np.ndarray,
        target: np.ndarray,
        file: str | os.PathLike[str] | None = None,
        check: bool = True,
    ) -> None:
        self.target = np.asarray(target, bool)
        super().__init__(model_ids, segment_ids, model_rows, segment_rows, file, check)
        if len(self.target) != len(self):
            raise ManifestError(f"{self._where}{len(self.target)} labels for {len(self)} trials")

    @classmethod
    def _labels(cls, columns: TrialColumns, file: str | None) -> dict[str, Any]:
        if columns.target is None:
            raise ManifestError(
                f"{file + ': ' if file else ''}a key needs to know target from nontarget: a column targettype, or a third field"
            )
        return {"target": columns.target}

    def _extra(self, rows: np.ndarray) -> dict[str, Any]:
        return {"target": self.target[rows]}

    @property
    def num_targets(self) -> int:
        """Number of target trials."""
        return int(self.target.sum())

    @property
    def num_nontargets(self) -> int:
        """Number of non-target trials."""
        return len(self) - self.num_targets

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """Dense form: target and non-target masks, each (models, segments) bool."""
        target, nontarget = np.zeros((2, len(self.model_ids), len(self.segment_ids)), bool)
        target[self.model_rows[self.target], self.segment_rows[self.target]] = True
        nontarget[self.model_rows[~self.target], self.segment_rows[~self.target]] = True
        return target, nontarget

    @classmethod
    def from_dense(
        cls, model_ids: Sequence[str], segment_ids: Sequence[str], target: np.ndarray, nontarget: np.ndarray
    ) -> TrialKey:
        """From the dense form, trials in row order.

        Raises:
            ManifestError: shapes do not fit, or a trial is both.
        """
        for mask in (target, nontarget):
            _check_shape(mask, model_ids, segment_ids)
        if (np.asarray(target, bool) & np.asarray(nontarget, bool)).any():
            raise ManifestError("a trial is both target and nontarget")
        rows, columns = np.nonzero(np.asarray(target, bool) | np.asarray(nontarget, bool))
        return cls(model_ids, segment_ids, rows, columns, np.asarray(target, bool)[rows, columns])

    def to_ndx(self) -> TrialNdx:
        """The trials without their truth."""
        return TrialNdx(
            self.model_ids, self.segment_ids, self.model_rows, self.segment_rows, file=self.file, check=False
        )

    def _columns(self) -> TrialColumns:
        return super()._columns()._replace(target=self.target)


def _encode(column: pa.Array | pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    # ids in the order of their first occurrence
    encoded = to_text(as_chunked(column)).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _compact(ids: list[str], rows: np.ndarray) -> tuple[list[str], np.ndarray]:
    kept, new_rows = np.unique(rows, return_inverse=True)
    return [ids[i] for i in kept], new_rows


def _check_shape(mask: np.ndarray, model_ids: Sequence[str], segment_ids: Sequence[str]) -> None:
    if np.shape(mask) != (len(model_ids), len(segment_ids)):
        raise ManifestError(
            f"a mask of shape {np.shape(mask)} for {len(model_ids)} models and {len(segment_ids)} segments"
        )
