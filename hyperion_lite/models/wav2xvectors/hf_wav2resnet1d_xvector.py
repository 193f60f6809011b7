"""Hugging Face encoders in front of an x-vector with a 1-D residual, Res2Net or ECAPA-TDNN encoder."""

from __future__ import annotations

from hyperion_lite.models.wav2xvectors.hf_wav2xvector import HFWav2XVector
from hyperion_lite.models.xvectors.resnet1d_xvector import ResNet1dXVector
from hyperion_lite.tpm.hf.hubert import HFHubert
from hyperion_lite.tpm.hf.wav2vec2 import HFWav2Vec2
from hyperion_lite.tpm.hf.wav2vec2_bert import HFWav2Vec2Bert
from hyperion_lite.tpm.hf.wavlm import HFWavLM
from hyperion_lite.tpm.hf.whisper import HFWhisperEncoder


class HFWav2Vec2ResNet1dXVector(HFWav2XVector):
    """wav2vec 2.0 and an x-vector with a 1-D residual encoder; configuration and train modes as in :class:`HFWav2XVector`."""

    hf_feats_class = HFWav2Vec2
    xvector_class = ResNet1dXVector


class HFHubert2ResNet1dXVector(HFWav2XVector):
    """HuBERT and an x-vector with a 1-D residual encoder; configuration and train modes as in :class:`HFWav2XVector`."""

    hf_feats_class = HFHubert
    xvector_class = ResNet1dXVector


class HFWavLM2ResNet1dXVector(HFWav2XVector):
    """WavLM and an x-vector with a 1-D residual encoder; configuration and train modes as in :class:`HFWav2XVector`."""

    hf_feats_class = HFWavLM
    xvector_class = ResNet1dXVector


class HFWav2Vec2Bert2ResNet1dXVector(HFWav2XVector):
    """w2v-BERT 2.0 and an x-vector with a 1-D residual encoder; configuration and train modes as in :class:`HFWav2XVector`."""

    hf_feats_class = HFWav2Vec2Bert
    xvector_class = ResNet1dXVector


class HFWhisper2ResNet1dXVector(HFWav2XVector):
    """The encoder of Whisper and an x-vector with a 1-D residual encoder; configuration and train modes as in :class:`HFWav2XVector`."""

    hf_feats_class = HFWhisperEncoder
    xvector_class = ResNet1dXVector
