"""How often classes and their segments are drawn."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from hyperion_lite.core.config import nearest
from hyperion_lite.data.segment_view import SegmentView

WeightMode = Literal["custom", "uniform", "data-prior"]
_MODES = ("custom", "uniform", "data-prior")


def check_mode(name: str, mode: str) -> None:
    """Raise ``ValueError`` unless ``mode`` is a weight mode."""
    if mode not in _MODES:
        raise ValueError(f"{name} must be one of {', '.join(_MODES)}, got {mode!r}{nearest(mode, _MODES)}")


class ClassSegments:
    """The usable segments of each class, and the weights with which classes and segments are drawn.

    Classes are in index order. A class without usable segments has weight 0.

    Args:
        view: the segments.
        class_info: class table with ``class_ids`` and ``weights`` in index order; None for the sorted values of the column.
        class_name: column of the class.
        usable: numbers of the segments that can be drawn; None for all.
        lengths: of all segments.
        weight_mode: ``"custom"``: the weights of the table; ``"uniform"``; ``"data-prior"``: by total length of the segments.
        weight_exponent: applied to the weights; 0 makes them equal.
        seg_weight_mode: the same for the segments of a class; ``"custom"`` takes the column ``weights``.

    Raises:
        ValueError: a segment has no class or one that is not in the table, or weights that cannot be used.
    """

    def __init__(
        self,
        view: SegmentView,
        class_info: Any | None,
        class_name: str,
        usable: np.ndarray | None,
        lengths: np.ndarray,
        weight_mode: WeightMode,
        weight_exponent: float,
        seg_weight_mode: WeightMode,
    ) -> None:
        codes, categories = view.codes(class_name)
        self.class_ids, table_weights = _class_table(class_info, categories)
        classes = _to_table_order(codes, categories, self.class_ids, view, class_name)
        del codes
        if usable is not None:
            classes, lengths_of_usable = classes[usable], lengths[usable]
        else:
            lengths_of_usable = lengths
        order = order_by_class(classes, len(self.class_ids))
        self.segments = order if usable is None else usable[order]
        """Numbers of the usable segments, class by class."""
        self.classes = classes
        self.counts = np.bincount(classes, minlength=len(self.class_ids))
        self.first = np.concatenate([[0], np.cumsum(self.counts)])
        weights = table_weights if weight_mode == "custom" else np.ones(len(self.class_ids))
        if weight_mode == "data-prior":
            weights = np.bincount(classes, weights=lengths_of_usable, minlength=len(self.class_ids))
        self.weights = _power(np.asarray(weights, dtype=np.float64), weight_exponent, self.counts > 0)
        self.cumulative = self._segment_weights(view, lengths, seg_weight_mode)

    def _segment_weights(self, view: SegmentView, lengths: np.ndarray, mode: WeightMode) -> np.ndarray | None:
        if mode == "uniform":
            return None
        weights = lengths if mode == "data-prior" else np.asarray(view.column("weights"), dtype=np.float64)
        weights = weights[self.segments]
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError("the weights of the segments must be numbers of at least 0")
        cumulative = np.concatenate([[0.0], np.cumsum(weights)])
        empty = (cumulative[self.first[1:]] <= cumulative[self.first[:-1]]) & (self.weights > 0)
        if empty.any():
            raise ValueError(f"all segments of class {self.class_ids[int(np.argmax(empty))]!r} have weight 0")
        return cumulative

    def draw_classes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """``count`` class numbers, each class expected ``count`` times its weight, and never twice if that is at most once.

        Systematic sampling of the classes in random order.
        """
        order = rng.permutation(len(self.weights))
        cumulative = np.cumsum(self.weights[order])
        points = (rng.random() + np.arange(count)) / count * cumulative[-1]
        places = np.searchsorted(cumulative, points, side="right")
        chosen = order[np.minimum(places, len(order) - 1)]
        # rounding at the end of the scale can point at a class of weight 0
        chosen[self.weights[chosen] == 0] = int(np.argmax(self.weights))
        return rng.permutation(chosen)

    def draw_segments(self, rng: np.random.Generator, classes: np.ndarray, count: int) -> np.ndarray:
        """``count`` segment numbers for each of ``classes``, different ones where the class has that many: (len(classes), count)."""
        picks = self._draw(rng, classes, count)
        if count > 1:
            repeated = (np.diff(np.sort(picks, axis=1), axis=1) == 0).any(axis=1)
            for row in np.flatnonzero(repeated & (self.counts[classes] >= count)).tolist():
                picks[row] = self._draw_different(rng, int(classes[row]), count)
        return self.segments[picks]

    def _draw(self, rng: np.random.Generator, classes: np.ndarray, count: int) -> np.ndarray:
        uniform = rng.random((len(classes), count))
        begin, size = self.first[classes][:, None], self.counts[classes][:, None]
        if self.cumulative is None:
            return begin + np.minimum((uniform * size).astype(np.int64), size - 1)
        low, high = self.cumulative[begin], self.cumulative[begin + size]
        places = np.searchsorted(self.cumulative, low + uniform * (high - low), side="right") - 1
        return np.clip(places, begin, begin + size - 1)

    def _draw_different(self, rng: np.random.Generator, class_number: int, count: int) -> np.ndarray:
        begin, size = int(self.first[class_number]), int(self.counts[class_number])
        if self.cumulative is None:
            return begin + rng.choice(size, size=count, replace=False)
        weights = np.diff(self.cumulative[begin : begin + size + 1])
        # the smallest of exponential variables with these rates: a weighted sample without replacement (Efraimidis, Spirakis 2006)
        keys = rng.standard_exponential(size) / np.maximum(weights, 1e-300)
        return begin + np.argsort(keys, kind="stable")[:count]


def order_by_class(classes: np.ndarray, num_classes: int) -> np.ndarray:
    """Numbers of the segments class by class, in their own order in each class: int32, or int64 for 2**31 segments and more."""
    if len(classes) >= 2**31:
        return np.argsort(classes, kind="stable")
    # sorting numbers is faster than sorting places by them, and takes half the memory
    keys = classes.astype(np.int64)
    keys <<= 32
    keys |= np.arange(len(classes), dtype=np.int32)
    keys.sort()
    keys &= 2**32 - 1
    return keys.astype(np.int32)


def _class_table(class_info: Any | None, categories: list[str]) -> tuple[list[str], np.ndarray]:
    if class_info is None:
        return list(categories), np.ones(len(categories))
    if hasattr(class_info, "class_ids"):
        return [str(id) for id in class_info.class_ids], np.asarray(class_info.weights, dtype=np.float64)
    if hasattr(class_info, "columns") and "id" in class_info.columns:
        table = class_info.sort_values("class_idx") if "class_idx" in class_info.columns else class_info
        weights = table["weights"].to_numpy(dtype=np.float64) if "weights" in table.columns else np.ones(len(table))
        return [str(id) for id in table["id"]], weights
    raise ValueError(f"class_info must be a ClassInfo table, got a {type(class_info).__name__}")


def _to_table_order(
    codes: np.ndarray, categories: list[str], class_ids: list[str], view: SegmentView, class_name: str
) -> np.ndarray:
    index = {id: number for number, id in enumerate(class_ids)}
    position = np.array([index.get(category, -1) for category in categories] + [-1], dtype=np.int32)
    classes = position[codes]  # code -1 (no class) takes the last entry
    wrong = np.flatnonzero(classes < 0)
    if len(wrong):
        row = int(wrong[0])
        id = view.take_ids([row])[0]
        if codes[row] < 0:
            raise ValueError(
                f"segment {id!r} of {view.name} has no {class_name}; fill the column or filter the segment out"
            )
        raise ValueError(
            f"segment {id!r} of {view.name} has {class_name} {categories[codes[row]]!r}, which is not in the class table of "
            f"{len(class_ids)} classes{nearest(categories[codes[row]], class_ids)}; {len(wrong)} segments are concerned"
        )
    return classes


def _power(weights: np.ndarray, exponent: float, present: np.ndarray) -> np.ndarray:
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("the weights of the classes must be numbers of at least 0")
    if not np.isfinite(exponent):
        raise ValueError(f"weight_exponent must be a finite number, got {exponent}")
    usable = present & (weights > 0)
    if not usable.any():
        raise ValueError(
            "no class has both a weight above 0 and a usable segment; check the class table and min_chunk_length"
        )
    powered = np.where(usable, np.where(usable, weights, 1.0) ** exponent, 0.0)
    return powered / powered.sum()
