"""``TDNNXVector``: x-vector with a time-delay network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, TypeVar

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.models.frontend_rules import FrontendRules
from hyperion_lite.models.xvectors.encoder_xvector import EncoderXVector
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.tdnn_encoder import TDNNEncoder
from hyperion_lite.serialization.artifact import ModelArtifact

_M = TypeVar("_M", bound="TDNNXVector")

ENCODER_KEY = "tdnn_enc"


def refuse_foreign_tdnn(artifact: ModelArtifact) -> None:
    """Raise :class:`ModelFileError` if ``artifact`` holds the time-delay network of the original toolkit.

    That has the same class name and is another network, with its keys flat in the configuration. Ours are told by ``tdnn_enc``.
    """
    config = artifact.config.get("xvector", artifact.config)
    if not isinstance(config, Mapping) or ENCODER_KEY not in config:
        raise ModelFileError(
            f"{artifact.source} holds a {artifact.class_name} without {ENCODER_KEY!r}: it is the time-delay network of the original "
            "toolkit, which has the same name but another structure and cannot be loaded; its tensors can be read with hyperion_lite.pth"
        )


class TDNNXVector(EncoderXVector):
    """X-vector with a time-delay network. ``norm_layer``, ``norm_before`` and ``dropout_rate`` are those of the head alone.

    The x-vector of Snyder et al. (2018, doi:10.1109/ICASSP.2018.8461375) has ``embed_dim: 512``, ``num_embed_layers: 2``,
    ``norm_before: false`` and ``loss_type: softmax``; the embedding is that of layer 0.

    The original toolkit has a class of this name that is another network; its files are refused.

    Args:
        tdnn_enc: configuration of :class:`~hyperion_lite.narchs.tdnn_encoder.TDNNEncoder`.
        num_classes: number of classes.
        options: the other arguments of :class:`~hyperion_lite.models.xvectors.xvector.XVector`, by name.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {ENCODER_KEY: TDNNEncoder, "pool_net": GlobalPool1dFactory}
    own_config_keys: ClassVar[Collection[str]] = (*XVector.own_config_keys, ENCODER_KEY)
    encoder_key: ClassVar[str | None] = ENCODER_KEY

    def __init__(self, tdnn_enc: dict[str, Any] | TDNNEncoder, num_classes: int, **options: Any) -> None:
        super().__init__(self.make_encoder(tdnn_enc), num_classes, **options)

    @classmethod
    def from_artifact(
        cls: type[_M], artifact: ModelArtifact, strict: bool = True, frontend_rules: FrontendRules = "auto"
    ) -> _M:
        """As in the base class.

        Raises:
            ModelFileError: also for a file of the original toolkit's class of this name.
        """
        refuse_foreign_tdnn(artifact)
        return super().from_artifact(artifact, strict, frontend_rules)
