"""``ResNet1dXVector``: x-vector with a 1-D residual, Res2Net or ECAPA-TDNN encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.encoder_xvector import EncoderXVector
from hyperion_lite.narchs.resnet1d_encoder import ResNet1dEncoder


class ResNet1dXVector(EncoderXVector):
    """X-vector with a 1-D residual encoder. ``norm_layer``, ``norm_before`` and ``dropout_rate`` are those of the head alone.

    Args:
        resnet_enc: configuration of :class:`~hyperion_lite.narchs.resnet1d_encoder.ResNet1dEncoder`.
        num_classes: number of classes.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"resnet_enc": ResNet1dEncoder, "pool_net": GlobalPool1dFactory}
    encoder_key: ClassVar[str | None] = "resnet_enc"

    def __init__(self, resnet_enc: dict[str, Any] | ResNet1dEncoder, num_classes: int, **options: Any) -> None:
        super().__init__(self.make_encoder(resnet_enc), num_classes, **options)
