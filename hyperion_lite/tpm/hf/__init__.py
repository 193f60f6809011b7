"""Hugging Face encoders: waveform to hidden states."""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names

_PUBLIC = {
    "HFFeatsOutput": "hyperion_lite.tpm.hf.outputs",
    "HFHubert": "hyperion_lite.tpm.hf.hubert",
    "HFWav2Vec2": "hyperion_lite.tpm.hf.wav2vec2",
    "HFWav2Vec2Bert": "hyperion_lite.tpm.hf.wav2vec2_bert",
    "HFWav2VecBase": "hyperion_lite.tpm.hf.base",
    "HFWavLM": "hyperion_lite.tpm.hf.wavlm",
    "HFWhisperEncoder": "hyperion_lite.tpm.hf.whisper",
}

__all__ = list(_PUBLIC)

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
