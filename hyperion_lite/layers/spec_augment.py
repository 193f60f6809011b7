"""SpecAugment: random time warping, time masks and frequency masks of feature sequences, in training."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.padding import Padding

WarpMode = Literal["bicubic", "bilinear", "linear", "nearest"]
MaskMethod = Literal["constant", "mean", "min"]

_CUBIC_A = -0.75
"""Parameter of the cubic kernel, the one of ``torch.nn.functional.interpolate``."""


class SpecAugment(Configurable, nn.Module):
    """Random distortions of features, in ``train()`` only; the identity in ``eval()``.

    Whether each of the three is applied is drawn once for a batch; where, and how much, for every item within its own valid frames.
    Random numbers are torch's.

    Args:
        time_warp_prob: probability of time warping.
        time_warp_window: largest displacement of the pivot, frames; items of at most twice that are not warped.
        time_warp_mode: interpolation.
        time_mask_prob: probability of time masks.
        time_mask_min_width: smallest width, frames.
        time_mask_max_width: largest width, frames; limited to the item.
        time_mask_min_num_masks: smallest number of masks.
        time_mask_max_num_masks: largest number of masks.
        time_use_num_masks_percentage: the two numbers are masks per hundred frames of the item.
        freq_mask_prob: probability of frequency masks.
        freq_mask_min_width: smallest width, features.
        freq_mask_max_width: largest width, features.
        freq_mask_min_num_masks: smallest number of masks.
        freq_mask_max_num_masks: largest number of masks.
        mask_method: what masked positions become: mask_value, or the mean or the minimum of the item's valid frames.
        mask_value: value of the constant method.

    Raises:
        ValueError: a value is out of range; names the key.

    Reference: Park et al., "SpecAugment: a simple data augmentation method for automatic speech recognition", Interspeech 2019.
    """

    def __init__(
        self,
        time_warp_prob: float = 0,
        time_warp_window: int = 5,
        time_warp_mode: WarpMode = "bicubic",
        time_mask_prob: float = 0,
        time_mask_min_width: int = 0,
        time_mask_max_width: int = 100,
        time_mask_min_num_masks: int = 1,
        time_mask_max_num_masks: int = 2,
        time_use_num_masks_percentage: bool = False,
        freq_mask_prob: float = 0,
        freq_mask_min_width: int = 0,
        freq_mask_max_width: int = 20,
        freq_mask_min_num_masks: int = 1,
        freq_mask_max_num_masks: int = 2,
        mask_method: MaskMethod = "constant",
        mask_value: float = 0,
    ) -> None:
        super().__init__()
        _check_probability(time_warp_prob=time_warp_prob, time_mask_prob=time_mask_prob, freq_mask_prob=freq_mask_prob)
        _check_range("time_mask", "width", time_mask_min_width, time_mask_max_width)
        _check_range("time_mask", "num_masks", time_mask_min_num_masks, time_mask_max_num_masks)
        _check_range("freq_mask", "width", freq_mask_min_width, freq_mask_max_width)
        _check_range("freq_mask", "num_masks", freq_mask_min_num_masks, freq_mask_max_num_masks)
        if time_warp_window < 1:
            raise ValueError(f"time_warp_window must be at least one frame, got {time_warp_window}")
        if time_warp_mode not in ("bicubic", "bilinear", "linear", "nearest"):
            raise ValueError(f"time_warp_mode must be bicubic, bilinear, linear or nearest, got {time_warp_mode!r}")
        if mask_method not in ("constant", "mean", "min"):
            raise ValueError(f"mask_method must be constant, mean or min, got {mask_method!r}")
        self.time_warp_prob = time_warp_prob
        self.time_warp_window = time_warp_window
        self.time_warp_mode = time_warp_mode
        self.time_mask_prob = time_mask_prob
        self.time_mask_widths = (time_mask_min_width, time_mask_max_width)
        self.time_mask_numbers = (time_mask_min_num_masks, time_mask_max_num_masks)
        self.time_use_num_masks_percentage = time_use_num_masks_percentage
        self.freq_mask_prob = freq_mask_prob
        self.freq_mask_widths = (freq_mask_min_width, freq_mask_max_width)
        self.freq_mask_numbers = (freq_mask_min_num_masks, freq_mask_max_num_masks)
        self.mask_method = mask_method
        self.mask_value = mask_value

    def forward(self, x: torch.Tensor, x_lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Distort in ``train()``, return ``x`` itself in ``eval()``.

        Args:
            x: (batch, time, features) floating point.
            x_lengths: (batch,) valid frames, or a (batch, time) mask, True = valid.

        Returns:
            Same shape and dtype. In ``train()`` and given lengths, padded frames are 0.

        Raises:
            LengthsError: lengths do not fit ``x``.
        """
        return self.compute(x, Padding.from_lengths(x_lengths, x.size(0), x.size(1), device=x.device))

    def compute(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """As :meth:`forward`, between modules."""
        if not self.training:
            return x
        warp, time, freq = torch.rand(3).tolist()
        if padding is None:
            lengths = torch.full((x.size(0),), x.size(1), device=x.device)
        else:
            lengths = padding.lengths
            x = padding.fill(x, dim=1)
        if warp < self.time_warp_prob:
            x = self._warp(x, lengths)
        if time < self.time_mask_prob:
            masked = draw_masks(lengths, x.size(1), self.time_mask_widths, self._num_time_masks(lengths))
            x = torch.where(masked[:, :, None], self._filling(x, padding), x)
        if freq < self.freq_mask_prob:
            sizes = torch.full_like(lengths, x.size(2))
            masked = draw_masks(sizes, x.size(2), self.freq_mask_widths, _draw_number(*self.freq_mask_numbers, sizes))
            x = torch.where(masked[:, None, :], self._filling(x, padding), x)
        return x if padding is None else padding.fill(x, dim=1)

    def _num_time_masks(self, lengths: torch.Tensor) -> torch.Tensor:
        low, high = self.time_mask_numbers
        if not self.time_use_num_masks_percentage:
            return _draw_number(low, high, lengths)
        hundreds = lengths / 100
        return _draw_number((low * hundreds).round().long(), (high * hundreds).round().long(), lengths)

    def _filling(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        if self.mask_method == "constant":
            return x.new_full((1, 1, 1), self.mask_value)
        if self.mask_method == "min":
            return (x if padding is None else padding.fill(x, float("inf"), dim=1)).amin(dim=(1, 2), keepdim=True)
        if padding is None:
            return x.mean(dim=(1, 2), keepdim=True)
        total = padding.fill(x, dim=1).sum(dim=(1, 2), keepdim=True)
        return total / (padding.lengths[:, None, None] * x.size(2))

    def _warp(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        window = self.time_warp_window
        pivot = window + _draw_below(lengths - 2 * window)
        target = pivot - window + 1 + _draw_below(torch.full_like(lengths, 2 * window))
        # too short an item keeps its pivot in place, which is the identity
        movable = lengths > 2 * window
        pivot = torch.where(movable, pivot, 1)
        return warp_time(x, lengths, pivot, torch.where(movable, target, 1), self.time_warp_mode)


def _check_probability(**values: float) -> None:
    for key, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{key} must be between 0 and 1, got {value}")


def _check_range(prefix: str, name: str, low: int, high: int) -> None:
    if not 0 <= low <= high:
        raise ValueError(
            f"{prefix}_min_{name} = {low} and {prefix}_max_{name} = {high} must satisfy 0 <= minimum <= maximum"
        )


def _draw_below(sizes: torch.Tensor) -> torch.Tensor:
    # uniform integers in [0, size), 0 where there are none; float64, so that the product never rounds up to size
    drawn = torch.rand(sizes.shape, dtype=torch.float64, device=sizes.device) * sizes
    return drawn.long().clamp(min=0)


def _draw_number(low: int | torch.Tensor, high: int | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    # one draw for the batch; the limits may differ from item to item
    zeros = torch.zeros_like(like)
    return low + (float(torch.rand((), dtype=torch.float64)) * (zeros + high - low + 1)).long()


def draw_masks(sizes: torch.Tensor, total: int, widths: tuple[int, int], numbers: torch.Tensor) -> torch.Tensor:
    """Union of random intervals for each item.

    Args:
        sizes: (batch,) positions in which the intervals of an item lie.
        total: size of the axis.
        widths: smallest and largest width, both possible; limited to the item's size.
        numbers: (batch,) intervals per item.

    Returns:
        (batch, total) bool, True = masked.
    """
    most = int(numbers.max()) if numbers.numel() else 0
    if most == 0:
        return torch.zeros(sizes.numel(), total, dtype=torch.bool, device=sizes.device)
    shape = (sizes.numel(), most)
    width = widths[0] + _draw_below(torch.full(shape, widths[1] - widths[0] + 1, device=sizes.device))
    width = torch.minimum(width, sizes[:, None])
    width = torch.where(torch.arange(most, device=sizes.device) < numbers[:, None], width, 0)
    room = sizes - width.amax(dim=1) + 1
    start = _draw_below(room[:, None].expand(shape))
    position = torch.arange(total, device=sizes.device)
    return ((position >= start[:, :, None]) & (position < (start + width)[:, :, None])).any(dim=1)


def warp_time(
    x: torch.Tensor, lengths: torch.Tensor, pivot: torch.Tensor, target: torch.Tensor, mode: WarpMode = "bicubic"
) -> torch.Tensor:
    """Stretch the frames before ``pivot`` to ``target`` frames, and those after it to the rest of the item.

    Args:
        x: (batch, time, features).
        lengths: (batch,) valid frames.
        pivot: (batch,) integers between 1 and length - 1.
        target: (batch,) integers between 1 and length - 1.
        mode: interpolation, equal to ``torch.nn.functional.interpolate`` (``align_corners=False``) of each part.

    Returns:
        Same shape; frames after an item's length hold anything finite.
    """
    t = torch.arange(x.size(1), device=x.device)[None, :]
    length, c, d = lengths[:, None], pivot[:, None], target[:, None]
    before = t < d
    first, last = torch.where(before, 0, c), torch.where(before, c, length) - 1
    scale = torch.where(before, c / d, (length - c) / (length - d).clamp(min=1))
    offset = t - torch.where(before, 0, d)
    if mode == "nearest":
        taps = [(torch.floor(offset * scale), torch.ones_like(scale.expand(x.shape[:2])))]
    else:
        position = (offset + 0.5) * scale - 0.5
        whole = torch.floor(position)
        weights = _cubic(position - whole) if mode == "bicubic" else [1 - (position - whole), position - whole]
        shift = -1 if mode == "bicubic" else 0
        taps = [(whole + shift + i, weight) for i, weight in enumerate(weights)]
    warped = torch.zeros_like(x)
    for tap, weight in taps:
        index = torch.minimum(torch.maximum(first + tap.long(), first), last).clamp(0, x.size(1) - 1)
        frames = x.gather(1, index[:, :, None].expand(-1, -1, x.size(2)))
        warped = warped + frames * weight[:, :, None].to(x.dtype)
    return warped


def _cubic(fraction: torch.Tensor) -> list[torch.Tensor]:
    a = _CUBIC_A

    def near(s: torch.Tensor) -> torch.Tensor:
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def far(s: torch.Tensor) -> torch.Tensor:
        return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a

    return [far(fraction + 1), near(fraction), near(1 - fraction), far(2 - fraction)]
