"""The class table of a model: ids of its classes in index order."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from hyperion_lite.core.errors import ModelFileError

CLASSES_FILE = "classes.csv"


def check_classes(classes: Sequence[str], where: str) -> list[str]:
    """A list of distinct strings, or :class:`ModelFileError`."""
    ids = [str(c) for c in classes]
    if len(set(ids)) != len(ids):
        twice = sorted({c for c in ids if ids.count(c) > 1})[:5]
        raise ModelFileError(f"{where}: class ids must be distinct, but these occur more than once: {', '.join(twice)}")
    return ids


def write_classes(path: Path, classes: Sequence[str]) -> None:
    """Write ``id,class_idx`` rows."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "class_idx"])
        writer.writerows([class_id, index] for index, class_id in enumerate(classes))


def read_classes(path: Path) -> list[str]:
    """Ids in index order.

    Raises:
        ModelFileError: no ``id`` column, indices that are not 0..n-1, or repeated ids.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ModelFileError(f"{path} is no table of classes: {error}") from error
    if rows and "id" not in rows[0]:
        raise ModelFileError(f"{path} needs a column 'id', it has {', '.join(rows[0])}")
    if rows and rows[0].get("class_idx") not in (None, ""):
        try:
            rows.sort(key=lambda row: int(row["class_idx"]))
            indices = [int(row["class_idx"]) for row in rows]
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{path}: class_idx must hold integers: {error}") from error
        if indices != list(range(len(rows))):
            raise ModelFileError(f"{path}: class_idx must be 0..{len(rows) - 1}, each once")
    return check_classes([row["id"] for row in rows], str(path))
