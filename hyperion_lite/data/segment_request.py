"""What a key asks a data set for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Request(NamedTuple):
    """A segment, or a range of one, on one occasion.

    Attributes:
        id: of the segment; empty where the row is given.
        row: of the segment, or ``None``.
        start: in seconds from the start of the segment.
        duration: in seconds; ``None``: to the end of the segment.
        epoch: pass over the data; ``None`` for a plain key, which does not know.
        occurrence: how often the segment came before in the epoch.
        repeat: whether the item only fills up the ranks; ``None`` for a plain key, which does not know.
        pad_to: seconds to pad the item to, or ``None``.
    """

    id: str
    row: int | None
    start: float
    duration: float | None
    epoch: int | None
    occurrence: int
    repeat: bool | None
    pad_to: float | None

    def moved_to(self, rng: np.random.Generator, whole: float | None) -> Request | None:
        """The same request for another segment, which lasts ``whole`` seconds: a random range of the same duration.

        ``None`` where that segment is too short; the whole segment where ``whole`` is ``None``.
        """
        if whole is None or self.duration is None:
            return self._replace(start=0.0)
        if whole < self.duration:
            return None
        return self._replace(start=float(rng.random()) * (whole - self.duration))


def parse_request(key: Any, num_segments: int) -> Request:
    """The request of one key.

    Args:
        key: id, ``(id, start, duration)`` or row; a key of a sampler is one of the first two.
        num_segments: rows of the table, for keys that are rows.

    Raises:
        TypeError: not a key.
        IndexError: no such row.
    """
    segment_id, row, start, duration = "", None, 0.0, None
    if isinstance(key, str):
        segment_id = str.__str__(key)
    elif (
        isinstance(key, tuple)
        and len(key) == 3
        and isinstance(key[0], str)
        and _is_number(key[1])
        and _is_number(key[2])
    ):
        segment_id, start, duration = str.__str__(key[0]), float(key[1]), float(key[2])
    elif isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        row = int(key) + (num_segments if key < 0 else 0)
        if not 0 <= row < num_segments:
            raise IndexError(f"row {key} of a data set of {num_segments} segments")
    else:
        raise TypeError(
            f"{key!r} is no key of a data set: give an id, (id, start, duration), a row, or a list of these"
        )
    return Request(
        segment_id,
        row,
        start,
        duration,
        getattr(key, "epoch", None),
        getattr(key, "occurrence", 0),
        getattr(key, "repeat", None),
        getattr(key, "pad_to", None),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
