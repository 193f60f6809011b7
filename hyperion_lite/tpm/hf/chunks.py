"""Long items in pieces: the feature extractor exactly, the transformer with a limited view."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from hyperion_lite.core.padding import conv_out_length
from hyperion_lite.tpm.hf.conv_stack import ConvGeometry, ConvStack
from hyperion_lite.tpm.hf.running_stats import ItemStats


class FrameChunk(NamedTuple):
    """The transformer sees the frames ``start`` ... ``stop - 1``; of its outputs those of ``keep_from`` ... ``keep_to - 1`` are kept."""

    start: int
    stop: int
    keep_from: int
    keep_to: int


def frame_chunks(num_frames: int, chunk: int, left: int, right: int) -> Iterator[FrameChunk]:
    """Chunks of ``chunk`` frames from the first frame on, each with its context as far as there are frames."""
    for keep_from in range(0, num_frames, chunk):
        keep_to = min(keep_from + chunk, num_frames)
        yield FrameChunk(max(keep_from - left, 0), min(keep_to + right, num_frames), keep_from, keep_to)


def run_in_chunks(
    run: Callable[[int, int], tuple[list[torch.Tensor], torch.Tensor]],
    num_frames: int,
    chunk: int,
    left: int,
    right: int,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Hidden states of one item whose layers see one chunk and its context at a time.

    Args:
        run: hidden states and last hidden state, each (1, frames, features), of the frames from the first to before the second number.
        num_frames: frames of the item.
        chunk, left, right: frames of a chunk and around it.
    """
    states: list[list[torch.Tensor]] = []
    lasts: list[torch.Tensor] = []
    for piece in frame_chunks(num_frames, chunk, left, right):
        window, last = run(piece.start, piece.stop)
        kept = slice(piece.keep_from - piece.start, piece.keep_to - piece.start)
        # copies: a view would keep the whole window
        states.append([state[:, kept].clone() for state in window])
        lasts.append(last[:, kept].clone())
    return [torch.cat(parts, dim=1) for parts in zip(*states, strict=True)], torch.cat(lasts, dim=1)


def conv_in_chunks(stack: ConvStack, geometry: ConvGeometry, x: torch.Tensor, chunk: int) -> torch.Tensor:
    """What ``stack`` makes of one item, computed ``chunk`` frames at a time.

    Nothing is approximated: a frame sees the same samples, and where the first layer normalises over time, it does so with the statistics
    of the whole item, which a first pass collects.

    Args:
        x: (1, samples).

    Returns:
        (1, channels, frames).
    """
    stats = _collect(stack, geometry, x, chunk) if stack.has_global_norm else None
    frames = geometry.out_length(x.size(1))
    pieces = []
    for keep_from in range(0, frames, chunk):
        first, last = geometry.samples_of(keep_from, min(keep_from + chunk, frames))
        pieces.append(stack(x[:, first:last], None, stats)[0])
    return torch.cat(pieces, dim=2)


def _collect(stack: ConvStack, geometry: ConvGeometry, x: torch.Tensor, chunk: int) -> ItemStats:
    kernel, stride = geometry.kernels[0], geometry.strides[0]
    positions = conv_out_length(x.size(1), kernel, stride)
    step = chunk * geometry.hop // stride
    stats = ItemStats()
    for first in range(0, positions, step):
        last = min(first + step, positions)
        stack.collect_stats(x[:, first * stride : (last - 1) * stride + kernel], stats)
    stats.collecting = False
    return stats
