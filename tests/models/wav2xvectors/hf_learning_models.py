"""Small models with adapters for tests of train modes, and what learns in each mode, told by the names of the parameters alone."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hyperion_lite.models.registry import find_model_class
from tests.models.small_hf_models import BERT, GROUP_NORM, LAYER_NORM, MHFA, RESNET1D, WHISPER, fusion, model

CONV = ["q_proj", "k_proj", "v_proj", "out_proj", "intermediate_dense", "output_dense"]
LINEAR = ["linear_q", "linear_k", "linear_v", "linear_out", "intermediate_dense", "output_dense"]
WHISPER_LINEAR = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
MASKS = {"mask_time_prob": 0.3, "mask_time_length": 3, "mask_time_min_masks": 2}
DROPOUTS = {"hidden_dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}


def adapted(encoder: dict[str, Any], components: list[str] | None, **options: Any) -> dict[str, Any]:
    lora = {"use_lora": True, "lora_rank": 2, "lora_alpha": 3, "lora_components": components, "lora_dropout": 0.1}
    return {**encoder, **lora, **options}


_ADAPTER = {"add_adapter": True, "num_adapter_layers": 1}
_RESNET = {**RESNET1D, "dropout_rate": 0.1}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2": ("HFWav2Vec2ResNet1dXVector", model(adapted(GROUP_NORM, CONV, **MASKS), fusion("weighted-avg"), _RESNET)),
    "wav2vec2-unused-adapter": (
        "HFWav2Vec2ResNet1dXVector",
        model(adapted({**LAYER_NORM, **_ADAPTER}, None, apply_spec_augment=False), fusion("weighted-avg"), _RESNET, 1),
    ),
    "hubert": ("HFHubert2ResNet1dXVector", model(adapted(LAYER_NORM, CONV, **MASKS), fusion("linear", proj_dim=9), _RESNET)),
    "hubert-batch-norm": (
        "HFHubert2ResNet1dXVector",
        model(adapted(GROUP_NORM, CONV, conv_pos_batch_norm=True, mask_time_prob=0.0), fusion("last"), _RESNET),
    ),
    "wavlm": ("HFWavLM2ResNet1dXVector", model(adapted(GROUP_NORM, CONV, **MASKS), fusion("cat"), _RESNET, 1)),
    "wavlm-mhfa": ("HFWavLM2MHFAXVector", model(adapted(LAYER_NORM, CONV, **MASKS), None, MHFA)),
    "bert": (
        "HFWav2Vec2Bert2ResNet1dXVector",
        model(
            adapted({**BERT, **DROPOUTS, **_ADAPTER, "use_intermediate_ffn_before_adapter": True}, LINEAR, **MASKS),
            fusion("weighted-avg"),
            _RESNET,
        ),
    ),
    "whisper": ("HFWhisper2ResNet1dXVector", model(adapted({**WHISPER, "dropout": 0.1}, WHISPER_LINEAR), fusion("weighted-avg"), _RESNET)),
}  # fmt: skip

MODES = (
    "full",
    "frozen",
    "ft-embed-affine",
    "ft-xvector",
    "hf-feats-frozen",
    "ft-xvector-nograd",
    "hf-feats-frozen-nograd",
    "hf-feat-extractor-frozen",
    "hf-lora",
    "hf-all-bias-lora",
    "hf-lora-with-bias",
)
LORA_MODES = MODES[-3:]
SAMPLES = 6000


def make_model(name: str, trained: bool = True, **changes: Any) -> Any:
    """The model called ``name``; with ``trained``, its adapters move the output."""
    torch.manual_seed(3)
    class_name, config = copy.deepcopy(MODELS[name])
    config["hf_feats"] |= changes
    network = find_model_class(class_name).from_config(config)
    if trained:
        for parameter_name, parameter in network.named_parameters():
            if ".lora_B." in parameter_name:
                torch.nn.init.normal_(parameter, std=0.3)
    return network


def make_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Waveforms, lengths, classes."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.1 * torch.randn(3, SAMPLES, generator=generator)
    return x, torch.tensor([SAMPLES, 4500, 5200]), torch.tensor([0, 3, 5])


def learns(parameter: str, mode: str, name: str) -> bool:
    """Whether the parameter called so learns in ``mode``."""
    if parameter.startswith("xvector.classif_net."):
        return mode != "frozen"
    if parameter.startswith("xvector."):
        return mode not in ("frozen", "ft-embed-affine")
    if parameter.startswith("feat_fuser."):
        return mode not in ("frozen", "ft-embed-affine", "ft-xvector", "ft-xvector-nograd")
    part = parameter.removeprefix("hf_feats.hf_model.base_model.model.")
    if part.startswith(("adapter.", "intermediate_ffn.")) or part == "embed_positions.weight":
        # nothing depends on them; sinusoids
        return False
    if part == "masked_spec_embed" and MODELS[name][1]["hf_feats"].get("mask_time_prob") != MASKS["mask_time_prob"]:
        return False
    in_front = part.startswith(("feature_extractor.", "conv1.", "conv2."))
    is_adapter, is_bias = ".lora_A." in part or ".lora_B." in part, part.endswith(".bias")
    in_batch_norm = ".batch_norm." in part
    return {
        "full": True,
        "hf-feat-extractor-frozen": not in_front,
        "hf-lora": is_adapter,
        "hf-all-bias-lora": (is_adapter or is_bias) and not in_batch_norm,
        "hf-lora-with-bias": is_adapter or part.endswith(".base_layer.bias"),
    }.get(mode, False)
