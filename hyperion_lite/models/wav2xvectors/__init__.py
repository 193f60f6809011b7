"""Models from waveform to speaker embedding: a front end followed by an x-vector network."""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names

_PUBLIC = {
    "Wav2XVector": "hyperion_lite.models.wav2xvectors.wav2xvector",
    "Wav2ResNet1dXVector": "hyperion_lite.models.wav2xvectors.wav2resnet1d_xvector",
    "Wav2ResNetXVector": "hyperion_lite.models.wav2xvectors.wav2resnet_xvector",
    "Wav2ConvNext1dXVector": "hyperion_lite.models.wav2xvectors.wav2convnext1d_xvector",
    "Wav2ConvNext2dXVector": "hyperion_lite.models.wav2xvectors.wav2convnext2d_xvector",
    "Wav2TDNNXVector": "hyperion_lite.models.wav2xvectors.wav2tdnn_xvector",
    "Wav2ETDNNXVector": "hyperion_lite.models.wav2xvectors.wav2etdnn_xvector",
    "Wav2ConformerV1XVector": "hyperion_lite.models.wav2xvectors.wav2conformer_v1_xvector",
    "HFWav2XVector": "hyperion_lite.models.wav2xvectors.hf_wav2xvector",
    "HFWav2Vec2ResNet1dXVector": "hyperion_lite.models.wav2xvectors.hf_wav2resnet1d_xvector",
    "HFHubert2ResNet1dXVector": "hyperion_lite.models.wav2xvectors.hf_wav2resnet1d_xvector",
    "HFWavLM2ResNet1dXVector": "hyperion_lite.models.wav2xvectors.hf_wav2resnet1d_xvector",
    "HFWav2Vec2Bert2ResNet1dXVector": "hyperion_lite.models.wav2xvectors.hf_wav2resnet1d_xvector",
    "HFWhisper2ResNet1dXVector": "hyperion_lite.models.wav2xvectors.hf_wav2resnet1d_xvector",
    "HFWav2Vec2ConformerV1XVector": "hyperion_lite.models.wav2xvectors.hf_wav2conformer_v1_xvector",
    "HFHubert2ConformerV1XVector": "hyperion_lite.models.wav2xvectors.hf_wav2conformer_v1_xvector",
    "HFWavLM2ConformerV1XVector": "hyperion_lite.models.wav2xvectors.hf_wav2conformer_v1_xvector",
    "HFWav2Vec2MHFAXVector": "hyperion_lite.models.wav2xvectors.hf_wav2mhfa_xvector",
    "HFHubert2MHFAXVector": "hyperion_lite.models.wav2xvectors.hf_wav2mhfa_xvector",
    "HFWavLM2MHFAXVector": "hyperion_lite.models.wav2xvectors.hf_wav2mhfa_xvector",
    "HFWav2Vec2Bert2MHFAXVector": "hyperion_lite.models.wav2xvectors.hf_wav2mhfa_xvector",
    "HFWhisper2MHFAXVector": "hyperion_lite.models.wav2xvectors.hf_wav2mhfa_xvector",
}

__all__ = list(_PUBLIC)

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
