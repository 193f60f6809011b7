"""``Wav2ETDNNXVector``: features and an x-vector with an extended time-delay network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.models.xvectors.etdnn_xvector import ETDNNXVector
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN


class Wav2ETDNNXVector(Wav2XVector):
    """Waveform model with an extended time-delay network.

    Args:
        feats: configuration of :class:`~hyperion_lite.narchs.audio_feats_mvn.AudioFeatsMVN`.
        xvector: configuration of :class:`~hyperion_lite.models.xvectors.etdnn_xvector.ETDNNXVector`.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"feats": AudioFeatsMVN, "xvector": ETDNNXVector}
    xvector_class: ClassVar[type[XVector] | None] = ETDNNXVector

    def __init__(
        self,
        feats: dict[str, Any] | AudioFeatsMVN,
        xvector: dict[str, Any] | ETDNNXVector,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__(feats, xvector, channel_policy)
