"""``XVector``: encoder, pooling over time, and a head that gives embeddings and class scores."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.layer_stack import LayerStack
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.margin_losses import LossType
from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.head_changes import HeadChanges
from hyperion_lite.models.xvectors.head_settings import HeadSettings
from hyperion_lite.narchs.classif_head import ClassifHead, check_layer
from hyperion_lite.narchs.conv_encoder import ConvEncoder
from hyperion_lite.narchs.net_arch import NetArch
from hyperion_lite.narchs.proj_head import FrameProjection


@dataclass
class XVectorOutput:
    """What the forward pass was asked for; the rest is ``None``.

    Attributes:
        logits: (batch, num_classes).
        h_enc: frames of the asked encoder layers, (batch, channels, [freq,] time), zero in the padding.
        h_classif: outputs of the asked head layers, (batch, features).
        h_feats: frames of a front end, where a model has one that can be asked.
        h_feats_lengths: (batch,) valid frames of ``h_feats``, ``None`` when nothing is padded.
        h_enc_lengths: (batch,) valid frames for each of ``h_enc``; its entries are ``None`` without lengths.
    """

    logits: torch.Tensor | None = None
    h_enc: list[torch.Tensor] | None = None
    h_classif: list[torch.Tensor] | None = None
    h_feats: list[torch.Tensor] | None = None
    h_enc_lengths: list[torch.Tensor | None] | None = None
    h_feats_lengths: torch.Tensor | None = None


class XVector(HeadChanges):
    """Encoder, optional projection of its frames, pooling over time, and a head.

    The input are feature sequences (batch, in_feats, time). Tensors: ``encoder_net``, ``proj``, ``pool_net``, ``proj_head_net``,
    ``classif_net``.

    Train modes (:meth:`set_train_mode`):
        full: everything learns.
        frozen: nothing learns, everything is in evaluation mode.
        ft-embed-affine: the head from layer ``embed_layer`` on learns; encoder, projection of frames, pooling and earlier layers of the
            head are frozen, and in evaluation mode.

    Args:
        encoder_cfg: configuration of the encoder, with its ``class_name``.
        num_classes: number of classes; of prototypes with a dino head.
        pool_net: pooling: a type name, or a configuration of :class:`~hyperion_lite.layers.pool_factory.GlobalPool1dFactory`.
        embed_dim: dimension of the embedding.
        num_embed_layers: number of layers of the head.
        hid_act: activation of the head: a name, or a mapping with ``name`` and arguments, or null.
        loss_type: output layer: softmax, cos-softmax, arc-softmax or subcenter-arc-softmax.
        cos_scale: scale of the cosines.
        margin: margin of the true class in training.
        margin_warmup_epochs: epochs over which margins grow from 0.
        intertop_k: number of wrong classes with a margin of their own.
        intertop_margin: that margin, 0 for none.
        num_subcenters: prototypes per class of subcenter-arc-softmax.
        norm_layer: kind of norm in the encoder, null for batch-norm.
        head_norm_layer: kind of norm in the head; null takes ``norm_layer``, with batch norm for the instance norms.
        use_norm: whether the projection of frames has a norm.
        norm_before: norm before the activation.
        head_use_norm: whether the layers of the head have norms.
        head_use_in_norm: normalise the pooled vector, and have no norm in the last layer; needs ``norm_before`` false.
        head_hid_dim: dimension of the hidden layers of a dino head.
        head_bottleneck_dim: dimension of the last layer of a dino head.
        proj_head_use_norm: whether the projection to the embedding, in a dino model, has a norm.
        proj_head_norm_before: whether that norm is on its input.
        dropout_rate: dropout.
        embed_layer: layer of the head that gives the embedding.
        proj_feats: project the encoder's frames to this dimension before pooling; null for no projection.
        head_type: x-vector or dino.
        bias_weight_decay: weight decay of biases and norms; null for the optimizer's own.
        margin_warmup_steps: warm-up of margins in optimizer steps, in place of epochs when positive.

    Raises:
        ConfigError: values that do not go together.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"pool_net": GlobalPool1dFactory}
    own_config_keys: ClassVar[Collection[str]] = ("margin_warmup_steps",)
    valid_train_modes: ClassVar[Sequence[str]] = ("full", "frozen", "ft-embed-affine")
    # the configuration key that holds the encoder; None where its keys are flat
    encoder_key: ClassVar[str | None] = "encoder_cfg"

    @classmethod
    def nested_class(cls, key: str, value: Mapping[str, Any]) -> type[Configurable] | None:
        """As in the base class; an encoder that no subclass fixes is found by its ``class_name``."""
        if key == "encoder_cfg" and "class_name" in value:
            return NetArch.class_by_name(str(value["class_name"]))
        return super().nested_class(key, value)

    def __init__(
        self,
        encoder_cfg: dict[str, Any] | NetArch,
        num_classes: int,
        pool_net: str | dict[str, Any] = "mean+stddev",
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
        head_norm_layer: str | None = None,
        use_norm: bool = True,
        norm_before: bool = True,
        head_use_norm: bool = True,
        head_use_in_norm: bool = False,
        head_hid_dim: int = 2048,
        head_bottleneck_dim: int = 256,
        proj_head_use_norm: bool = True,
        proj_head_norm_before: bool = True,
        dropout_rate: float = 0.0,
        embed_layer: int = 0,
        proj_feats: int | None = None,
        head_type: Literal["x-vector", "dino"] = "x-vector",
        bias_weight_decay: float | None = None,
        margin_warmup_steps: int = 0,
    ) -> None:
        super().__init__()
        hid_act = copy.deepcopy(hid_act)
        settings = {key: value for key, value in locals().items() if key in HeadSettings.__dataclass_fields__}
        self.bias_weight_decay = bias_weight_decay
        self.encoder_net = encoder_cfg if isinstance(encoder_cfg, NetArch) else NetArch.create(encoder_cfg)
        frame_dim = math.prod(size for size in self.encoder_net.out_shape()[1:-1] if size is not None)
        self.proj = None if proj_feats is None else FrameProjection(frame_dim, proj_feats, use_norm)
        frame_dim = frame_dim if proj_feats is None else proj_feats
        self.pool_net = GlobalPool1dFactory.create_for(pool_net, frame_dim)
        if self.pool_net.dim not in (-1, 2):
            raise ConfigError(
                f"pool_net.dim must be -1, the time axis of the encoder's frames, got {self.pool_net.dim}"
            )
        self._pooled_dim = self.pool_net.out_feats(frame_dim)
        self._settings = HeadSettings(**settings)
        self.proj_head_net, self.classif_net = self._settings.make(self._pooled_dim)
        self._update_config(pool_net=self.pool_net)
        if self.encoder_key is not None:
            self._update_config(**{self.encoder_key: self.encoder_net})

    @property
    def embed_dim(self) -> int:
        """Dimension of the embedding."""
        return self._settings.embed_dim

    @property
    def in_feats(self) -> int:
        """Features per input frame."""
        return self._encoder.in_feats

    @property
    def min_length(self) -> int:
        """Frames of the shortest input that the model accepts."""
        return self.encoder_net.min_length

    @property
    def _encoder(self) -> ConvEncoder:
        return cast(ConvEncoder, self.encoder_net)

    def layer_stack(self) -> LayerStack | None:
        """The encoder and its layers."""
        return LayerStack(self.encoder_net, tuple(self.encoder_net.encoder_layers()))

    def frozen_modules(self, mode: str) -> list[torch.nn.Module]:
        """The parts that a train mode freezes, see the class."""
        if mode != "ft-embed-affine":
            return super().frozen_modules(mode)
        frozen: list[torch.nn.Module] = [
            module for module in (self.encoder_net, self.proj, self.pool_net) if module is not None
        ]
        if isinstance(self.classif_net, ClassifHead):
            frozen += self.classif_net.layers_before(self.embed_layer)
        return frozen

    def _pool(self, h: torch.Tensor, h_lengths: torch.Tensor | None) -> torch.Tensor:
        """Frames of the encoder to the input of the head."""
        h = h.flatten(1, -2)
        padding = Padding.from_lengths(h_lengths, h.size(0), h.size(-1), "encoder lengths")
        if self.proj is not None:
            h = self.proj(h, padding)
        pooled = self.pool_net(h, padding).flatten(1)
        return pooled if self.proj_head_net is None else self.proj_head_net(pooled)

    def forward(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        enc_layers: Sequence[int | str] | None = None,
        classif_layers: Sequence[int] | None = None,
        return_output: bool = True,
    ) -> torch.Tensor | XVectorOutput:
        """Classify feature sequences.

        Args:
            x: (batch, in_feats, time) floating point.
            x_lengths: (batch,) integers, valid frames before right padding, or (batch, time) bool mask, True = valid. What the padding
                holds has no influence. ``None``: all frames are valid.
            y: (batch,) integer classes; they get the margin in ``train()`` and have no effect in ``eval()``.
            enc_layers: layers of the encoder to return: 0 is its first convolution, ``i`` its ``i``-th layer; or stage names.
            classif_layers: layers of the head to return, from 0, or -1 for the last.
            return_output: whether logits are wanted too when layers are asked for.

        Returns:
            Logits (batch, num_classes); or, when layers are asked for, an :class:`XVectorOutput` with the asked fields.

        In ``train()`` batch norm uses the statistics of the valid positions of the batch, dropout acts, and labels get margins; in
        ``eval()`` an item's result is the one it has alone. State changed in ``train()``: running statistics, counts of sub-centres.

        Raises:
            ValueError: shapes, lengths, labels or layers that do not fit; an item shorter than :attr:`min_length`.
        """
        if enc_layers is None and classif_layers is None:
            return self.classif_net(self._pool(*self.encoder_net(x, x_lengths)), y)
        encoded = self._encoder.forward_hid_feats(x, x_lengths, () if enc_layers is None else enc_layers)
        output = XVectorOutput()
        if enc_layers is not None:
            output.h_enc = [encoded.feats[layer] for layer in enc_layers]
            output.h_enc_lengths = [encoded.lengths[layer] for layer in enc_layers]
        if return_output or classif_layers is not None:
            pooled = self._pool(encoded.output, encoded.output_lengths)
            layers = () if classif_layers is None else classif_layers
            h_classif, output.logits = self.classif_net.forward_hid_feats(pooled, y, layers, return_output)
            output.h_classif = None if classif_layers is None else h_classif
        return output

    def extract_embed(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor | None = None,
        chunk_length: int = 0,
        embed_layer: int | None = None,
        detach_chunks: bool = False,
    ) -> torch.Tensor:
        """Embeddings of feature sequences. Call ``eval()`` first, and use ``torch.inference_mode()`` unless gradients are wanted.

        Args:
            x: (batch, in_feats, time) floating point.
            x_lengths: as in :meth:`forward`.
            chunk_length: frames that the encoder sees at a time, its context included; 0 for all. A convolutional encoder gives the same
                embedding then; one with parts that see all frames (squeeze-excitation) does not.
            embed_layer: layer of the head to take, from 0, or -1 for the last; the configured one by default. A DINO head has no choice.
            detach_chunks: keep no graph of the chunks.

        Returns:
            (batch, embed_dim), what comes before the activation of the layer, not length-normalised.

        Raises:
            ValueError: as in :meth:`forward`; a chunk shorter than the encoder's context; a layer that does not exist.
        """
        layer = self.embed_layer if embed_layer is None else embed_layer
        if isinstance(self.classif_net, ClassifHead):
            check_layer(layer, self.classif_net.num_embed_layers, "embed_layer")
        if isinstance(chunk_length, bool) or int(chunk_length) != chunk_length:
            raise ValueError(f"chunk_length is a whole number of frames, got {chunk_length!r}")
        if chunk_length == 0:
            h, h_lengths = self.encoder_net(x, x_lengths)
        else:
            h, h_lengths = self._encoder.forward_chunked(x, x_lengths, int(chunk_length), detach_chunks)
        pooled = self._pool(h, h_lengths)
        return self.classif_net.extract_embed(pooled, layer) if isinstance(self.classif_net, ClassifHead) else pooled
