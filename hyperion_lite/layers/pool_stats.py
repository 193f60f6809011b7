"""Pooling over time by statistics: mean, mean and standard deviation, mean and log-variance."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding

VAR_FLOOR = 1e-5
"""Smallest variance; also keeps the gradient of the square root finite."""


class GlobalPool1d(Configurable, nn.Module):
    """Base of the pooling layers: one vector per item from a sequence of any length.

    Subclasses implement :meth:`pool` for sequences (batch, features, time) and set ``pool_type`` and ``multiplier``, the number of
    output features per input feature.

    Args:
        dim: time axis of the input, -1 (= 2) or 1.
        keepdim: keep the time axis with size one, at the same place.

    Raises:
        ConfigError: ``dim`` is not one of those axes.
    """

    pool_type: ClassVar[str]
    multiplier: ClassVar[int] = 1

    def __init__(self, dim: int = -1, keepdim: bool = False) -> None:
        super().__init__()
        if dim not in (-2, -1, 1, 2):
            raise ConfigError(f"pooling of (batch, features, time) works along dim -1 or 1, got dim={dim}")
        self.dim = dim
        self.keepdim = keepdim

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments and ``pool_type``: what :class:`~hyperion_lite.layers.pool_factory.GlobalPool1dFactory` takes."""
        return {**super().get_config(), "pool_type": self.pool_type}

    def out_feats(self, in_feats: int) -> int:
        """Number of output features for ``in_feats`` input features."""
        return in_feats * self.multiplier

    def forward(self, x: torch.Tensor, x_lengths: torch.Tensor | Padding | None = None) -> torch.Tensor:
        """Pool over time.

        Args:
            x: (batch, features, time), or (batch, time, features) when ``dim`` is 1; floating point. Half-precision input is pooled in
                float32.
            x_lengths: (batch,) integer number of valid frames before right padding, or a (batch, time) bool mask with ``True`` =
                valid, or a ready :class:`~hyperion_lite.core.padding.Padding`; ``None`` when all frames are valid. What stands in the
                padding (NaN included) has no influence.

        Returns:
            (batch, out_feats) in the dtype of ``x``; with ``keepdim`` a size-one axis at ``dim``. Value and gradient are finite from one
            frame on.

        Raises:
            LengthsError: lengths that do not fit ``x``.
            ValueError: ``x`` does not have three axes.
        """
        if x.dim() != 3:
            raise ValueError(f"pooling expects (batch, features, time), got a tensor of shape {tuple(x.shape)}")
        time_last = self.dim in (-1, 2)
        wide = x if time_last else x.transpose(1, 2)
        wide = wide.float() if x.dtype in (torch.float16, torch.bfloat16) else wide
        padding = x_lengths
        if isinstance(padding, torch.Tensor):
            padding = Padding.from_lengths(padding, wide.size(0), wide.size(2), device=x.device)
        if padding is not None:
            wide = padding.fill(wide)
        pooled = self.pool(wide, padding).to(x.dtype)
        return pooled.unsqueeze(2 if time_last else 1) if self.keepdim else pooled

    def pool(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        """(batch, features, time), zero in the padding -> (batch, out_feats)."""
        raise NotImplementedError


def mean_over_time(x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    """Mean over the valid frames of ``x`` (batch, features, time), which is zero in the padding: (batch, features)."""
    if padding is None:
        return x.mean(-1)
    return x.sum(-1) / padding.lengths.clamp(min=1).to(x.dtype).unsqueeze(1)


def mean_and_variance(x: torch.Tensor, padding: Padding | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and biased variance over the valid frames of ``x`` (batch, features, time): (batch, features) each."""
    mean = mean_over_time(x, padding)
    centred = x - mean.unsqueeze(-1)
    if padding is not None:
        centred = padding.fill(centred)
    return mean, mean_over_time(centred.square(), padding)


def mean_and_stddev(x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    """[mean; sqrt(max(variance, 1e-5))] over the valid frames: (batch, 2 * features)."""
    mean, var = mean_and_variance(x, padding)
    return torch.cat([mean, var.clamp(min=VAR_FLOOR).sqrt()], dim=1)


class GlobalAvgPool1d(GlobalPool1d):
    """Mean over time."""

    pool_type = "avg"

    def pool(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        return mean_over_time(x, padding)


class GlobalMeanStdPool1d(GlobalPool1d):
    """[mean; s] with s = sqrt(max(mean((x - mean)^2), 1e-5)), the statistics pooling of x-vectors."""

    pool_type = "mean+stddev"
    multiplier = 2

    def pool(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        return mean_and_stddev(x, padding)


class GlobalMeanLogVarPool1d(GlobalPool1d):
    """[mean; l] with l = log(mean(x^2) - mean^2 + 1e-5).

    The variance is computed around the mean: the difference of squares is the same number, and negative after rounding when the mean is
    large.
    """

    pool_type = "mean+logvar"
    multiplier = 2

    def pool(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        mean, var = mean_and_variance(x, padding)
        return torch.cat([mean, (var + VAR_FLOOR).log()], dim=1)
