"""What samplers yield: ids and chunks that also know their epoch, their occurrence and whether they only fill up a batch.

A key is an ordinary ``str`` or ``tuple``: it compares, hashes and indexes like one. The attributes beside it travel through
:mod:`pickle` into worker processes, so that a persistent worker draws the augmentation of the right epoch without being told.
"""

from __future__ import annotations

from typing import Any


class SegmentKey(str):
    """Id of a whole segment.

    Attributes:
        epoch: pass over the data that the key belongs to.
        occurrence: tells apart the uses of one segment in one epoch.
        repeat: True for an item that only fills up the ranks; validation metrics leave it out.
    """

    epoch: int
    occurrence: int
    repeat: bool
    __slots__ = ("epoch", "occurrence", "repeat")

    def __new__(cls, segment_id: str, epoch: int = 0, occurrence: int = 0, repeat: bool = False) -> SegmentKey:
        key = super().__new__(cls, segment_id)
        key.epoch = int(epoch)
        key.occurrence = int(occurrence)
        key.repeat = bool(repeat)
        return key

    @property
    def segment_id(self) -> str:
        """The id as a plain string."""
        return str.__str__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str.__str__(self), self.epoch, self.occurrence, self.repeat)


class ChunkKey(tuple):
    """``(segment_id, start, duration)``, start and duration in seconds, start relative to the segment.

    Attributes:
        epoch: pass over the data that the key belongs to.
        occurrence: tells apart the uses of one segment in one epoch.
        repeat: True for an item that only fills up the ranks; validation metrics leave it out.
        pad_to: seconds that the item is to be zero-padded to (short segments under ``short_policy="pad"``), or None.
    """

    epoch: int
    occurrence: int
    repeat: bool
    pad_to: float | None

    def __new__(
        cls,
        segment_id: str,
        start: float,
        duration: float,
        epoch: int = 0,
        occurrence: int = 0,
        repeat: bool = False,
        pad_to: float | None = None,
    ) -> ChunkKey:
        key = super().__new__(cls, (segment_id, float(start), float(duration)))
        key.epoch = int(epoch)
        key.occurrence = int(occurrence)
        key.repeat = bool(repeat)
        key.pad_to = pad_to
        return key

    @property
    def segment_id(self) -> str:
        """The segment that the chunk is cut from."""
        return self[0]

    @property
    def start(self) -> float:
        """Begin of the chunk in seconds, relative to the segment."""
        return self[1]

    @property
    def duration(self) -> float:
        """Length of the chunk in seconds."""
        return self[2]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self, self.epoch, self.occurrence, self.repeat, self.pad_to)


SamplerKey = SegmentKey | ChunkKey
"""Either kind of key."""
