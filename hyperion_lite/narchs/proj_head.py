"""Projections: of frames before pooling, and of pooled vectors to the embedding of a DINO model."""

from __future__ import annotations

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.norm import BatchNorm1d
from hyperion_lite.narchs.classif_head import head_norm
from hyperion_lite.narchs.net_arch import NetArch, Shape


class FrameProjection(nn.Module):
    """Linear map of every frame, then batch norm; no activation. Tensors ``bn1`` and ``conv1``.

    Args:
        in_feats: features of a frame.
        out_feats: features after the projection.
        use_norm: whether there is a norm.
    """

    def __init__(self, in_feats: int, out_feats: int, use_norm: bool = True) -> None:
        super().__init__()
        self.bn1 = BatchNorm1d(out_feats) if use_norm else None
        self.conv1 = nn.Conv1d(in_feats, out_feats, 1)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        """(batch, in_feats, time) -> (batch, out_feats, time)."""
        x = self.conv1(x if padding is None else padding.fill(x))
        return x if self.bn1 is None else self.bn1(x, padding)


class ProjHead(NetArch):
    """Norm and linear map from pooled vectors to embeddings. Tensors ``_norm_layer`` and ``proj``.

    Args:
        in_feats: dimension of the pooled vectors.
        out_feats: dimension of the embedding.
        norm_layer: kind of norm, null for batch-norm.
        use_norm: whether there is a norm.
        norm_before: norm of the input (the linear map has a bias then), not of the output.
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int = 256,
        norm_layer: str | None = None,
        use_norm: bool = True,
        norm_before: bool = True,
    ) -> None:
        super().__init__()
        self.in_feats = in_feats
        self.out_feats = out_feats
        self.use_norm = use_norm
        self.norm_before = norm_before
        self._norm_layer = (
            head_norm(norm_layer, in_feats if norm_before else out_feats, out_feats) if use_norm else None
        )
        self.proj = nn.Linear(in_feats, out_feats, bias=norm_before or not use_norm)

    def in_shape(self) -> Shape:
        return None, self.in_feats

    def out_shape(self, in_shape: Shape | None = None) -> Shape:
        return (None if in_shape is None else in_shape[0]), self.out_feats

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project pooled vectors; there is no time axis and so no lengths.

        Args:
            x: (batch, in_feats) floating point.

        Returns:
            Embeddings (batch, out_feats).

        In ``train()`` batch norm uses the statistics of the batch and updates its running ones; nothing else differs from ``eval()``.
        """
        if self._norm_layer is not None and self.norm_before:
            return self.proj(self._norm_layer(x))
        x = self.proj(x)
        return x if self._norm_layer is None else self._norm_layer(x)
