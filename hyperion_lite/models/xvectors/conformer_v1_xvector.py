"""``ConformerV1XVector``: x-vector with a Conformer encoder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.conformer_encoder_v1 import ConformerEncoderV1


class ConformerV1XVector(XVector):
    """X-vector with a Conformer encoder. ``norm_layer``, ``norm_before`` and ``dropout_rate`` are those of the head alone.

    Args:
        encoder: configuration of :class:`~hyperion_lite.narchs.conformer_encoder_v1.ConformerEncoderV1`.
        num_classes: number of classes.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"encoder": ConformerEncoderV1, "pool_net": GlobalPool1dFactory}
    config_exclude: ClassVar[Collection[str]] = ("encoder_cfg",)
    encoder_key: ClassVar[str | None] = "encoder"

    def __init__(self, encoder: dict[str, Any] | ConformerEncoderV1, num_classes: int, **options: Any) -> None:
        if not isinstance(encoder, ConformerEncoderV1):
            # x-vectors have no choice of axes, whatever the encoder had where it comes from
            encoder = ConformerEncoderV1.from_config({**encoder, "in_time_dim": 2, "out_time_dim": 2})
        super().__init__(encoder, num_classes, **options)

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments as plain JSON types, and ``class_name``."""
        config = super().get_config()
        # this model has one kind of encoder: its class name would say nothing
        config["encoder"].pop("class_name", None)
        return config
