"""Small configurations of every native model, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.small_hf_models import HF_MODELS

NUM_CLASSES = 7
SAMPLE_FREQ = 16000

FEATS: dict[str, Any] = {
    "audio_feats": {
        "audio_feat": "logfb",
        "sample_frequency": SAMPLE_FREQ,
        "num_filters": 24,
        "snip_edges": False,
        "use_energy": False,
        "dither": 0.0,
        "low_freq": 20,
        "high_freq": 7600,
    },
    "mvn": {"norm_mean": True, "norm_var": False, "left_context": 20, "right_context": 20},
    "trans": True,
}

_HEAD: dict[str, Any] = {"num_classes": NUM_CLASSES, "embed_dim": 12, "margin": 0.2, "cos_scale": 20.0}


def _resnet1d(enc: dict[str, Any], **options: Any) -> dict[str, Any]:
    base = {"in_feats": 24, "in_conv_channels": 16, "resb_repeats": [1, 1], "resb_channels": [16, 24]}
    return {"resnet_enc": {**base, **enc}, **_HEAD, **options}


def _resnet(resnet_type: str, **options: Any) -> dict[str, Any]:
    shape = {"in_channels": 1, "in_feats": 24, "conv_channels": 8, "base_channels": 8, "in_kernel_size": 3, "se_r": 2}
    return {"resnet_type": resnet_type, **shape, **_HEAD, **options}


def _conformer(enc: dict[str, Any], **options: Any) -> dict[str, Any]:
    base = {"in_feats": 24, "d_model": 16, "num_heads": 2, "num_blocks": 2, "d_ff": 24, "conv_kernel_sizes": [5, 3]}
    return {"encoder": {**base, **enc}, **_HEAD, **options}


ECAPA = _resnet1d(
    {
        "resb_type": "seres2bn",
        "resb_strides": 1,
        "resb_dilations": [2, 3],
        "res2net_scale": 4,
        "se_r": 4,
        "multilayer": True,
        "multilayer_concat": True,
        "endpoint_channels": 20,
        "norm_before": False,
    },
    pool_net={"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 8},
    norm_before=False,
)

XVECTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "ecapa": ("ResNet1dXVector", ECAPA),
    "basic-strided": (
        "ResNet1dXVector",
        _resnet1d({"resb_type": "basic", "resb_strides": [2, 2], "in_stride": 2, "in_kernel_size": 5}),
    ),
    "res2basic-dropout": (
        "ResNet1dXVector",
        _resnet1d(
            {"resb_type": "seres2basic", "resb_strides": [1, 2], "dropout_rate": 0.1, "drop_connect_rate": 0.1},
            pool_net={"pool_type": "lde", "num_comp": 4},
            dropout_rate=0.1,
            num_embed_layers=2,
        ),
    ),
    "sum-of-layers": (
        "ResNet1dXVector",
        _resnet1d(
            {"resb_type": "sebn", "resb_strides": [1, 3], "se_r": 4, "multilayer": True},
            pool_net={"pool_type": "scaled-dot-prod-att-v1", "num_heads": 2, "d_k": 8, "d_v": 8},
            loss_type="subcenter-arc-softmax",
            norm_layer="group-norm",
        ),
    ),
    "resnet18": ("ResNetXVector", _resnet("resnet18")),
    "fwse-res2": (
        "ResNetXVector",
        _resnet("fwseres2net50", norm_before=False, pool_net="mean+logvar", loss_type="cos-softmax", proj_feats=16),
    ),
    "tse-instance-norm": (
        "ResNetXVector",
        _resnet("tseresnet18", norm_layer="instance-norm-affine", pool_net="avg", loss_type="softmax"),
    ),
    "multi-level": ("ResNetXVector", _resnet("lresnet34_345", in_stride=1)),
    "dino": (
        "ResNet1dXVector",
        _resnet1d({}, head_type="dino", head_hid_dim=16, head_bottleneck_dim=8, loss_type="softmax"),
    ),
}

CONFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "conformer": ("ConformerV1XVector", _conformer({"in_stride": 2, "concat_after": True}, dropout_rate=0.1)),
    "conformer-strided": (
        "ConformerV1XVector",
        _conformer({"conv_strides": [1, 2], "conv_repeats": 2, "causal_pos_enc": True, "red_lnorms": False}),
    ),
    "conformer-local": (
        "ConformerV1XVector",
        _conformer({"att_type": "local-scaled-dot-prod-v1", "att_context": 4, "in_layer_type": "conv1d-sub"}),
    ),
    "conformer-local-abs": (
        "ConformerV1XVector",
        _conformer(
            {"att_type": "local-scaled-dot-prod-v1", "att_context": 3, "pos_enc_type": "abs", "in_stride": 1},
            pool_net={"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 8},
        ),
    ),
    "conformer-block": (
        "ConformerV1XVector",
        _conformer(
            {
                "att_type": "block-scaled-dot-prod-v1",
                "att_context": 5,
                "in_layer_type": "linear",
                "pos_enc_type": "no",
                "ff_type": "conv1dx2",
                "ff_kernel_size": 3,
                "se_r": 4,
            }
        ),
    ),
    "conformer-conv": (
        "ConformerV1XVector",
        _conformer(
            {
                "pos_enc_type": "conv",
                "pos_kernel_size": 6,
                "pos_num_groups": 4,
                "ff_type": "conv1d-linear",
                "ff_kernel_size": 3,
                "ff_macaron": False,
                "conv_norm_layer": "group-norm",
                "att_dropout_rate": 0.1,
            },
            proj_feats=12,
        ),
    ),
}
XVECTORS.update(CONFORMERS)


def _convnext(enc: dict[str, Any], **options: Any) -> dict[str, Any]:
    base = {"in_stride": 2, "convb_repeats": [1, 2], "convb_channels": [8, 12]}
    return {"convnext_enc": {**base, **enc}, **_HEAD, **options}


CONVNEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "convnext1d": ("ConvNext1dXVector", _convnext({"in_feats": 24, "drop_path_rate": 0.2})),
    "convnext1d-merged": (
        "ConvNext1dXVector",
        _convnext(
            {
                "in_feats": 24,
                "in_stride": 1,
                "convb_repeats": [1, 1, 1],
                "convb_channels": [8, 12, 16],
                "convb_kernel_sizes": [3, 5, 7],
                "convb_dilations": [2, 1, 1],
                "downb_strides": [1, 4],
                "multilayer": True,
                "multilayer_concat": True,
                "endpoint_scale_layer": 0,
                "hid_act": "relu",
            },
            pool_net={"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 8},
        ),
    ),
    "convnext2d": ("ConvNext2dXVector", _convnext({}, in_feats=24)),
    "convnext2d-merged": (
        "ConvNext2dXVector",
        _convnext(
            {"convb_repeats": [1, 1, 1], "convb_channels": 8, "downb_strides": [3, 1], "multilayer": True},
            in_feats=24,
            proj_feats=10,
        ),
    ),
}
XVECTORS.update(CONVNEXTS)

TDNNS: dict[str, tuple[str, dict[str, Any]]] = {
    "tdnn": (
        "TDNNXVector",
        {
            "tdnn_enc": {"in_feats": 24, "channels": [16, 16, 16, 16, 24]},
            **_HEAD,
            "loss_type": "softmax",
            "num_embed_layers": 2,
            "norm_before": False,
        },
    ),
    "etdnn": (
        "ETDNNXVector",
        {"tdnn_enc": {"in_feats": 24, "channels": [8] * 9 + [20], "norm_before": True, "dropout_rate": 0.1}, **_HEAD},
    ),
}
XVECTORS.update(TDNNS)

WAV2XVECTORS: dict[str, tuple[str, dict[str, Any]]] = {
    f"wav2-{name}": (f"Wav2{class_name}", {"feats": FEATS, "xvector": config})
    for name, (class_name, config) in XVECTORS.items()
}
WAV2XVECTORS["wav2-by-class-name"] = (
    "Wav2XVector",
    {"feats": FEATS, "xvector": {"class_name": "ResNet1dXVector", **_resnet1d({})}},
)

ON_HIDDEN_STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "mhfa": (
        "MHFAXVector",
        {
            "in_feats": 24,
            "pool_net": {"pool_type": "mhfa", "num_layers": 2, "num_heads": 3, "d_k": 6, "d_v": 5},
            **_HEAD,
        },
    ),
}

ALL_MODELS = {**XVECTORS, **ON_HIDDEN_STATES, **WAV2XVECTORS, **HF_MODELS}


_RANDOM_TENSORS = (
    ("running_mean", -0.5, 0.5),
    ("running_var", 0.5, 1.5),
    # response norms start as the identity
    ("gamma", -0.8, 0.8),
    ("beta", -0.5, 0.5),
)


def build(name: str, seed: int = 0) -> Any:
    """The model called ``name``, with random weights and, so that order matters, random statistics and response norms."""
    from hyperion_lite.models.registry import find_model_class

    torch.manual_seed(seed)
    class_name, config = ALL_MODELS[name]
    model = find_model_class(class_name).from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            for key, low, high in _RANDOM_TENSORS:
                tensor = getattr(module, key, None)
                if isinstance(tensor, torch.Tensor):
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)
    return model.eval()


def takes_waveforms(model: Any) -> bool:
    """Whether ``model`` takes (batch, samples) and not (batch, features, frames)."""
    return hasattr(model, "sample_frequency")


def make_item(model: Any, length: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One item of ``length`` samples or frames, without a batch axis."""
    generator = torch.Generator().manual_seed(1000 + seed)
    shape = (length,) if takes_waveforms(model) else (24, length)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 0.1).to(dtype)


def pad_items(items: list[torch.Tensor], value: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad items along their last axis with ``value``; the batch and its lengths."""
    longest = max(item.size(-1) for item in items)
    padded = [torch.nn.functional.pad(item, (0, longest - item.size(-1)), value=value) for item in items]
    return torch.stack(padded), torch.tensor([item.size(-1) for item in items])


def minimum_length(model: Any) -> int:
    """Length of the shortest item that the model accepts."""
    return model.min_samples if takes_waveforms(model) else model.min_length
