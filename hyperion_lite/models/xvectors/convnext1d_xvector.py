"""``ConvNext1dXVector``: x-vector with a 1-D ConvNeXt encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.convnext_xvector import ConvNextXVector
from hyperion_lite.narchs.convnext1d_encoder import ConvNext1dEncoder


class ConvNext1dXVector(ConvNextXVector):
    """X-vector with a 1-D ConvNeXt encoder. ``norm_layer``, ``norm_before`` and ``dropout_rate`` are those of the head alone.

    Args:
        convnext_enc: configuration of :class:`~hyperion_lite.narchs.convnext1d_encoder.ConvNext1dEncoder`, without a head.
        num_classes: number of classes.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.

    Raises:
        ConfigError: the encoder has a head of its own; values that do not go together.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"convnext_enc": ConvNext1dEncoder, "pool_net": GlobalPool1dFactory}

    def __init__(self, convnext_enc: dict[str, Any] | ConvNext1dEncoder, num_classes: int, **options: Any) -> None:
        super().__init__(self.make_encoder(convnext_enc), num_classes, **options)
