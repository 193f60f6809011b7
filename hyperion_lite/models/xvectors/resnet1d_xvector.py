"""``ResNet1dXVector``: x-vector with a 1-D residual, Res2Net or ECAPA-TDNN encoder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.resnet1d_encoder import ResNet1dEncoder


class ResNet1dXVector(XVector):
    """X-vector with a 1-D residual encoder. ``norm_layer``, ``norm_before`` and ``dropout_rate`` are those of the head alone.

    Args:
        resnet_enc: configuration of :class:`~hyperion_lite.narchs.resnet1d_encoder.ResNet1dEncoder`.
        num_classes: number of classes.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"resnet_enc": ResNet1dEncoder, "pool_net": GlobalPool1dFactory}
    config_exclude: ClassVar[Collection[str]] = ("encoder_cfg",)
    encoder_key: ClassVar[str | None] = "resnet_enc"

    def __init__(self, resnet_enc: dict[str, Any] | ResNet1dEncoder, num_classes: int, **options: Any) -> None:
        encoder = resnet_enc if isinstance(resnet_enc, ResNet1dEncoder) else ResNet1dEncoder.from_config(resnet_enc)
        super().__init__(encoder, num_classes, **options)

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments as plain JSON types, and ``class_name``."""
        config = super().get_config()
        # this model has one kind of encoder: its class name would say nothing
        config["resnet_enc"].pop("class_name", None)
        return config
