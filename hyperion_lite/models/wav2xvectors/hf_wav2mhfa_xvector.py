"""Hugging Face encoders with multi-head factorised attention over all their layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from hyperion_lite.models.wav2xvectors.hf_wav2xvector import HFWav2XVector
from hyperion_lite.models.xvectors.mhfa_xvector import MHFAXVector
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.tpm.hf.base import HFWav2VecBase
from hyperion_lite.tpm.hf.hubert import HFHubert
from hyperion_lite.tpm.hf.wav2vec2 import HFWav2Vec2
from hyperion_lite.tpm.hf.wav2vec2_bert import HFWav2Vec2Bert
from hyperion_lite.tpm.hf.wavlm import HFWavLM
from hyperion_lite.tpm.hf.whisper import HFWhisperEncoder


class HFWav2MHFAXVector(HFWav2XVector, abstract=True):
    """A Hugging Face encoder and attention over all its layers and all frames; train modes as in :class:`HFWav2XVector`.

    There is no fusion of the layers before the pooling: keys and values mix them with weights of their own.

    Args:
        hf_feats: configuration of the encoder.
        xvector: configuration of :class:`~hyperion_lite.models.xvectors.mhfa_xvector.MHFAXVector`; ``in_feats`` and the ``num_layers`` of
            the pooling are filled in.
        feat_fusion_start: first layer that is pooled; 0 is the input of the first transformer layer.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.

    Raises:
        ConfigError: parts that do not fit each other.
    """

    config_exclude: ClassVar[Collection[str]] = ("feat_fuser",)
    xvector_class: ClassVar[type[XVector] | None] = MHFAXVector

    def __init__(
        self,
        hf_feats: dict[str, Any] | HFWav2VecBase,
        xvector: dict[str, Any] | MHFAXVector,
        feat_fusion_start: int = 0,
        channel_policy: str | int = "error",
    ) -> None:
        fuser = {"feat_fuser": {"fuser_type": "stack"}}
        super().__init__(hf_feats, fuser, xvector, feat_fusion_start, channel_policy)

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments as plain JSON types, and ``class_name``."""
        config = super().get_config()
        config.pop("feat_fuser", None)
        return config

    def _complete_xvector(self, config: Mapping[str, Any]) -> dict[str, Any]:
        complete = super()._complete_xvector(config)
        num_layers = self.feat_fuser.feat_fuser.num_feats
        complete["pool_net"] = MHFAXVector.complete_pooling(complete.get("pool_net", "mhfa"), num_layers)
        return complete


class HFWav2Vec2MHFAXVector(HFWav2MHFAXVector):
    """wav2vec 2.0 with multi-head factorised attention."""

    hf_feats_class = HFWav2Vec2


class HFHubert2MHFAXVector(HFWav2MHFAXVector):
    """HuBERT with multi-head factorised attention."""

    hf_feats_class = HFHubert


class HFWavLM2MHFAXVector(HFWav2MHFAXVector):
    """WavLM with multi-head factorised attention."""

    hf_feats_class = HFWavLM


class HFWav2Vec2Bert2MHFAXVector(HFWav2MHFAXVector):
    """w2v-BERT 2.0 with multi-head factorised attention."""

    hf_feats_class = HFWav2Vec2Bert


class HFWhisper2MHFAXVector(HFWav2MHFAXVector):
    """The encoder of Whisper with multi-head factorised attention."""

    hf_feats_class = HFWhisperEncoder
