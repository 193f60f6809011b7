"""Tiny random encoders of every family and variant, as pretrained directories of transformers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hyperion_lite.tpm import hf
from hyperion_lite.tpm.hf import HFWav2VecBase

_CONV = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "conv_dim": [8, 8, 8],
    "conv_stride": [5, 4, 4],
    "conv_kernel": [10, 5, 4],
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 3,
    "feat_extract_norm": "group",
}
_STABLE = {**_CONV, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_ADAPTER = {"add_adapter": True, "num_adapter_layers": 2, "output_hidden_size": 12}
_BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "feature_projection_input_dim": 160,
    "conv_depthwise_kernel_size": 5,
    "left_max_position_embeddings": 4,
    "right_max_position_embeddings": 3,
}
_WHISPER = {
    "d_model": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 16,
    "max_source_positions": 50,
    "num_mel_bins": 10,
    "vocab_size": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2-group": ("HFWav2Vec2", _CONV),
    "wav2vec2-group-bias": ("HFWav2Vec2", {**_CONV, "conv_bias": True, "num_conv_pos_embeddings": 5}),
    "wav2vec2-stable": ("HFWav2Vec2", {**_STABLE, "adapter_attn_dim": 4}),
    "wav2vec2-adapter": ("HFWav2Vec2", {**_CONV, **_ADAPTER}),
    "hubert-group": ("HFHubert", {**_CONV, "feat_proj_layer_norm": False}),
    "hubert-stable": ("HFHubert", _STABLE),
    "hubert-batch-norm": ("HFHubert", {**_CONV, "conv_pos_batch_norm": True}),
    "wavlm-group": ("HFWavLM", {**_CONV, "num_buckets": 16, "max_bucket_distance": 20}),
    "wavlm-stable": ("HFWavLM", {**_STABLE, "num_buckets": 320}),
    "wavlm-adapter": ("HFWavLM", {**_STABLE, **_ADAPTER, "num_buckets": 16}),
    "bert-relative-key": ("HFWav2Vec2Bert", _BERT),
    "bert-relative": ("HFWav2Vec2Bert", {**_BERT, "position_embeddings_type": "relative"}),
    "bert-rotary": ("HFWav2Vec2Bert", {**_BERT, "position_embeddings_type": "rotary"}),
    "bert-adapter": (
        "HFWav2Vec2Bert",
        {**_BERT, "position_embeddings_type": None, **_ADAPTER, "use_intermediate_ffn_before_adapter": True},
    ),
    "whisper": ("HFWhisperEncoder", _WHISPER),
}
"""Name -> (class, keys of the transformers configuration)."""

CONV_ENCODERS = [name for name, (cls, _) in ENCODERS.items() if cls in ("HFWav2Vec2", "HFHubert", "HFWavLM")]


def encoder_class(name: str) -> type[HFWav2VecBase]:
    return getattr(hf, ENCODERS[name][0])


def _transformers(address: str) -> Any:
    module, _, attribute = address.partition(":")
    return getattr(importlib.import_module(f"transformers.models.{module}"), attribute)


def make_original(name: str) -> nn.Module:
    """The transformers model, every parameter random, in evaluation mode. Whisper: encoder and decoder."""
    cls, settings = encoder_class(name), ENCODERS[name][1]
    config_class, model_class = cls.transformers_classes
    torch.manual_seed(7)
    model = _transformers(model_class.replace("WhisperEncoder", "WhisperModel"))(
        _transformers(config_class)(**settings)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand_like(buffer))
    return model.eval()


PROCESSORS: dict[str, dict[str, Any]] = {
    "HFWav2Vec2Bert": {"feature_size": 80, "num_mel_bins": 80, "stride": 2, "sampling_rate": 16000},
    "HFWhisperEncoder": {"feature_size": 10, "n_fft": 400, "hop_length": 160, "sampling_rate": 16000},
}
_WAVE_PROCESSOR = {"do_normalize": True, "feature_size": 1, "padding_value": 0.0, "sampling_rate": 16000}


def save_original(
    name: str, folder: Path, model: nn.Module | None = None, processor: Mapping[str, Any] | None = None
) -> Path:
    """A pretrained directory."""
    model = make_original(name) if model is None else model
    model.save_pretrained(folder, safe_serialization=True)
    settings = PROCESSORS.get(ENCODERS[name][0], _WAVE_PROCESSOR) if processor is None else processor
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def make_encoder(name: str, **options: Any) -> HFWav2VecBase:
    """Our encoder, with the weights of :func:`make_original`, in evaluation mode."""
    cls = encoder_class(name)
    fields = cls.architecture_fields()
    settings = {key: value for key, value in ENCODERS[name][1].items() if key in fields}
    config = {"layer_norm_eps": 1e-5, **settings} if "layer_norm_eps" in fields else settings
    encoder = cls(ignore_pretrained=True, **{**config, **options})
    state = make_original(name).state_dict()
    if "whisper" in name:
        state = {key.removeprefix("encoder."): v for key, v in state.items() if key.startswith("encoder.")}
    encoder.hf_model.load_state_dict(state)
    return encoder.eval()


def waveforms(*lengths: int, seed: int = 0, fill: float = 0.0) -> torch.Tensor:
    """(batch, longest) random waveforms of the given lengths, ``fill`` in the padding."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.full((len(lengths), max(lengths)), fill)
    for row, length in zip(batch, lengths, strict=True):
        wave = torch.randn(length, generator=generator).cumsum(0)
        row[:length] = 0.1 * wave / wave.std(correction=0).clamp(min=1e-3) + 0.05
    return batch
