"""``ETDNNXVector``: x-vector with an extended time-delay network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.tdnn_xvector import ENCODER_KEY, TDNNXVector
from hyperion_lite.narchs.etdnn_encoder import ETDNNEncoder


class ETDNNXVector(TDNNXVector):
    """X-vector with an extended time-delay network. ``norm_layer``, ``norm_before`` and ``dropout_rate`` are those of the head alone.

    Args:
        tdnn_enc: configuration of :class:`~hyperion_lite.narchs.etdnn_encoder.ETDNNEncoder`.
        num_classes: number of classes.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {ENCODER_KEY: ETDNNEncoder, "pool_net": GlobalPool1dFactory}

    def __init__(self, tdnn_enc: dict[str, Any] | ETDNNEncoder, num_classes: int, **options: Any) -> None:
        super().__init__(tdnn_enc, num_classes, **options)
