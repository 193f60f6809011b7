"""What tells an attention network where in the sequence a frame is."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.activation import make_activation

POS_ENC_TYPES = ("rel", "abs", "conv", "no")


def sinusoids(positions: torch.Tensor, num_feats: int, dtype: torch.dtype) -> torch.Tensor:
    """The table of Vaswani et al. (2017): column 2i is ``sin(t * 10000^(-2i/num_feats))``, column 2i + 1 the cosine.

    Args:
        positions: integers of any shape; negative ones too (the sine is odd, the cosine even).
        num_feats: number of columns.
        dtype: of the result. Up to float32, frequencies and angles are rounded to float32, as in the tables that existing models were
            trained with: at some hundred frames that changes the fifth decimal. For float64 everything is computed in float64.

    Returns:
        (*positions.shape, num_feats).
    """
    precision = torch.float64 if dtype == torch.float64 else torch.float32
    columns = torch.arange(0, num_feats, 2, device=positions.device, dtype=precision)
    angles = positions.unsqueeze(-1).to(precision) * torch.exp(columns * (-math.log(10000.0) / num_feats))
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return table[..., :num_feats].to(dtype)


class PosEncoder(nn.Module):
    """No encoding of positions, and the base of those that encode them.

    Every encoder is called as ``encoder(x, padding=None, start=0)``: x (batch, time, features), ``start`` the position of its first
    frame. The result has the shape of x; padded positions hold finite numbers without meaning if x does.
    """

    def forward(self, x: torch.Tensor, padding: Padding | None = None, start: int = 0) -> torch.Tensor:
        """Identity."""
        return x


class RelPosEncoder(PosEncoder):
    """Scales frames by ``sqrt(num_feats)``; positions are left to relative attention.

    Args:
        num_feats: features per frame.
        dropout_rate: dropout of the result.
    """

    def __init__(self, num_feats: int, dropout_rate: float = 0.0) -> None:
        super().__init__()
        self.scale = math.sqrt(num_feats)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, x: torch.Tensor, padding: Padding | None = None, start: int = 0) -> torch.Tensor:
        """(batch, time, num_feats) -> the same shape."""
        return self.dropout(x * self.scale)


class AbsPosEncoder(RelPosEncoder):
    """``x * sqrt(num_feats)`` plus the sinusoids of the positions. Arguments as in :class:`RelPosEncoder`."""

    def forward(self, x: torch.Tensor, padding: Padding | None = None, start: int = 0) -> torch.Tensor:
        """(batch, time, num_feats) -> the same shape."""
        positions = torch.arange(start, start + x.size(1), device=x.device)
        return self.dropout(x * self.scale + sinusoids(positions, x.size(-1), x.dtype))


class ConvPosEncoder(PosEncoder):
    """A grouped convolution along time and an activation.

    The result takes the place of the input and is not added to it: so do the models that exist.

    Args:
        num_feats: features per frame.
        kernel_size: of the convolution; with an even one, the last frame of its result is cut off.
        num_groups: of the convolution.
        act: activation.

    Raises:
        ValueError: a kernel without size, or groups that do not divide the features.
    """

    def __init__(self, num_feats: int, kernel_size: int, num_groups: int, act: str | dict[str, Any] | None) -> None:
        super().__init__()
        if kernel_size < 1:
            raise ValueError(f"pos_kernel_size must be positive, got {kernel_size}")
        if num_groups < 1 or num_feats % num_groups:
            raise ValueError(f"pos_num_groups = {num_groups} does not divide the {num_feats} features of d_model")
        self.conv = nn.Conv1d(num_feats, num_feats, kernel_size, padding=kernel_size // 2, groups=num_groups)
        self.act = make_activation(act)

    @property
    def context(self) -> tuple[int, int]:
        """Frames that an output sees to its left and to its right."""
        kernel_size = self.conv.kernel_size[0]
        return kernel_size // 2, (kernel_size - 1) // 2

    def forward(self, x: torch.Tensor, padding: Padding | None = None, start: int = 0) -> torch.Tensor:
        """(batch, time, num_feats) -> the same shape; every item sees zeros beyond its own end."""
        num_frames = x.size(1)
        x = x.transpose(1, 2)
        if padding is not None:
            x = padding.fill(x)
        return self.act(self.conv(x)[..., :num_frames]).transpose(1, 2)


def make_pos_encoder(
    kind: str,
    num_feats: int,
    dropout_rate: float,
    kernel_size: int,
    num_groups: int,
    act: str | dict[str, Any] | None,
) -> PosEncoder:
    """The encoder called ``kind``, which is one of :data:`POS_ENC_TYPES`; the arguments are those of the classes."""
    if kind == "rel":
        return RelPosEncoder(num_feats, dropout_rate)
    if kind == "abs":
        return AbsPosEncoder(num_feats, dropout_rate)
    if kind == "conv":
        return ConvPosEncoder(num_feats, kernel_size, num_groups, act)
    return PosEncoder()
