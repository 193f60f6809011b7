"""Feed-forward parts of Conformer and Transformer blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conformer_in_layer import frame_activation
from hyperion_lite.layer_blocks.conv import apply_conv, make_conv
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField

FF_TYPES = ("linear", "conv1dx2", "conv1d-linear")


class FeedForward(nn.Module):
    """``w_2(act(w_1(x)))`` on (batch, time, d_model), with dropout before ``w_2``.

    Args:
        kind: ``linear``: two linear maps; ``conv1dx2``: two convolutions along time; ``conv1d-linear``: a convolution, and one of size 1.
        d_model: features per frame.
        d_ff: features between the maps.
        kernel_size: of the convolutions, odd; of no meaning for ``linear``.
        act: activation.
        dropout_rate: dropout.

    Raises:
        ValueError: unknown kind, sizes below 1, an even kernel.
    """

    def __init__(
        self,
        kind: str,
        d_model: int,
        d_ff: int,
        kernel_size: int,
        act: str | dict[str, Any] | None,
        dropout_rate: float,
    ) -> None:
        super().__init__()
        if kind not in FF_TYPES:
            raise ValueError(unknown_choice("ff_type", kind, FF_TYPES))
        if d_ff < 1:
            raise ValueError(f"d_ff must be positive, got {d_ff}")
        self.w_1: nn.Module
        self.w_2: nn.Module
        if kind == "linear":
            self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        else:
            if kernel_size < 1 or kernel_size % 2 == 0:
                raise ValueError(f"ff_kernel_size must be odd, got {kernel_size}")
            self.w_1 = make_conv(1, d_model, d_ff, kernel_size)
            self.w_2 = make_conv(1, d_ff, d_model, kernel_size if kind == "conv1dx2" else 1)
        self.act = frame_activation(act)
        self.dropout = nn.Dropout(dropout_rate)

    @property
    def receptive_field(self) -> ReceptiveField:
        return ReceptiveField.of(self.w_1).then(ReceptiveField.of(self.w_2))

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """(batch, time, d_model) -> the same shape."""
        x = _along_time(self.w_1, x, padding)
        return _along_time(self.w_2, self.dropout(self.act(x)), padding)


def _along_time(layer: nn.Module, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    if isinstance(layer, nn.Conv1d):
        return apply_conv(layer, x.transpose(1, 2), padding)[0].transpose(1, 2)
    return layer(x)
