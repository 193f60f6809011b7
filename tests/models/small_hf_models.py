"""Small models with a Hugging Face encoder of random weights: every family, both kinds of feature extractor, every fusion and head."""

from __future__ import annotations

from typing import Any

HEAD: dict[str, Any] = {"num_classes": 7, "embed_dim": 12, "margin": 0.2, "cos_scale": 20.0}

GROUP_NORM: dict[str, Any] = {
    "ignore_pretrained": True,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": [8, 8, 8, 8, 8, 8, 8],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "layer_norm_eps": 1e-5,
    "initializer_range": 0.2,
}
LAYER_NORM = {**GROUP_NORM, "feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
BERT: dict[str, Any] = {
    "ignore_pretrained": True,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_depthwise_kernel_size": 5,
    "initializer_range": 0.2,
}
WHISPER: dict[str, Any] = {
    "ignore_pretrained": True,
    "d_model": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "max_source_positions": 20,
    "num_mel_bins": 10,
    "init_std": 0.2,
}

RESNET1D: dict[str, Any] = {
    "resnet_enc": {
        "in_conv_channels": 12,
        "in_kernel_size": 1,
        "resb_type": "seres2bn",
        "resb_repeats": [1, 1],
        "resb_channels": 12,
        "resb_dilations": [2, 3],
        "res2net_scale": 4,
        "se_r": 4,
        "multilayer": True,
        "multilayer_concat": True,
        "endpoint_channels": 16,
        "norm_before": False,
    },
    "pool_net": {"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 8},
    "norm_before": False,
    **HEAD,
}
CONFORMER: dict[str, Any] = {
    "encoder": {"d_model": 12, "num_heads": 2, "num_blocks": 1, "d_ff": 16, "conv_kernel_sizes": 5, "in_layer_type": "linear"},
    **HEAD,
}  # fmt: skip
MHFA: dict[str, Any] = {"pool_net": {"num_heads": 3, "d_k": 6, "d_v": 5}, **HEAD}


def fusion(fuser_type: str, mvn: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Configuration of the fusion of a model."""
    return {"feat_fuser": {"fuser_type": fuser_type, **options}, "mvn": mvn}


def model(
    hf_feats: dict[str, Any], feat_fuser: dict[str, Any] | None, xvector: dict[str, Any], start: int = 0
) -> dict[str, Any]:
    """Configuration of a model; one with attention over layers has no fusion."""
    parts = {"hf_feats": hf_feats, "xvector": xvector, "feat_fusion_start": start}
    return parts if feat_fuser is None else {**parts, "feat_fuser": feat_fuser}


SLIDING = {"norm_mean": True, "norm_var": True, "left_context": 5, "right_context": 5}

HF_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "hf-wav2vec2-group": ("HFWav2Vec2ResNet1dXVector", model(GROUP_NORM, fusion("weighted-avg"), RESNET1D)),
    "hf-hubert-group": ("HFHubert2ResNet1dXVector", model(GROUP_NORM, fusion("last"), RESNET1D, 1)),
    "hf-wavlm-group": ("HFWavLM2ResNet1dXVector", model(GROUP_NORM, fusion("linear", proj_dim=10), RESNET1D)),
    "hf-wav2vec2-layer": ("HFWav2Vec2ConformerV1XVector", model(LAYER_NORM, fusion("weighted-avg"), CONFORMER, 1)),
    "hf-hubert-layer": ("HFHubert2ConformerV1XVector", model(LAYER_NORM, fusion("cat", proj_bias=False), CONFORMER)),
    "hf-wavlm-layer": ("HFWavLM2ResNet1dXVector", model(LAYER_NORM, fusion("cat", SLIDING), RESNET1D, 1)),
    "hf-wavlm-conformer": ("HFWavLM2ConformerV1XVector", model(GROUP_NORM, fusion("weighted-avg"), CONFORMER)),
    "hf-wav2vec2-mhfa": ("HFWav2Vec2MHFAXVector", model(LAYER_NORM, None, MHFA)),
    "hf-hubert-mhfa": ("HFHubert2MHFAXVector", model(GROUP_NORM, None, MHFA, 1)),
    "hf-wavlm-mhfa": ("HFWavLM2MHFAXVector", model(GROUP_NORM, None, MHFA)),
    "hf-bert": ("HFWav2Vec2Bert2ResNet1dXVector", model(BERT, fusion("weighted-avg"), RESNET1D)),
    "hf-bert-mhfa": ("HFWav2Vec2Bert2MHFAXVector", model(BERT, None, MHFA)),
    "hf-whisper": ("HFWhisper2ResNet1dXVector", model(WHISPER, fusion("weighted-avg"), RESNET1D, 1)),
    "hf-whisper-mhfa": ("HFWhisper2MHFAXVector", model(WHISPER, None, MHFA)),
    "hf-adapter": (
        "HFWav2Vec2ResNet1dXVector",
        model({**GROUP_NORM, "add_adapter": True, "output_hidden_size": 14, "num_adapter_layers": 1}, fusion("last"), RESNET1D),
    ),
    "hf-by-class-name": (
        "HFWav2XVector",
        model(
            {"class_name": "HFWavLM", **LAYER_NORM},
            fusion("weighted-avg", {"norm_mean": True}),
            {"class_name": "ResNet1dXVector", **RESNET1D},
        ),
    ),
}  # fmt: skip
