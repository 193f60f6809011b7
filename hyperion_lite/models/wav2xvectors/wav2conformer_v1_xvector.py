"""``Wav2ConformerV1XVector``: features and an x-vector with a Conformer encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.models.xvectors.conformer_v1_xvector import ConformerV1XVector
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN


class Wav2ConformerV1XVector(Wav2XVector):
    """Waveform model with a Conformer encoder.

    Args:
        feats: configuration of :class:`~hyperion_lite.narchs.audio_feats_mvn.AudioFeatsMVN`.
        xvector: configuration of :class:`~hyperion_lite.models.xvectors.conformer_v1_xvector.ConformerV1XVector`.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"feats": AudioFeatsMVN, "xvector": ConformerV1XVector}
    xvector_class: ClassVar[type[XVector] | None] = ConformerV1XVector

    def __init__(
        self,
        feats: dict[str, Any] | AudioFeatsMVN,
        xvector: dict[str, Any] | ConformerV1XVector,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__(feats, xvector, channel_policy)
