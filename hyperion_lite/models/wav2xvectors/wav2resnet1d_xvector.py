"""``Wav2ResNet1dXVector``: features and an x-vector with a 1-D residual, Res2Net and ECAPA-TDNN encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.models.xvectors.resnet1d_xvector import ResNet1dXVector
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN


class Wav2ResNet1dXVector(Wav2XVector):
    """Waveform model with a 1-D residual, Res2Net and ECAPA-TDNN encoder.

    Args:
        feats: configuration of :class:`~hyperion_lite.narchs.audio_feats_mvn.AudioFeatsMVN`.
        xvector: configuration of :class:`~hyperion_lite.models.xvectors.resnet1d_xvector.ResNet1dXVector`.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"feats": AudioFeatsMVN, "xvector": ResNet1dXVector}
    xvector_class: ClassVar[type[XVector] | None] = ResNet1dXVector

    def __init__(
        self,
        feats: dict[str, Any] | AudioFeatsMVN,
        xvector: dict[str, Any] | ResNet1dXVector,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__(feats, xvector, channel_policy)
