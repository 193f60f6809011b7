"""The convolution part of Conformer blocks (Gulati et al., 2020)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conv import apply_conv, make_conv
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.squeeze_excitation import make_se
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.layers.norm import make_norm

_BATCH_NORM_EPS = 1e-3
"""That of existing models. Other norms have the epsilon that they have everywhere, 1e-5."""
_MAX_NORM_GROUPS = 32


class ConformerConvBlock(nn.Module):
    """Layer norm, gated expansion, depth-wise convolution along time, norm, activation, projection; added to the input.

    With a stride, the input is added at the frames that the convolution is centred on.

    Args:
        d_model: channels.
        kernel_size: of the depth-wise convolution, odd.
        stride: of the depth-wise convolution.
        act: activation.
        norm_layer: norm after the depth-wise convolution, ``None`` for batch-norm.
        se_r: reduction of squeeze-excitation behind the activation; none unless it is above 1.
        dropout_rate: dropout of the projection.

    Raises:
        ValueError: an even kernel, a stride below 1, an unknown norm, a reduction that leaves no hidden unit.
    """

    def __init__(
        self,
        d_model: int,
        kernel_size: int,
        stride: int,
        act: str | dict[str, Any] | None,
        norm_layer: str | None,
        se_r: float | None,
        dropout_rate: float,
    ) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_sizes must be odd, got {kernel_size}")
        if stride < 1:
            raise ValueError(f"conv_strides must be positive, got {stride}")
        self.stride = stride
        self.layer_norm = nn.LayerNorm(d_model)
        self.conv_exp = make_conv(1, d_model, 2 * d_model)
        self.conv_dw = make_conv(1, d_model, d_model, kernel_size, stride, groups=d_model, bias=False)
        is_batch_norm = norm_layer in (None, "batch-norm")
        groups = max(min(d_model // 2, _MAX_NORM_GROUPS), 1)
        self.norm_dw = make_norm(norm_layer, d_model, 1, groups, _BATCH_NORM_EPS if is_batch_norm else 1e-5)
        self.act = make_activation(act)
        self.se_layer = make_se("cw-se", 1, d_model, 0, se_r, act) if se_r is not None and se_r > 1 else None  # type: ignore[arg-type]
        self.conv_proj = make_conv(1, d_model, d_model)
        self.dropout = nn.Dropout(dropout_rate)

    @property
    def receptive_field(self) -> ReceptiveField:
        return ReceptiveField.of(self.conv_dw)

    def norm_pairs(self) -> list[tuple[str, str]]:
        """(convolution, norm) names where the norm directly follows."""
        return [("conv_dw", "norm_dw")]

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, time, d_model) -> (batch, time', d_model) and the padding at the new resolution."""
        u = F.glu(self.conv_exp(self.layer_norm(x).transpose(1, 2)), dim=1)
        u, padding = apply_conv(self.conv_dw, u, padding)
        u = self.act(self.norm_dw(u, padding))
        if self.se_layer is not None:
            u = self.se_layer(u, padding)
        return x[:, :: self.stride] + self.dropout(self.conv_proj(u)).transpose(1, 2), padding
