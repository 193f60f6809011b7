"""The configuration of the part of an x-vector behind the pooling, and how it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.margin_losses import LossType
from hyperion_lite.narchs.classif_head import ClassifHead, check_layer
from hyperion_lite.narchs.dino_head import DINOHead
from hyperion_lite.narchs.proj_head import ProjHead

HeadType = Literal["x-vector", "dino"]


@dataclass(frozen=True)
class HeadSettings:
    """Configuration keys of the head, by the names and with the meaning that they have in the x-vector."""

    num_classes: int
    embed_dim: int
    num_embed_layers: int
    hid_act: str | dict[str, Any] | None
    loss_type: LossType
    cos_scale: float
    margin: float
    margin_warmup_epochs: float
    intertop_k: int
    intertop_margin: float
    num_subcenters: int
    norm_layer: str | None
    head_norm_layer: str | None
    norm_before: bool
    head_use_norm: bool
    head_use_in_norm: bool
    head_hid_dim: int
    head_bottleneck_dim: int
    proj_head_use_norm: bool
    proj_head_norm_before: bool
    dropout_rate: float
    embed_layer: int
    head_type: HeadType
    margin_warmup_steps: int

    @property
    def head_norm_kind(self) -> str | None:
        """Kind of norm in the head: that of the encoder unless given, and no instance norm, which would zero a vector."""
        if self.head_norm_layer is not None:
            return self.head_norm_layer
        return "batch-norm" if self.norm_layer in ("instance-norm", "instance-norm-affine") else self.norm_layer

    def make(self, in_feats: int) -> tuple[ProjHead | None, ClassifHead | DINOHead]:
        """Build the parts behind a pooled vector of ``in_feats``: projection (DINO only) and head.

        Raises:
            ConfigError: values that do not go together.
        """
        if self.head_type == "x-vector":
            return None, self._classif_head(in_feats)
        if self.head_type == "dino":
            proj = ProjHead(
                in_feats, self.embed_dim, self.head_norm_kind, self.proj_head_use_norm, self.proj_head_norm_before
            )
            return proj, self._dino_head()
        raise ConfigError(f"head_type must be 'x-vector' or 'dino', got {self.head_type!r}")

    def _classif_head(self, in_feats: int) -> ClassifHead:
        try:
            check_layer(self.embed_layer, self.num_embed_layers, "embed_layer")
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return ClassifHead(
            in_feats,
            self.num_classes,
            embed_dim=self.embed_dim,
            num_embed_layers=self.num_embed_layers,
            hid_act=self.hid_act,
            loss_type=self.loss_type,
            cos_scale=self.cos_scale,
            margin=self.margin,
            margin_warmup_epochs=self.margin_warmup_epochs,
            intertop_k=self.intertop_k,
            intertop_margin=self.intertop_margin,
            num_subcenters=self.num_subcenters,
            norm_layer=self.head_norm_kind,
            use_norm=self.head_use_norm,
            norm_before=self.norm_before,
            use_in_norm=self.head_use_in_norm,
            dropout_rate=self.dropout_rate,
            margin_warmup_steps=self.margin_warmup_steps,
        )

    def _dino_head(self) -> DINOHead:
        if self.loss_type not in ("softmax", "cos-softmax"):
            raise ConfigError(f"a dino head needs loss_type softmax or cos-softmax, not {self.loss_type!r}")
        return DINOHead(
            self.embed_dim,
            self.num_classes,
            hid_feats=self.head_hid_dim,
            bottleneck_feats=self.head_bottleneck_dim,
            num_hid_layers=self.num_embed_layers,
            hid_act=self.hid_act,
            output_type=self.loss_type,
            norm_layer=self.head_norm_kind,
            use_norm=self.head_use_norm,
            norm_before=self.norm_before,
            dropout_rate=self.dropout_rate,
        )
