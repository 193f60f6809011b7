"""Normalisation layers that see the valid positions of a padded batch only, by name.

Every layer is called as ``norm(x, padding=None)``. Without padding it computes what the torch layer does; with padding, an item's result at
its valid positions is the one it has alone (batch statistics in training: see :mod:`hyperion_lite.layers.batch_norm`).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.batch_norm import BatchNorm1d, BatchNorm2d

__all__ = ["NORM_KINDS", "BatchNorm1d", "BatchNorm2d", "ChannelLayerNorm", "GroupNorm", "NormKind", "make_norm"]

NormKind = Literal["batch-norm", "group-norm", "instance-norm", "instance-norm-affine", "layer-norm"]
NORM_KINDS: tuple[str, ...] = get_args(NormKind)


class GroupNorm(nn.Module):
    """Normalise groups of channels of each item by mean and biased variance over the group and the item's valid positions.

    Args:
        num_groups: number of groups; ``num_channels`` of them make an instance norm, one a layer norm over channels and positions.
        num_channels: number of channels, a multiple of ``num_groups``.
        eps: added to the variance.
        affine: whether to have ``weight`` and ``bias`` (num_channels,).

    Raises:
        ConfigError: ``num_channels`` is not a multiple of ``num_groups``.
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ConfigError(f"{num_channels} channels cannot be split into {num_groups} normalisation groups")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_channels)) if affine else None

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """Normalise.

        Args:
            x: (batch, channels), (batch, channels, time) or (batch, channels, freq, time).
            padding: valid positions of the last axis; ``None`` when all are.

        Returns:
            A tensor like ``x``; finite at padded positions.
        """
        # (batch, groups, channels in the group, ..., time)
        grouped = x.unflatten(1, (self.num_groups, -1))
        grouped = grouped if x.dtype == torch.float64 else grouped.float()
        dims = list(range(2, grouped.dim()))
        # Deviations are taken before they are scaled. torch's kernel scales first, and then subtracts the scaled mean: where few values
        # of an item are nearly equal, the difference is noise, and not the same noise alone and in a batch.
        if padding is None:
            centred = grouped - grouped.mean(dims, keepdim=True)
            var = centred.square().mean(dims, keepdim=True)
        else:
            mask = padding.mask_like(x).unsqueeze(1)
            grouped = torch.where(mask, grouped, 0.0)
            per_frame = grouped[0, 0].numel() // grouped.size(-1)
            count = (padding.lengths.clamp(min=1) * per_frame).to(grouped.dtype).view(-1, *[1] * (grouped.dim() - 1))
            centred = torch.where(mask, grouped - grouped.sum(dims, keepdim=True) / count, 0.0)
            var = centred.square().sum(dims, keepdim=True) / count
        y = (centred * torch.rsqrt(var + self.eps)).flatten(1, 2)
        if self.weight is not None and self.bias is not None:
            shape = (-1, *[1] * (x.dim() - 2))
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.weight is not None}"


class ChannelLayerNorm(nn.LayerNorm):
    """Layer norm over the channels of each position: (batch, channels) or (batch, channels, time).

    Statistics never mix positions, so padding has no influence.
    """

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:  # type: ignore[override]
        """Normalise over axis 1; ``padding`` is accepted for the common interface and not needed."""
        if x.dim() == 2:
            return super().forward(x)
        return super().forward(x.transpose(1, -1)).transpose(1, -1)


def make_norm(
    kind: str | None, num_features: int, ndim: Literal[1, 2] = 1, num_groups: int = 1, eps: float = 1e-5
) -> nn.Module:
    """A normalisation layer by name.

    Args:
        kind: one of :data:`NORM_KINDS`; ``None`` means ``batch-norm``.
        num_features: number of channels.
        ndim: 1 for inputs (batch, channels[, time]), 2 for (batch, channels, freq, time). ``layer-norm`` works over the channels of a
            position in the first case, over channels, frequencies and the item's valid time in the second.
        num_groups: groups of ``group-norm``; other kinds ignore it.
        eps: added to the variance.

    Returns:
        A module with ``forward(x, padding=None)``.

    Raises:
        ConfigError: unknown kind, or channels that the groups do not divide.
    """
    if kind is None or kind == "batch-norm":
        return (BatchNorm1d if ndim == 1 else BatchNorm2d)(num_features, eps=eps)
    if kind == "group-norm":
        return GroupNorm(num_groups, num_features, eps=eps)
    if kind in ("instance-norm", "instance-norm-affine"):
        return GroupNorm(num_features, num_features, eps=eps, affine=kind == "instance-norm-affine")
    if kind == "layer-norm":
        return ChannelLayerNorm(num_features, eps=eps) if ndim == 1 else GroupNorm(1, num_features, eps=eps)
    raise ConfigError(unknown_choice("normalisation layer", kind, [*NORM_KINDS, "null for batch-norm"]))
