"""``Wav2TDNNXVector``: features and an x-vector with a time-delay network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from hyperion_lite.models.frontend_rules import FrontendRules
from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.models.xvectors.tdnn_xvector import TDNNXVector, refuse_foreign_tdnn
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN
from hyperion_lite.serialization.artifact import ModelArtifact

_M = TypeVar("_M", bound="Wav2TDNNXVector")


class Wav2TDNNXVector(Wav2XVector):
    """Waveform model with a time-delay network.

    Args:
        feats: configuration of :class:`~hyperion_lite.narchs.audio_feats_mvn.AudioFeatsMVN`.
        xvector: configuration of :class:`~hyperion_lite.models.xvectors.tdnn_xvector.TDNNXVector`.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"feats": AudioFeatsMVN, "xvector": TDNNXVector}
    xvector_class: ClassVar[type[XVector] | None] = TDNNXVector

    def __init__(
        self,
        feats: dict[str, Any] | AudioFeatsMVN,
        xvector: dict[str, Any] | TDNNXVector,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__(feats, xvector, channel_policy)

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
