"""Class tables: which index each class has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import pyarrow as pa

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests.columns import ColumnRules
from hyperion_lite.data.manifests.info_table import InfoTable
from hyperion_lite.data.manifests.segment_set import SegmentSet


class ClassInfo(InfoTable):
    """The classes of an attribute. Columns: ``id``; optional ``class_idx`` (default: the row), ``weights`` (default: equal), any others.

    Raises:
        ManifestError: the indices are not 0 ... n-1, each once; or a weight is negative or not finite.
    """

    rules: ClassVar[ColumnRules] = ColumnRules(
        "class table",
        floats=frozenset({"weights"}),
        integers=frozenset({"class_idx"}),
        aliases={"class": "id", "classid": "id", "class_id": "id", "class_index": "class_idx", "weight": "weights"},
    )

    def _check(self) -> None:
        super()._check()
        if self.has("class_idx"):
            indices = self.column("class_idx")
            expected = np.arange(len(self))
            if self._columns["class_idx"].null_count or not np.array_equal(np.sort(indices), expected):
                wrong = sorted(set(expected.tolist()) - set(indices.tolist()))
                hint = f"; missing: {wrong[:5]}" if wrong else ""
                raise ManifestError(f"{self.where}class_idx must be 0 ... {len(self) - 1}, each once{hint}")
        if self.has("weights"):
            weights = self.column("weights")
            bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
            if len(bad):
                raise ManifestError(
                    f"{self.where}class {self.ids[int(bad[0])]!r}: weight {weights[bad[0]]} must be a number >= 0"
                )

    @classmethod
    def from_ids(cls, ids: Iterable[str]) -> ClassInfo:
        """A table whose indices follow the order of ``ids``."""
        listed = [str(i) for i in ids]
        return cls(pa.table({"id": pa.array(listed, pa.string()), "class_idx": np.arange(len(listed))}))

    @classmethod
    def from_segments(cls, segments: SegmentSet, name: str = "speaker") -> ClassInfo:
        """The values of an attribute of segments, sorted.

        Raises:
            KeyError: no such attribute.
        """
        return cls.from_ids(segments.unique(name))

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self)

    @property
    def class_indices(self) -> np.ndarray:
        """Class index of each row (rows,) int64."""
        return self.column("class_idx") if self.has("class_idx") else np.arange(len(self))

    @property
    def class_ids(self) -> list[str]:
        """Class ids in index order."""
        order = np.empty(len(self), np.int64)
        order[self.class_indices] = np.arange(len(self))
        return self.ids.take(order)

    @property
    def weights(self) -> np.ndarray:
        """Sampling weight of each class, in index order (num_classes,) float64, summing to 1."""
        weights = np.empty(len(self))
        weights[self.class_indices] = self.column("weights") if self.has("weights") else 1.0
        total = weights.sum()
        if len(self) and not total > 0:
            raise ManifestError(f"{self.where}all class weights are 0")
        return weights / total

    def class_idx(self, id: str) -> int:
        """Index of one class.

        Raises:
            KeyError: unknown class.
        """
        return int(self.class_indices[self.index(id)])

    def class_idx_of(self, ids: Iterable[str] | pa.ChunkedArray) -> np.ndarray:
        """Indices (len(ids),) int64 of many classes.

        Raises:
            KeyError: unknown classes; names the first.
        """
        return self.class_indices[self.indices(ids)]

    def with_weights(self, weights: Iterable[float]) -> ClassInfo:
        """With other weights, one a row."""
        table = ClassInfo.with_column(self, "weights", np.asarray(list(weights), np.float64))
        table._check()
        return table

    def exponent_weights(self, exponent: float) -> ClassInfo:
        """With each weight raised to ``exponent`` (0: uniform)."""
        rows = self.weights[self.class_indices]
        return self.with_weights(rows**exponent)
