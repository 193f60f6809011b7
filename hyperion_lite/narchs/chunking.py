"""Running a convolutional encoder over a long input in windows.

Every item is laid out on its own time axis from its first frame, so windows start at the same frames for all items of a batch and an
item's result does not depend on its batch-mates. A window is a chunk of new outputs plus the frames that the encoder's receptive field
needs around them; windows start at multiples of the alignment, so that every stride of the encoder falls on the same frames as in one
run. The zeros that convolutions see beyond the ends of an item appear at the ends of the item only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField

Encode = Callable[[torch.Tensor, Padding | None, torch.Tensor, int], torch.Tensor]
"""(x, padding of the window, full lengths of its items, frame that it starts at) -> outputs with time at the last axis."""


@dataclass(frozen=True)
class Window:
    """Input frames ``start`` ... ``stop - 1``, of whose outputs those of the frames ``keep_from`` ... ``keep_to - 1`` are new."""

    start: int
    stop: int
    keep_from: int
    keep_to: int


@dataclass(frozen=True)
class ChunkPlan:
    """Where windows lie.

    Attributes:
        field: receptive field of the encoder.
        alignment: windows start at multiples of it; a multiple of every resolution inside the encoder.
    """

    field: ReceptiveField
    alignment: int

    @property
    def left(self) -> int:
        """Frames before the kept part, a multiple of the alignment."""
        return -(-max(self.field.left, 0) // self.alignment) * self.alignment

    @property
    def right(self) -> int:
        """Frames after the kept part. The last kept output starts one stride before its end."""
        return max(self.field.right - self.field.stride + 1, 0)

    @property
    def min_chunk_length(self) -> int:
        """Smallest window: the context of both sides and one aligned step."""
        return self.left + self.right + self.alignment

    def windows(self, num_frames: int, chunk_length: int) -> Iterator[Window]:
        """Windows of at most ``chunk_length`` frames that cover ``num_frames``.

        Raises:
            ValueError: ``chunk_length`` is smaller than :attr:`min_chunk_length`.
        """
        if chunk_length < self.min_chunk_length:
            raise ValueError(
                f"a chunk of {chunk_length} frames is too short for this encoder: its context takes {self.left} frames before and "
                f"{self.right} after, use at least {self.min_chunk_length} frames (0 for no chunks)"
            )
        keep_from = 0
        while True:
            start = max(keep_from - self.left, 0)
            stop = start + chunk_length
            keep_to = (stop - self.right) // self.alignment * self.alignment
            yield Window(start, min(stop, num_frames), keep_from, keep_to)
            if stop >= num_frames:
                return
            keep_from = keep_to


def encode_in_chunks(
    encode: Encode,
    x: torch.Tensor,
    lengths: torch.Tensor,
    out_lengths: torch.Tensor,
    plan: ChunkPlan,
    chunk_length: int,
) -> torch.Tensor:
    """Outputs of ``encode`` for ``x``, computed in windows.

    An item that ends inside a window takes all its remaining outputs from it; so an item that is not longer than the chunk is computed
    in one piece.

    Args:
        encode: the encoder.
        x: (batch, ..., time).
        lengths: (batch,) valid frames.
        out_lengths: (batch,) valid outputs.
        plan: where the windows lie.
        chunk_length: frames of a window.

    Returns:
        (batch, ..., max(out_lengths)), zeros at padded positions.
    """
    frames = lengths.tolist()
    outputs = out_lengths.tolist()
    stride = plan.field.stride
    result: torch.Tensor | None = None
    done = [False] * len(frames)
    for window in plan.windows(max(frames), chunk_length):
        items = [index for index, finished in enumerate(done) if not finished]
        longest = max(frames[index] for index in items)
        stop = min(window.stop, longest)
        index = torch.tensor(items, device=x.device)
        piece = x[..., window.start : stop]
        local_lengths = (lengths - window.start).clamp(max=stop - window.start)
        if len(items) < len(frames):
            piece, local_lengths, full_lengths = piece[index], local_lengths[index], lengths[index]
        else:
            full_lengths = lengths
        ragged = min(frames[i] for i in items) < stop
        h = encode(piece, Padding(local_lengths, stop - window.start) if ragged else None, full_lengths, window.start)
        if result is None:
            result = h.new_zeros(len(frames), *h.shape[1:-1], max(outputs))
        first = window.keep_from // stride
        offset = window.start // stride
        for row, item in enumerate(items):
            done[item] = frames[item] <= window.start + chunk_length
            last = outputs[item] if done[item] else window.keep_to // stride
            result[item, ..., first:last] = h[row, ..., first - offset : last - offset]
    assert result is not None
    return result
