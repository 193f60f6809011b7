"""The table of hard prototypes: for each class, itself and the classes most easily confused with it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np


def build_table(affinity: Any, count: int, weights: np.ndarray) -> np.ndarray:
    """The ``count`` hard prototypes of each class, itself first.

    Args:
        affinity: (num_classes, num_classes) array or tensor, larger for classes that are alike; for instance the cosines of the
            prototypes of a margin output.
        count: number of hard prototypes.
        weights: (num_classes,) classes of weight 0 are nobody's prototype.

    Returns:
        (num_classes, count) int32 class numbers.

    Raises:
        ValueError: a matrix of another size, or fewer usable classes than ``count``.
    """
    matrix = np.asarray(
        affinity.detach().cpu().float().numpy() if hasattr(affinity, "detach") else affinity, dtype=np.float32
    )
    classes = len(weights)
    if matrix.shape != (classes, classes):
        raise ValueError(f"affinity_matrix must be ({classes}, {classes}) for {classes} classes, got {matrix.shape}")
    usable = weights > 0
    if count > usable.sum():
        raise ValueError(
            f"num_hard_prototypes={count} is more than the {int(usable.sum())} classes that are sampled; lower it"
        )
    table = np.empty((classes, count), dtype=np.int32)
    for row in range(classes):
        scores = np.where(usable, np.nan_to_num(matrix[row], nan=-np.inf), -np.inf)
        scores[row] = np.inf
        table[row] = np.argsort(-scores, kind="stable")[:count]
    return table


def table_to_state(table: np.ndarray | None) -> dict[str, Any] | None:
    """Plain JSON types for a table."""
    if table is None:
        return None
    return {
        "shape": list(table.shape),
        "int32": base64.b64encode(np.ascontiguousarray(table, "<i4").tobytes()).decode("ascii"),
    }


def table_from_state(state: Mapping[str, Any] | None) -> np.ndarray | None:
    """The table that :func:`table_to_state` wrote."""
    if state is None:
        return None
    flat = np.frombuffer(base64.b64decode(state["int32"]), dtype="<i4")
    return flat.astype(np.int32).reshape(state["shape"])
