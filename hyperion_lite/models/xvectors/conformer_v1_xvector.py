"""``ConformerV1XVector``: x-vector with a Conformer encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.encoder_xvector import EncoderXVector
from hyperion_lite.narchs.conformer_encoder_v1 import ConformerEncoderV1


class ConformerV1XVector(EncoderXVector):
    """X-vector with a Conformer encoder. ``norm_layer``, ``norm_before`` and ``dropout_rate`` are those of the head alone.

    Args:
        encoder: configuration of :class:`~hyperion_lite.narchs.conformer_encoder_v1.ConformerEncoderV1`. Its ``in_time_dim`` and
            ``out_time_dim`` are 2 here, whatever it says.
        num_classes: number of classes.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"encoder": ConformerEncoderV1, "pool_net": GlobalPool1dFactory}
    encoder_key: ClassVar[str | None] = "encoder"

    def __init__(self, encoder: dict[str, Any] | ConformerEncoderV1, num_classes: int, **options: Any) -> None:
        if not isinstance(encoder, ConformerEncoderV1):
            encoder = {**encoder, "in_time_dim": 2, "out_time_dim": 2}
        super().__init__(self.make_encoder(encoder), num_classes, **options)
