"""What a sampler needs to know of a manifest, whatever object it is handed: ids, numeric columns, class tables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hyperion_lite.core.config import nearest

_SAMPLED_IDS = 4096


class SegmentView:
    """Reading access to the segments of a data set.

    Args:
        source: a ``SegmentSet``, a ``HyperDataset`` or ``AudioDataset`` (anything with ``segments`` or ``seg_set``), or a pandas
            table with an ``id`` column.

    Raises:
        ValueError: ``source`` is none of these.
    """

    def __init__(self, source: Any) -> None:
        segments = _find_segments(source)
        self.segments = segments
        self._class_tables = _class_tables(source)
        self.ids: Any = segments["id"].to_numpy() if _is_pandas(segments) else segments.ids
        self.name = str(getattr(segments, "file", None) or "the segment table")

    def __len__(self) -> int:
        return len(self.segments)

    def column(self, name: str) -> np.ndarray:
        """The column ``name``, one value a segment.

        Raises:
            ValueError: there is no such column; names the nearest one.
        """
        try:
            return np.asarray(self.segments[name] if _is_pandas(self.segments) else self.segments.column(name))
        except (KeyError, ValueError) as error:
            known = [str(c) for c in _column_names(self.segments)]
            raise ValueError(
                f"{self.name} has no column {name!r}{nearest(name, known)}; it has {', '.join(known) or 'none listed'}"
            ) from error

    def lengths(self, name: str) -> np.ndarray:
        """The column ``name`` as float64, checked to be finite and positive.

        Raises:
            ValueError: a value is NaN, infinite, zero or negative; names the first segment.
        """
        column = self.column(name)
        try:
            values = np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"column {name!r} of {self.name} does not hold numbers") from error
        wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(wrong):
            raise ValueError(
                f"{len(wrong)} of {len(values)} segments of {self.name} have no usable {name}: the first is "
                f"{self.take_ids(wrong[:1])[0]!r} with {values[wrong[0]]}. Measure the durations "
                "(hyperion-lite prepare validate) or filter these segments out"
            )
        return values

    def take_ids(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """Ids of the segments at ``indices``."""
        taken = self.ids.take(np.asarray(indices)) if hasattr(self.ids, "take") else [self.ids[int(i)] for i in indices]
        return [str(id) for id in (taken.to_pylist() if hasattr(taken, "to_pylist") else taken)]

    def codes(self, name: str) -> tuple[np.ndarray, list[str]]:
        """A column of categories as int codes, -1 for missing values, and the list of categories.

        Raises:
            ValueError: there is no such column.
        """
        if not _is_pandas(self.segments) and hasattr(self.segments, "codes"):
            try:
                return self.segments.codes(name)
            except KeyError:
                return self._codes_of(self.column(name))  # for the message
        return self._codes_of(self.column(name))

    @staticmethod
    def _codes_of(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
        missing = np.array([v is None or v != v or v == "" for v in values], dtype=bool)
        categories, codes = np.unique(np.where(missing, "", values.astype(str)), return_inverse=True)
        names = [str(c) for c in categories]
        codes = codes.astype(np.int32)
        if names and names[0] == "":
            return codes - 1, names[1:]
        return codes, names

    def class_table(self, class_name: str) -> Any | None:
        """The class table that the data set holds for ``class_name``, or None."""
        return self._class_tables.get(class_name)

    def fingerprint(self, *columns: np.ndarray) -> str:
        """Short hash of the segments: every value of ``columns``, and ids at evenly spaced rows."""
        digest = hashlib.blake2b(digest_size=16)
        rows = np.unique(np.linspace(0, max(len(self) - 1, 0), min(len(self), _SAMPLED_IDS)).astype(np.int64))
        digest.update("\0".join(self.take_ids(rows)).encode("utf-8", "surrogatepass"))
        for values in columns:
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()


def _find_segments(source: Any) -> Any:
    for candidate in (source, getattr(source, "segments", None), getattr(source, "seg_set", None)):
        if candidate is None:
            continue
        if callable(candidate) and not hasattr(candidate, "ids"):
            candidate = candidate()
        if _is_pandas(candidate) or (hasattr(candidate, "ids") and hasattr(candidate, "column")):
            return candidate
    raise ValueError(
        f"cannot find segments in a {type(source).__name__}: give a SegmentSet, or a data set with an attribute 'segments'"
    )


def _is_pandas(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "pandas" and hasattr(value, "columns")


def _column_names(segments: Any) -> list[Any]:
    for attribute in ("columns", "column_names"):
        names = getattr(segments, attribute, None)
        if names is not None and not callable(names):
            return list(names)
    return []


def _class_tables(source: Any) -> Mapping[str, Any]:
    for attribute in ("class_infos", "class_info", "classes"):
        tables = getattr(source, attribute, None)
        if isinstance(tables, Mapping):
            return tables
    return {}
