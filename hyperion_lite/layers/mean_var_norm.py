"""Mean and variance normalisation of feature sequences, over the whole item or a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

import torch
from torch import nn

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.audio_feats_filter_banks import FrontEndRules
from hyperion_lite.layers.item_by_item import is_item_by_item, map_items
from hyperion_lite.layers.precision import autocast_disabled

_GLOBAL_VAR_FLOOR = 1e-10
_SLIDING_VAR_FLOOR = 1e-5

_BLOCK = 2048
"""Frames per block of sliding windows: sums stay short and in the cache. Counted from an item's start, whatever the batch."""


def canonical_mvn_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a normalisation config with old spellings replaced.

    ``context`` stands for equal ``left_context`` and ``right_context``, ``no_norm_mean`` for the opposite of ``norm_mean``.
    """
    canonical = dict(config)
    context = canonical.pop("context", None)
    if context is not None:
        canonical.setdefault("left_context", context)
        canonical.setdefault("right_context", context)
    no_norm_mean = canonical.pop("no_norm_mean", None)
    if no_norm_mean is not None:
        canonical.setdefault("norm_mean", not no_norm_mean)
    return canonical


class MeanVarianceNorm(Configurable, nn.Module):
    """Subtract the mean of each feature over time, divide by its standard deviation, or both.

    An item of more than ``left_context + right_context + 1`` frames is normalised with the statistics of the window around each frame
    (the ends reflected), a shorter one, or any if both contexts are 0, with those of all its frames. Sums are float64: an hour of frames
    loses no precision. Padded frames never count. No parameters, no state; ``train()`` and ``eval()`` are the same.

    Args:
        norm_mean: subtract the mean.
        norm_var: divide by the standard deviation; at least 1e-5 for whole items (unbiased), square root of 1e-5 for windows.
        left_context: frames of the window before the current one.
        right_context: frames of the window after the current one.
        dim: time axis of the input.
        frontend_rules: the window of the "legacy" release lacks its oldest frame, but not in the divisor; "modern" has them all.

    Raises:
        ValueError: negative context or unknown rules.

    Example:
        >>> MeanVarianceNorm()(torch.tensor([[[1.0], [3.0]]])).flatten().tolist()
        [-1.0, 1.0]
    """

    config_exclude: ClassVar[tuple[str, ...]] = ("dim", "frontend_rules")

    def __init__(
        self,
        norm_mean: bool = True,
        norm_var: bool = False,
        left_context: int = 0,
        right_context: int = 0,
        dim: int = 1,
        frontend_rules: FrontEndRules = "modern",
    ) -> None:
        super().__init__()
        for key, context in (("left_context", left_context), ("right_context", right_context)):
            if context < 0:
                raise ValueError(f"{key} is a number of frames and must not be negative, got {context}")
        if frontend_rules not in get_args(FrontEndRules):
            raise ValueError(f"frontend_rules must be 'legacy' or 'modern', got {frontend_rules!r}")
        self.norm_mean = norm_mean
        self.norm_var = norm_var
        self.left_context = left_context
        self.right_context = right_context
        self.dim = dim
        self.frontend_rules = frontend_rules

    @classmethod
    def filter_args(cls, **kwargs: Any) -> dict[str, Any]:
        """The entries of ``kwargs`` that are keys of this class, old spellings (``context``, ``no_norm_mean``) included."""
        return super().filter_args(**canonical_mvn_config(kwargs))

    @property
    def window_length(self) -> int:
        """Frames of the sliding window; an item that is not longer is normalised as a whole."""
        return self.left_context + self.right_context + 1

    def forward(self, x: torch.Tensor, x_lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise.

        Args:
            x: (batch, time, features) floating point; time is at ``dim``.
            x_lengths: (batch,) valid frames, or a (batch, time) mask, True = valid.

        Returns:
            Same shape and dtype. Given lengths, padded frames are 0.

        Raises:
            LengthsError: lengths do not fit ``x``.
        """
        padding = Padding.from_lengths(x_lengths, x.size(0), x.size(self.dim), device=x.device)
        return self.compute(x, padding)

    def compute(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """As :meth:`forward`, between modules."""
        frames = x.movedim(self.dim, 1)
        flat = frames.reshape(frames.size(0), frames.size(1), -1)
        with autocast_disabled(x):
            flat = flat.to(torch.promote_types(x.dtype, torch.float32))
            if is_item_by_item(flat, padding):
                normalised = map_items(self._normalise, flat, padding, flat.size(1))
            elif padding is None:
                normalised = self._normalise(flat)
            else:
                normalised = padding.fill(self._normalise(padding.fill(flat, dim=1), padding), dim=1)
        return normalised.to(x.dtype).reshape(frames.shape).movedim(1, self.dim)

    def _normalise(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        if not (self.norm_mean or self.norm_var):
            return x
        width = self.window_length
        if padding is None:
            return self._sliding(x, None) if width > 1 and x.size(1) > width else self._global(x, None)
        slides = padding.lengths > width
        if width == 1 or not bool(slides.any()):
            return self._global(x, padding)
        if bool(slides.all()):
            return self._sliding(x, padding)
        return torch.where(slides[:, None, None], self._sliding(x, padding), self._global(x, padding))

    def _global(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        mean = _mean(x, padding)
        centred = x - mean
        out = centred if self.norm_mean else x
        if not self.norm_var:
            return out
        if padding is None:
            degrees: int | torch.Tensor = max(x.size(1) - 1, 1)
        else:
            centred = padding.fill(centred, dim=1)
            degrees = (padding.lengths - 1).clamp(min=1)[:, None, None]
        # the floor is under the root: one frame or constant features have a finite gradient
        variance = centred.square().sum(dim=1, keepdim=True, dtype=torch.float64) / degrees
        return out / variance.clamp(min=_GLOBAL_VAR_FLOOR).sqrt().to(x.dtype)

    def _sliding(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        if self.norm_mean:
            x = x - _mean(x, padding)
        extended = self._reflect(x, padding)
        blocks = []
        for start in range(0, x.size(1), _BLOCK):
            centre = x[:, start : start + _BLOCK]
            window = extended[:, start : start + centre.size(1) + self._num_summed].to(torch.float64)
            blocks.append(self._normalise_block(centre, window))
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)

    def _normalise_block(self, x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        mean = self._window_mean(window)
        out = (x - mean).to(x.dtype) if self.norm_mean else x
        if not self.norm_var:
            return out
        variance = self._window_mean(window.square()) - mean.square()
        return out / variance.clamp(min=_SLIDING_VAR_FLOOR).sqrt().to(x.dtype)

    @property
    def _num_summed(self) -> int:
        # the divisor is the full window under either rules
        return self.window_length - int(self.frontend_rules == "legacy")

    def _window_mean(self, window: torch.Tensor) -> torch.Tensor:
        sums = window.cumsum(dim=1)
        return (sums[:, self._num_summed :] - sums[:, : -self._num_summed]) / self.window_length

    def _reflect(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        # The sum over a window is a difference of two cumulative sums; the earlier one is that of the frame before the window, so the
        # signal starts there.
        right, num_frames = self.right_context, x.size(1)
        left = self._num_summed - right
        if padding is None:
            head, tail = x[:, 1 : left + 1], x[:, num_frames - 1 - right : num_frames - 1]
            return torch.cat([head.flip(1), x, tail.flip(1)], dim=1)
        last = padding.lengths[:, None] - 1
        index = torch.arange(-left, num_frames + right, device=x.device).abs()[None, :]
        index = torch.where(index <= last, index, (2 * last - index).clamp(min=0))
        return x.gather(1, index[:, :, None].expand(-1, -1, x.size(2)))


def _mean(x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    num_frames = x.size(1) if padding is None else padding.lengths[:, None, None]
    return (x.sum(dim=1, keepdim=True, dtype=torch.float64) / num_frames).to(x.dtype)
