"""``Wav2ConvNext2dXVector``: features and an x-vector with a 2-D ConvNeXt encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.models.xvectors.convnext2d_xvector import ConvNext2dXVector
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN


class Wav2ConvNext2dXVector(Wav2XVector):
    """Waveform model with a 2-D ConvNeXt encoder.

    Args:
        feats: configuration of :class:`~hyperion_lite.narchs.audio_feats_mvn.AudioFeatsMVN`.
        xvector: configuration of :class:`~hyperion_lite.models.xvectors.convnext2d_xvector.ConvNext2dXVector`.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"feats": AudioFeatsMVN, "xvector": ConvNext2dXVector}
    xvector_class: ClassVar[type[XVector] | None] = ConvNext2dXVector

    def __init__(
        self,
        feats: dict[str, Any] | AudioFeatsMVN,
        xvector: dict[str, Any] | ConvNext2dXVector,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__(feats, xvector, channel_policy)
