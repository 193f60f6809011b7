"""``MHFAXVector``: x-vector without an encoder of its own, for frames of a pretrained one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.identity_encoder import IdentityEncoder

_MHFA_SIZES = {"num_heads": 64, "d_k": 128, "d_v": 128}
"""Those of the paper, for encoders of the size of WavLM Base."""


class MHFAXVector(XVector):
    """Pooling and head directly on the hidden states of a pretrained encoder, which lie beside each other in every frame.

    With the default pooling this is multi-head factorised attention, see :class:`~hyperion_lite.layers.mhfa.MHFAPool1d`; its linear
    layer to the embedding is the first layer of the head. The original toolkit does not know this model.

    Args:
        num_classes: number of classes.
        in_feats: features per frame, those of all layers together; waveform models fill it in.
        pool_net: pooling: a type name, or a configuration of :class:`~hyperion_lite.layers.pool_factory.GlobalPool1dFactory`. Waveform
            models fill in the ``num_layers`` of mhfa, which is the type if none is named, with 64 heads on keys and values of 128.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.

    Raises:
        ConfigError: ``in_feats`` is missing; values that do not go together.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"pool_net": GlobalPool1dFactory}
    config_exclude: ClassVar[Collection[str]] = ("encoder_cfg",)
    encoder_key: ClassVar[str | None] = None

    def __init__(
        self,
        num_classes: int,
        in_feats: int | None = None,
        pool_net: str | dict[str, Any] = "mhfa",
        **options: Any,
    ) -> None:
        if in_feats is None:
            raise ConfigError("MHFAXVector needs in_feats, the features of a frame, all layers together")
        super().__init__(IdentityEncoder(in_feats), num_classes, pool_net=self.complete_pooling(pool_net), **options)

    @staticmethod
    def complete_pooling(pool_net: str | Mapping[str, Any], num_layers: int | None = None) -> dict[str, Any]:
        """The configuration of the pooling with the defaults of this model, and the number of layers where it needs one and it is known."""
        pool: dict[str, Any] = {"pool_type": pool_net} if isinstance(pool_net, str) else dict(pool_net)
        if pool.setdefault("pool_type", "mhfa") == "mhfa":
            pool = {**_MHFA_SIZES, **pool}
            if num_layers is not None:
                pool["num_layers"] = num_layers
        return pool
