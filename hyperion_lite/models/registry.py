"""Model classes by name, and where the package defines its own."""

from __future__ import annotations

import importlib
from typing import Any

from hyperion_lite.core.registry import Registry

MODELS: Registry[Any] = Registry("model")

_XVECTORS = "hyperion_lite.models.xvectors"
_WAV2XVECTORS = "hyperion_lite.models.wav2xvectors"

BUILTIN_MODELS = {
    "XVector": f"{_XVECTORS}.xvector",
    "ResNet1dXVector": f"{_XVECTORS}.resnet1d_xvector",
    "ResNetXVector": f"{_XVECTORS}.resnet_xvector",
    "MHFAXVector": f"{_XVECTORS}.mhfa_xvector",
    "ConformerV1XVector": f"{_XVECTORS}.conformer_v1_xvector",
    "ConvNext1dXVector": f"{_XVECTORS}.convnext1d_xvector",
    "ConvNext2dXVector": f"{_XVECTORS}.convnext2d_xvector",
    "TDNNXVector": f"{_XVECTORS}.tdnn_xvector",
    "ETDNNXVector": f"{_XVECTORS}.etdnn_xvector",
    "Wav2XVector": f"{_WAV2XVECTORS}.wav2xvector",
    "Wav2ResNet1dXVector": f"{_WAV2XVECTORS}.wav2resnet1d_xvector",
    "Wav2ResNetXVector": f"{_WAV2XVECTORS}.wav2resnet_xvector",
    "Wav2ConvNext1dXVector": f"{_WAV2XVECTORS}.wav2convnext1d_xvector",
    "Wav2ConvNext2dXVector": f"{_WAV2XVECTORS}.wav2convnext2d_xvector",
    "Wav2TDNNXVector": f"{_WAV2XVECTORS}.wav2tdnn_xvector",
    "Wav2ETDNNXVector": f"{_WAV2XVECTORS}.wav2etdnn_xvector",
    "Wav2ConformerV1XVector": f"{_WAV2XVECTORS}.wav2conformer_v1_xvector",
    "HFWav2XVector": f"{_WAV2XVECTORS}.hf_wav2xvector",
    "HFWav2Vec2ResNet1dXVector": f"{_WAV2XVECTORS}.hf_wav2resnet1d_xvector",
    "HFHubert2ResNet1dXVector": f"{_WAV2XVECTORS}.hf_wav2resnet1d_xvector",
    "HFWavLM2ResNet1dXVector": f"{_WAV2XVECTORS}.hf_wav2resnet1d_xvector",
    "HFWav2Vec2Bert2ResNet1dXVector": f"{_WAV2XVECTORS}.hf_wav2resnet1d_xvector",
    "HFWhisper2ResNet1dXVector": f"{_WAV2XVECTORS}.hf_wav2resnet1d_xvector",
    "HFWav2Vec2ConformerV1XVector": f"{_WAV2XVECTORS}.hf_wav2conformer_v1_xvector",
    "HFHubert2ConformerV1XVector": f"{_WAV2XVECTORS}.hf_wav2conformer_v1_xvector",
    "HFWavLM2ConformerV1XVector": f"{_WAV2XVECTORS}.hf_wav2conformer_v1_xvector",
    "HFWav2Vec2MHFAXVector": f"{_WAV2XVECTORS}.hf_wav2mhfa_xvector",
    "HFHubert2MHFAXVector": f"{_WAV2XVECTORS}.hf_wav2mhfa_xvector",
    "HFWavLM2MHFAXVector": f"{_WAV2XVECTORS}.hf_wav2mhfa_xvector",
    "HFWav2Vec2Bert2MHFAXVector": f"{_WAV2XVECTORS}.hf_wav2mhfa_xvector",
    "HFWhisper2MHFAXVector": f"{_WAV2XVECTORS}.hf_wav2mhfa_xvector",
}
"""Class name -> module, so that a model file is enough to find its class in a process that imported nothing."""


def find_model_class(class_name: str, extra: dict[str, Any] | None = None) -> Any:
    """The model class called ``class_name``.

    Args:
        class_name: as in a configuration.
        extra: further classes by name; they win over registered ones.

    Raises:
        KeyError: unknown; lists what is known.
    """
    if extra and class_name in extra:
        return extra[class_name]
    if class_name not in MODELS and class_name in BUILTIN_MODELS:
        importlib.import_module(BUILTIN_MODELS[class_name])
    if class_name not in MODELS:
        import_builtin_models()
    return MODELS.get(class_name)


def import_builtin_models() -> None:
    """Import every model of the package, so that the registry is complete."""
    for module in BUILTIN_MODELS.values():
        importlib.import_module(module)
