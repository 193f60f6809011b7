"""Frame arithmetic: how many frames a signal has, where they start, and how its two ends are reflected."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch

from hyperion_lite.core.padding import Padding

_Length = TypeVar("_Length", int, torch.Tensor)


@dataclass(frozen=True)
class FrameGeometry:
    """Positions of analysis frames. Frame ``t`` covers samples ``t * frame_shift - left_pad + (0 ... frame_length - 1)``.

    Attributes:
        frame_length: samples.
        frame_shift: samples.
        snip_edges: only frames that lie inside the signal; otherwise one frame per shift, the ends reflected.
        center: frame ``t`` is centred at sample ``t * frame_shift``; wins over ``snip_edges``.
    """

    frame_length: int
    frame_shift: int
    snip_edges: bool = True
    center: bool = False

    @property
    def left_pad(self) -> int:
        """Reflected samples before the signal; negative when the first samples are skipped."""
        if self.center:
            return self.frame_length // 2
        return 0 if self.snip_edges else (self.frame_length - self.frame_shift) // 2

    def num_frames(self, length: _Length) -> _Length:
        """Exact number of frames of a signal of ``length`` samples (an int, or an integer tensor)."""
        if self.center:
            span = length + 2 * (self.frame_length // 2) - self.frame_length
        elif self.snip_edges:
            span = length - self.frame_length
        else:
            span = length + self.frame_shift // 2 - self.frame_shift
        frames = span // self.frame_shift + 1
        return frames.clamp(min=0) if isinstance(frames, torch.Tensor) else max(frames, 0)

    def right_pad(self, length: _Length) -> _Length:
        """Reflected samples that the last frame needs after a signal of ``length`` samples."""
        end = (self.num_frames(length) - 1) * self.frame_shift + self.frame_length - self.left_pad
        pad = end - length
        return pad.clamp(min=0) if isinstance(pad, torch.Tensor) else max(pad, 0)

    @cached_property
    def min_length(self) -> int:
        """Smallest length from which on every signal has a frame and is long enough to be reflected (one sample more than the pad)."""
        lengths = torch.arange(2 * (self.frame_length + self.frame_shift) + 1)
        possible = (self.num_frames(lengths) > 0) & (self.right_pad(lengths) < lengths) & (lengths > self.left_pad)
        return int(lengths[~possible].max()) + 1


def lay_out(signal: torch.Tensor, padding: Padding | None, geometry: FrameGeometry, width: int) -> torch.Tensor:
    """Reflect both ends of every item so that all its frames can be cut out of one tensor.

    Args:
        signal: (batch, samples); finite at padded positions.
        padding: valid samples; the right end of an item is reflected where the item ends, not where the batch ends.
        geometry: frame positions; every item has at least ``geometry.min_length`` samples.
        width: samples to provide from the start of the last frame on (zeros after what the frame needs).

    Returns:
        (batch, (T - 1) * frame_shift + width): frame ``t`` starts at ``t * frame_shift``. T is the number of frames of the padded signal.
    """
    num_samples = signal.size(1)
    left = max(geometry.left_pad, 0)
    skip = max(-geometry.left_pad, 0)
    total = skip + (geometry.num_frames(num_samples) - 1) * geometry.frame_shift + width
    head = signal[:, 1 : left + 1].flip(1)
    if padding is None:
        right = geometry.right_pad(num_samples)
        tail = signal[:, num_samples - 1 - right : num_samples - 1].flip(1)
        rest = signal.new_zeros(signal.size(0), max(total - left - num_samples - right, 0))
        return torch.cat([head, signal, tail, rest], dim=1)[:, skip:total]
    right_pads = geometry.right_pad(padding.lengths)
    longest = int(right_pads.max())
    rest = signal.new_zeros(signal.size(0), max(total - left - num_samples, longest))
    laid = torch.cat([head, signal, rest], dim=1)
    if longest > 0:
        step = torch.arange(longest, device=signal.device)[None, :]
        target = left + padding.lengths[:, None] + step
        source = (left + padding.lengths[:, None] - 2 - step).clamp(min=0)
        source = torch.where(step < right_pads[:, None], source, target)
        laid = laid.scatter(1, target, laid.gather(1, source))
    return laid[:, skip:total]
