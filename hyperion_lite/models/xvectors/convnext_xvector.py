"""What the x-vectors with ConvNeXt encoders share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.models.xvectors.encoder_xvector import EncoderXVector
from hyperion_lite.narchs.net_arch import NetArch


class ConvNextXVector(EncoderXVector, abstract=True):
    """Base of the x-vectors with a ConvNeXt encoder, whose configuration lies under ``convnext_enc``."""

    encoder_key: ClassVar[str | None] = "convnext_enc"

    @classmethod
    def make_encoder(cls, config: Mapping[str, Any] | NetArch) -> Any:
        """As in the base class.

        Raises:
            ConfigError: the encoder has a head of its own, which leaves no frames.
        """
        encoder = super().make_encoder(config)
        if encoder.head_channels:
            raise ConfigError(
                f"{cls.__name__}.convnext_enc: head_channels = {encoder.head_channels} leaves one vector an item and no frames to pool; "
                "an x-vector needs head_channels = 0"
            )
        return encoder
