"""``Wav2ConvNext1dXVector``: features and an x-vector with a 1-D ConvNeXt encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.models.xvectors.convnext1d_xvector import ConvNext1dXVector
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN


class Wav2ConvNext1dXVector(Wav2XVector):
    """Waveform model with a 1-D ConvNeXt encoder.

    Args:
        feats: configuration of :class:`~hyperion_lite.narchs.audio_feats_mvn.AudioFeatsMVN`.
        xvector: configuration of :class:`~hyperion_lite.models.xvectors.convnext1d_xvector.ConvNext1dXVector`.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"feats": AudioFeatsMVN, "xvector": ConvNext1dXVector}
    xvector_class: ClassVar[type[XVector] | None] = ConvNext1dXVector

    def __init__(
        self,
        feats: dict[str, Any] | AudioFeatsMVN,
        xvector: dict[str, Any] | ConvNext1dXVector,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__(feats, xvector, channel_policy)
