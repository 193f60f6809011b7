"""Classification head: from a pooled vector to embedding and logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.activation import make_activation
from hyperion_lite.layers.margin_losses import LossType, OutputLayer, make_output_layer
from hyperion_lite.layers.norm import make_norm
from hyperion_lite.narchs.net_arch import NetArch, Shape


def head_norm(kind: str | None, num_features: int, ref_dim: int) -> nn.Module:
    """Normalisation of the vectors in a head.

    Args:
        kind: name of the layer, ``None`` for batch-norm.
        num_features: dimension of the vectors.
        ref_dim: dimension that decides the number of groups of group-norm, min(ref_dim // 8, 32).

    Raises:
        ConfigError: an instance norm, which makes every vector zero.
    """
    if kind in ("instance-norm", "instance-norm-affine"):
        raise ConfigError(f"{kind} of a single vector is zero: choose another norm layer for the head")
    return make_norm(kind, num_features, 1, num_groups=max(1, min(ref_dim // 8, 32)))


class FCBlock(nn.Module):
    """Linear layer with norm and activation, norm before or after the activation, and dropout.

    Args:
        in_feats: input dimension.
        out_feats: output dimension.
        activation: specification of the activation, ``None`` for none.
        norm_layer: kind of norm.
        use_norm: whether there is one.
        norm_before: norm before the activation; then the linear layer has no bias.
        dropout_rate: dropout at the end.
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        activation: str | dict[str, Any] | None,
        norm_layer: str | None = None,
        use_norm: bool = True,
        norm_before: bool = True,
        dropout_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm_before = norm_before
        # registered first: the order of tensors in files
        self.bn1 = head_norm(norm_layer, out_feats, out_feats) if use_norm else None
        self.linear = nn.Linear(in_feats, out_feats, bias=not (use_norm and norm_before))
        self.activation = None if activation is None else make_activation(activation)
        self.dropout = nn.Dropout(dropout_rate) if dropout_rate > 0 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, in_feats) -> (batch, out_feats)."""
        x = self.linear(x)
        if self.bn1 is not None and self.norm_before:
            x = self.bn1(x)
        if self.activation is not None:
            x = self.activation(x)
        if self.bn1 is not None and not self.norm_before:
            x = self.bn1(x)
        return x if self.dropout is None else self.dropout(x)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """The embedding that the block gives: what comes before its activation."""
        x = self.linear(x)
        if self.bn1 is not None and (self.norm_before or self.activation is None):
            x = self.bn1(x)
        return x


def check_targets(y: torch.Tensor, batch_size: int, num_classes: int) -> torch.Tensor:
    """Check target classes and return them as (batch,) int64.

    Raises:
        ValueError: wrong type, shape or range; says which item.
    """
    if not isinstance(y, torch.Tensor) or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        got = str(y.dtype) if isinstance(y, torch.Tensor) else type(y).__name__
        raise ValueError(f"y must be an integer tensor of class indices, got {got}")
    if y.shape != (batch_size,):
        raise ValueError(f"y must have shape ({batch_size},), one class per item, got {tuple(y.shape)}")
    y = y.long()
    outside = (y < 0) | (y >= num_classes)
    if bool(outside.any()):
        item = int(outside.nonzero()[0, 0])
        raise ValueError(f"y[{item}] = {int(y[item])} is not a class of this model: 0 to {num_classes - 1}")
    return y


def check_layer(layer: int, num_layers: int, name: str) -> int:
    """``layer`` as an index in 0 to num_layers - 1; -1 means the last one.

    Raises:
        ValueError: another value.
    """
    if isinstance(layer, bool) or not isinstance(layer, int) or not -1 <= layer < num_layers:
        raise ValueError(f"{name} must be 0 to {num_layers - 1}, or -1 for the last layer, got {layer!r}")
    return num_layers - 1 if layer == -1 else layer


class ClassifHead(NetArch):
    """Fully connected layers, one of which gives the embedding, and an output layer.

    Tensors: ``in_norm`` (with ``use_in_norm``), ``fc_blocks.{i}.bn1``, ``fc_blocks.{i}.linear``, ``output``. The last block has an
    activation only when the loss is ``softmax``: in front of cosines the embedding stays linear.

    Args:
        in_feats: dimension of the input vectors.
        num_classes: number of classes.
        embed_dim: dimension of all layers.
        num_embed_layers: number of layers.
        hid_act: activation: a name, or a mapping with ``name`` and arguments, or null.
        loss_type: output layer: softmax, cos-softmax, arc-softmax or subcenter-arc-softmax.
        cos_scale: scale of the cosines.
        margin: margin of the true class in training.
        margin_warmup_epochs: epochs over which margins grow from 0.
        intertop_k: number of wrong classes with a margin of their own.
        intertop_margin: that margin, 0 for none.
        num_subcenters: prototypes per class of subcenter-arc-softmax.
        norm_layer: kind of norm, null for batch-norm.
        use_norm: whether the layers have norms.
        norm_before: norm before the activation.
        use_in_norm: normalise the input, and have no norm in the last layer; needs ``norm_before`` false.
        dropout_rate: dropout after all layers but the last.
        margin_warmup_steps: warm-up in optimizer steps, in place of epochs when positive.

    Raises:
        ConfigError: values that do not go together.
    """

    own_config_keys = ("margin_warmup_steps",)

    def __init__(
        self,
        in_feats: int,
        num_classes: int,
        embed_dim: int = 256,
        num_embed_layers: int = 1,
        hid_act: str | dict[str, Any] | None = "relu",
        loss_type: LossType = "arc-softmax",
        cos_scale: float = 64,
        margin: float = 0.3,
        margin_warmup_epochs: float = 0,
        intertop_k: int = 5,
        intertop_margin: float = 0,
        num_subcenters: int = 2,
        norm_layer: str | None = None,
        use_norm: bool = True,
        norm_before: bool = True,
        use_in_norm: bool = False,
        dropout_rate: float = 0.0,
        margin_warmup_steps: int = 0,
    ) -> None:
        super().__init__()
        if num_embed_layers < 1:
            raise ConfigError(f"a classification head needs num_embed_layers >= 1, got {num_embed_layers}")
        if use_in_norm and norm_before:
            raise ConfigError("a head with a norm on its input (head_use_in_norm) needs norm_before: false")
        self.in_feats = in_feats
        self.num_classes = num_classes
        self.embed_dim = embed_dim
        self.num_embed_layers = num_embed_layers
        self.loss_type = loss_type
        self._hid_act = hid_act
        self.in_norm = head_norm(norm_layer, in_feats, embed_dim) if use_in_norm else None
        last = num_embed_layers - 1
        self.fc_blocks = nn.ModuleList(
            FCBlock(
                in_feats if i == 0 else embed_dim,
                embed_dim,
                self._activation(i),
                norm_layer,
                use_norm and not (use_in_norm and i == last),
                norm_before,
                dropout_rate if i < last else 0.0,
            )
            for i in range(num_embed_layers)
        )
        self.output: OutputLayer = make_output_layer(
            loss_type,
            embed_dim,
            num_classes,
            cos_scale,
            margin,
            margin_warmup_epochs,
            intertop_k,
            intertop_margin,
            num_subcenters,
            margin_warmup_steps,
        )

    def _activation(self, layer: int) -> str | dict[str, Any] | None:
        return self._hid_act if layer < self.num_embed_layers - 1 or self.loss_type == "softmax" else None

    def in_shape(self) -> Shape:
        return None, self.in_feats

    def out_shape(self, in_shape: Shape | None = None) -> Shape:
        return (None if in_shape is None else in_shape[0]), self.num_classes

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """Classify pooled vectors; there is no time axis and so no lengths.

        Args:
            x: (batch, in_feats) floating point.
            y: (batch,) integer classes. They get the margin in ``train()``; in ``eval()`` they have no effect.

        Returns:
            Logits (batch, num_classes).

        In ``train()`` batch norm uses the statistics of the batch, and dropout acts; in ``eval()`` neither. State changed in
        ``train()``: running statistics, and the counts of sub-centres when ``y`` is given.

        Raises:
            ValueError: ``y`` of wrong type, shape or range.
        """
        return self.forward_hid_feats(x, y, ())[1]

    def forward_hid_feats(
        self, x: torch.Tensor, y: torch.Tensor | None = None, layers: Sequence[int] = (), return_logits: bool = True
    ) -> tuple[list[torch.Tensor], Any]:
        """Outputs of layers, and logits.

        Args:
            x: (batch, in_feats) floating point.
            y: as in :meth:`forward`.
            layers: layers to return, 0 to num_embed_layers - 1, or -1 for the last; complete, with norm, activation and dropout.
            return_logits: whether the output layer is wanted.

        Returns:
            The outputs (batch, embed_dim) in the order of ``layers``, and the logits (batch, num_classes) or ``None``.

        Raises:
            ValueError: a layer that does not exist; ``y`` as in :meth:`forward`.
        """
        wanted = [check_layer(layer, self.num_embed_layers, "classif_layers") for layer in layers]
        if y is not None:
            y = check_targets(y, x.size(0), self.num_classes)
        if self.in_norm is not None:
            x = self.in_norm(x)
        outputs = []
        for block in self.fc_blocks:
            x = block(x)
            outputs.append(x)
        return [outputs[layer] for layer in wanted], self.output(x, y) if return_logits else None

    def extract_embed(self, x: torch.Tensor, embed_layer: int = 0) -> torch.Tensor:
        """Embedding of pooled vectors: all layers before ``embed_layer``, and of that one what comes before its activation.

        Linear and norm where the norm stands before the activation, or where there is no activation; linear alone where a hidden layer
        has its norm after the activation, or has none. Not length-normalised.

        Args:
            x: (batch, in_feats) floating point.
            embed_layer: 0 to num_embed_layers - 1, or -1 for the last layer.

        Returns:
            (batch, embed_dim).

        Raises:
            ValueError: a layer that does not exist.
        """
        embed_layer = check_layer(embed_layer, self.num_embed_layers, "embed_layer")
        if self.in_norm is not None:
            x = self.in_norm(x)
        for block in self.fc_blocks[:embed_layer]:
            x = block(x)
        return self._block(embed_layer).embed(x)

    def _block(self, layer: int) -> FCBlock:
        return cast(FCBlock, self.fc_blocks[layer])

    def layers_before(self, embed_layer: int) -> list[nn.Module]:
        """The parts that come before layer ``embed_layer``: what a fine-tuning of the embedding freezes."""
        embed_layer = check_layer(embed_layer, self.num_embed_layers, "embed_layer")
        before: list[nn.Module] = list(self.fc_blocks[:embed_layer])
        return [self.in_norm, *before] if self.in_norm is not None and before else before

    def update_margin(self, epoch: float, step: int | None = None) -> None:
        """Set the margin for ``epoch`` (from 0) or ``step``; see the output layers."""
        self.output.update_margin(epoch, step)

    def replace_output(self, output: OutputLayer, **config: Any) -> None:
        """Put another output layer in place.

        Args:
            output: the layer.
            config: the configuration keys that it stands for: ``num_classes``, ``loss_type``, ...
        """
        self.output = output
        self._update_config(**config)
        self.num_classes = config.get("num_classes", self.num_classes)
        loss_type = config.get("loss_type", self.loss_type)
        if (loss_type == "softmax") != (self.loss_type == "softmax"):
            self.loss_type = loss_type
            activation = self._activation(self.num_embed_layers - 1)
            self._block(-1).activation = None if activation is None else make_activation(activation)
        self.loss_type = loss_type
