"""DINO head: from an embedding to scores of self-supervised prototypes (Caron et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.layers.margin_losses import CosLossOutput
from hyperion_lite.narchs.classif_head import check_layer, head_norm
from hyperion_lite.narchs.net_arch import NetArch, Shape


class PrototypeScores(nn.Module):
    """Linear layer whose rows have the length ``weight_g``: row = g * v / |v|, without bias.

    ``weight_g`` (num_prototypes, 1) is a buffer, all ones in a new layer: DINO needs its prototypes to keep one length.

    Args:
        in_feats: input dimension.
        num_prototypes: number of rows.
    """

    weight_g: torch.Tensor

    def __init__(self, in_feats: int, num_prototypes: int) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(nn.Linear(in_feats, num_prototypes, bias=False).weight.detach())
        self.register_buffer("weight_g", torch.ones(num_prototypes, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, in_feats) -> (batch, num_prototypes)."""
        length = torch.linalg.vector_norm(self.weight_v, dim=1, keepdim=True)
        return F.linear(x, self.weight_v * (self.weight_g / length.clamp(min=torch.finfo(length.dtype).tiny)))

    def prototypes(self) -> torch.Tensor:
        """(in_feats, num_prototypes), detached."""
        return self.weight_v.detach().T


class DINOHead(NetArch):
    """Hidden layers, a bottleneck, length normalisation, and prototypes.

    Tensors: ``hid_layers.{i}``, where ``i`` counts every module of the sequence, activations and dropouts too, and ``output``. With one
    layer the sequence is the linear map to the bottleneck alone.

    Args:
        in_feats: dimension of the embedding.
        num_classes: number of prototypes.
        hid_feats: dimension of the hidden layers.
        bottleneck_feats: dimension of the last layer.
        num_hid_layers: number of linear layers in the sequence.
        hid_act: activation: a name, or a mapping with ``name`` and arguments, or null.
        output_type: softmax (prototypes of fixed length) or cos-softmax (cosines).
        norm_layer: kind of norm, null for batch-norm.
        use_norm: whether hidden layers have a norm.
        norm_before: norm before the activation.
        dropout_rate: dropout of hidden layers.

    Raises:
        ConfigError: values that do not go together.
    """

    def __init__(
        self,
        in_feats: int,
        num_classes: int,
        hid_feats: int = 2048,
        bottleneck_feats: int = 256,
        num_hid_layers: int = 3,
        hid_act: str | dict[str, Any] | None = "gelu",
        output_type: Literal["softmax", "cos-softmax"] = "softmax",
        norm_layer: str | None = None,
        use_norm: bool = True,
        norm_before: bool = True,
        dropout_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if num_hid_layers < 1:
            raise ConfigError(f"a DINO head needs at least one layer, got {num_hid_layers}")
        if output_type not in ("softmax", "cos-softmax"):
            raise ConfigError(f"a DINO head has a softmax or cos-softmax output, not {output_type!r}")
        self.in_feats = in_feats
        self.num_classes = num_classes
        self.num_hid_layers = num_hid_layers
        self.output_type = output_type
        layers: list[nn.Module] = []
        # index in the sequence of the last module of each layer
        self._ends: list[int] = []
        for i in range(num_hid_layers - 1):
            layers.append(nn.Linear(in_feats if i == 0 else hid_feats, hid_feats, bias=not (use_norm and norm_before)))
            if use_norm and norm_before:
                layers.append(head_norm(norm_layer, hid_feats, hid_feats))
            layers.append(make_activation(hid_act))
            if use_norm and not norm_before:
                layers.append(head_norm(norm_layer, hid_feats, hid_feats))
            if dropout_rate > 0:
                layers.append(nn.Dropout(dropout_rate))
            self._ends.append(len(layers) - 1)
        layers.append(nn.Linear(in_feats if num_hid_layers == 1 else hid_feats, bottleneck_feats))
        self._ends.append(len(layers) - 1)
        self.hid_layers = nn.Sequential(*layers)
        self.output: PrototypeScores | CosLossOutput
        if output_type == "softmax":
            self.output = PrototypeScores(bottleneck_feats, num_classes)
        else:
            # scores are divided by the temperature of the DINO loss, so cosines are not scaled here, and there is no margin
            self.output = CosLossOutput(bottleneck_feats, num_classes, cos_scale=1, margin=0, intertop_k=0)

    def in_shape(self) -> Shape:
        return None, self.in_feats

    def out_shape(self, in_shape: Shape | None = None) -> Shape:
        return (None if in_shape is None else in_shape[0]), self.num_classes

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """Score embeddings; there is no time axis and so no lengths.

        Args:
            x: (batch, in_feats) floating point.
            y: accepted for the interface of heads, not used.

        Returns:
            Logits of the prototypes (batch, num_classes).

        In ``train()`` batch norm uses the statistics of the batch and updates its running ones, and dropout acts; in ``eval()`` neither.
        """
        return self.forward_hid_feats(x, y, ())[1]

    def forward_hid_feats(
        self, x: torch.Tensor, y: torch.Tensor | None = None, layers: Sequence[int] = (), return_logits: bool = True
    ) -> tuple[list[torch.Tensor], Any]:
        """Outputs of layers, and logits.

        Args:
            x: (batch, in_feats) floating point.
            y: not used.
            layers: layers to return, 0 to num_hid_layers - 1, or -1 for the bottleneck.
            return_logits: whether the prototype scores are wanted.

        Returns:
            The outputs in the order of ``layers``, and the logits (batch, num_classes) or ``None``.

        Raises:
            ValueError: a layer that does not exist.
        """
        wanted = [check_layer(layer, self.num_hid_layers, "classif_layers") for layer in layers]
        outputs: list[torch.Tensor] = []
        for index, layer in enumerate(self.hid_layers):
            x = layer(x)
            if index in self._ends:
                outputs.append(x)
        logits = self.output(F.normalize(x, dim=-1, eps=1e-12)) if return_logits else None
        return [outputs[layer] for layer in wanted], logits

    def update_margin(self, epoch: float, step: int | None = None) -> None:
        """Nothing to do: there is no margin."""
