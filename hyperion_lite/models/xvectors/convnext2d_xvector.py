"""``ConvNext2dXVector``: x-vector with a 2-D ConvNeXt encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.convnext_xvector import ConvNextXVector
from hyperion_lite.narchs.convnext2d_encoder import ConvNext2dEncoder


class ConvNext2dXVector(ConvNextXVector):
    """X-vector with a 2-D ConvNeXt encoder. ``norm_layer``, ``norm_before`` and ``dropout_rate`` are those of the head alone.

    Args:
        convnext_enc: configuration of :class:`~hyperion_lite.narchs.convnext2d_encoder.ConvNext2dEncoder`, without a head.
        num_classes: number of classes.
        in_feats: features per input frame; the configuration of the encoder may say it instead.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.

    Raises:
        ConfigError: ``in_feats`` is missing or contradicts the encoder; the encoder has a head of its own; values that do not go together.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"convnext_enc": ConvNext2dEncoder, "pool_net": GlobalPool1dFactory}

    def __init__(
        self,
        convnext_enc: dict[str, Any] | ConvNext2dEncoder,
        num_classes: int,
        in_feats: int | None = None,
        **options: Any,
    ) -> None:
        said = convnext_enc.in_feats if isinstance(convnext_enc, ConvNext2dEncoder) else convnext_enc.get("in_feats")
        in_feats = said if in_feats is None else in_feats
        if in_feats is None:
            raise ConfigError("ConvNext2dXVector needs in_feats, the number of features per frame")
        if said not in (None, in_feats):
            raise ConfigError(f"ConvNext2dXVector has in_feats = {in_feats}, but convnext_enc has in_feats = {said}")
        if isinstance(convnext_enc, Mapping):
            convnext_enc = {**convnext_enc, "in_feats": in_feats}
        super().__init__(self.make_encoder(convnext_enc), num_classes, **options)
        self._update_config(in_feats=in_feats)

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments as plain JSON types, and ``class_name``; ``in_feats`` beside the encoder's, where files have it."""
        config = super().get_config()
        config["convnext_enc"].pop("in_feats", None)
        return config
