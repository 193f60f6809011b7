"""Seeded random configurations of every part, and the ways in which files of other releases spell the same model."""

from __future__ import annotations

import copy
import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.reference import conformer, front_end, heads, resnet1d, resnet2d

ACTS: list[Any] = [
    "relu",
    "relu6",
    "swish",
    "swish6",
    "double_swish",
    "double_swish6",
    "gelu",
    "selu",
    "celu",
    "softplus",
    "softsign",
    "tanh",
    "sigmoid",
    "leakyrelu",
    "rrelu",
    {"name": "relu", "inplace": True},
    {"name": "elu", "alpha": 0.7},
    {"name": "leakyrelu", "negative_slope": 0.2, "inplace": True},
]
NORMS = [None, None, "batch-norm", "group-norm", "instance-norm", "instance-norm-affine", "layer-norm"]
POOLS = ["avg", "mean+stddev", "mean+logvar", "lde", "scaled-dot-prod-att-v1", "ch-wise-att-mean+stddev"]
LOSSES = ["softmax", "cos-softmax", "arc-softmax", "subcenter-arc-softmax"]


def pick(rng: Random, **choices: list[Any]) -> dict[str, Any]:
    return {key: rng.choice(values) for key, values in choices.items()}


def draw_pool(rng: Random) -> dict[str, Any]:
    kind = rng.choice(POOLS)
    cfg = {"dim": -1, "keepdim": False, "pool_type": kind}
    if kind == "lde":
        cfg |= pick(rng, num_comp=[3, 5], dist_pow=[1, 2], use_bias=[False, True])
    elif kind == "scaled-dot-prod-att-v1":
        cfg |= pick(rng, num_heads=[1, 3], d_k=[4, 6], d_v=[5, 8], bin_attn=[False, True])
    elif kind == "ch-wise-att-mean+stddev":
        cfg |= pick(rng, inner_feats=[6, 16], bin_attn=[False, True], use_global_context=[True, False])
    return cfg


def draw_head(rng: Random) -> dict[str, Any]:
    """The keys that all x-vectors share."""
    cfg = pick(
        rng,
        num_classes=[3, 7],
        embed_dim=[16, 24],
        num_embed_layers=[1, 1, 2, 3],
        hid_act=ACTS,
        loss_type=LOSSES,
        cos_scale=[30.0, 64.0, 1.0],
        margin=[0.2],
        margin_warmup_epochs=[0.0, 5.0],
        intertop_k=[5],
        intertop_margin=[0.0, 0.1],
        num_subcenters=[2, 3],
        norm_layer=NORMS,
        head_norm_layer=[None, None, "batch-norm", "layer-norm", "group-norm"],
        use_norm=[True, True, False],
        norm_before=[True, False],
        head_use_norm=[True, True, False],
        proj_feats=[None, None, 16],
        dropout_rate=[0, 0.1],
        proj_head_use_norm=[True, False],
        proj_head_norm_before=[True, False],
        head_type=["x-vector", "x-vector", "x-vector", "dino"],
    )
    cfg["head_use_in_norm"] = not cfg["norm_before"] and rng.random() < 0.4
    if cfg["head_type"] == "dino":
        cfg |= {"head_use_in_norm": False, "loss_type": rng.choice(["softmax", "softmax", "cos-softmax"])}
    cfg |= {"head_hid_dim": 32, "head_bottleneck_dim": 12, "bias_weight_decay": None}
    cfg["embed_layer"] = rng.randrange(cfg["num_embed_layers"])
    cfg["pool_net"] = draw_pool(rng)
    if heads.head_norm(cfg) == "group-norm" and (cfg["head_use_in_norm"] or cfg["head_type"] == "dino"):
        # the pooled vector has to be a multiple of the number of groups
        cfg |= {"embed_dim": 16, "pool_net": {"pool_type": "mean+stddev"}}
    return cfg


def draw_resnet_enc(rng: Random, in_feats: int) -> dict[str, Any]:
    count = rng.choice([1, 2, 3])
    cfg = {"in_feats": in_feats} | pick(
        rng,
        in_conv_channels=[16, 32],
        in_kernel_size=[1, 2, 3, 4, 5],
        in_stride=[1, 1, 2, 3],
        resb_type=["basic", "bn", "sebasic", "sebn", "res2basic", "res2bn", "seres2basic", "seres2bn"],
        resb_groups=[1, 1, 2],
        head_channels=[0, 0, 24],
        hid_act=ACTS,
        head_act=[None, "relu", "tanh"],
        dropout_rate=[0, 0.002],
        drop_connect_rate=[0, 0.1],
        se_r=[2, 4, 5],
        res2net_width_factor=[1, 1, 1.5, 2],
        res2net_scale=[1, 2, 4],
        multilayer=[False, True, True],
        multilayer_concat=[False, True],
        use_norm=[True, True, False],
        norm_layer=NORMS,
        norm_before=[True, False],
        upsampling_mode=["nearest", "subpixel"],
    )
    cfg["resb_repeats"] = [rng.choice([1, 2]) for _ in range(count)]
    for key, values in {"channels": [16, 32, 48], "kernel_sizes": [1, 3, 5], "dilations": [1, 2, 3]}.items():
        cfg[f"resb_{key}"] = rng.choice(
            [rng.choice(values), [rng.choice(values)], [rng.choice(values) for _ in range(count)]]
        )
    cfg["resb_strides"] = [99]
    while cfg["in_stride"] * math.prod(cfg["resb_strides"]) > 18:
        cfg["resb_strides"] = [rng.choice([1, 1, 2, 3, 4, 5, 6]) for _ in range(count)]
    if cfg["norm_layer"] == "group-norm":
        # every width has to be a multiple of the number of groups, half of the smallest width
        cfg |= {"resb_channels": 16, "res2net_scale": rng.choice([1, 2]), "res2net_width_factor": 1, "head_channels": 0}
        cfg["resb_type"] = cfg["resb_type"] if cfg["resb_type"] not in ("bn", "sebn") else "basic"
    cfg["endpoint_channels"] = rng.choice([None, 24])
    cfg["endpoint_layers"] = rng.choice([None, rng.sample(range(1, count + 1), rng.randint(1, count))])
    cfg["endpoint_scale_layer"] = rng.choice([-1, *range(-count, count)])
    if cfg["multilayer"] and cfg["head_channels"]:
        cfg["endpoint_channels"] = resnet1d.per_superblock(cfg["resb_channels"], count)[-1]
    return cfg


def draw_conformer(rng: Random, in_feats: int) -> dict[str, Any]:
    blocks = rng.choice([1, 2])
    cfg = {"in_feats": in_feats, "num_blocks": blocks, "in_time_dim": 2, "out_time_dim": 2} | pick(
        rng,
        d_model=[8, 12],
        num_heads=[1, 2, 4],
        att_type=["scaled-dot-prod-v1", "local-scaled-dot-prod-v1", "block-scaled-dot-prod-v1"],
        att_context=[1, 2, 3, 4, 5, 7, 25],
        ff_type=["linear", "linear", "conv1dx2", "conv1d-linear"],
        d_ff=[6, 16],
        ff_kernel_size=[1, 3, 5],
        dropout_rate=[0, 0.1],
        pos_dropout_rate=[0, 0.1],
        att_dropout_rate=[0, 0.1],
        in_layer_type=["conv2d-sub", "conv2d-sub", "conv1d-sub", "linear"],
        in_stride=[1, 2, 4],
        pos_enc_type=["rel", "rel", "rel", "abs", "conv", "no"],
        causal_pos_enc=[False, True],
        pos_kernel_size=[1, 2, 5, 8],
        pos_num_groups=[1, 4],
        hid_act=["swish", "swish", *ACTS],
        conv_norm_layer=[None, None, "batch-norm", "group-norm", "instance-norm-affine", "layer-norm"],
        se_r=[None, None, 1, 2, 4],
        ff_macaron=[True, True, False],
        red_lnorms=[True, False],
        concat_after=[False, True],
        padding_idx=[-1],
    )
    for key, values in {"repeats": [1, 1, 2], "kernel_sizes": [1, 3, 7], "strides": [1, 1, 2]}.items():
        cfg[f"conv_{key}"] = rng.choice(
            [rng.choice(values), [rng.choice(values)], [rng.choice(values) for _ in range(blocks)]]
        )
    if in_feats == cfg["d_model"]:
        cfg["in_layer_type"] = rng.choice([None, "None"])
    return cfg


SMALL = ["resnet18", "resnet34", "resnet50", "res2net18", "res2net34", "res2net50"]
FORCED = ["lresnet18", "lresnet34", "lresnet50", "lresnext50_4x4d", "lres2net50", "lres2next50_4x4d", "lresnet34_345"]


def draw_resnet(rng: Random, in_feats: int, family: str | None = None) -> dict[str, Any]:
    family = family or rng.choice(SMALL * 3 + FORCED)
    prefix = "" if family == "lresnet34_345" else rng.choice(["", "se", "tse", "fwse", "cfwse"])
    cfg = {"resnet_type": prefix + family, "in_channels": 1, "in_feats": in_feats} | pick(
        rng,
        conv_channels=[4, 8],
        base_channels=[4, 8],
        in_kernel_size=[3, 5, 7],
        in_stride=[1, 1, 2],
        groups=[1, 1, 2],
        replace_stride_with_dilation=[
            None,
            [False] * 3,
            [False, True, False],
            [False, True, True],
            [True, False, True],
        ],
        do_maxpool=[False, False, True],
        in_norm=[False, False, True],
        se_r=[1, 2],
        res2net_scale=[1, 2],
        res2net_width_factor=[1, 2],
        freq_pos_enc=[False, True],
        zero_init_residual=[False, True],
    )
    _, kind, _, forced = resnet2d.resolve(cfg["resnet_type"])
    if "res2" in kind:
        cfg["groups"] = 1
    if prefix == "tse":
        cfg["se_r"] = 8
    if prefix == "cfwse" and in_feats < 32 * cfg["in_stride"] * (1 + cfg["do_maxpool"]):
        # four frequencies are the least in the last layer
        cfg |= {"in_stride": 1, "do_maxpool": False, "replace_stride_with_dilation": [False, True, False]}
    if "multilevel" in forced:
        cfg |= {"replace_stride_with_dilation": None, "do_maxpool": False, "in_stride": 1}
    if prefix in ("", "se") and "multilevel" not in forced and rng.random() < 0.4:
        cfg |= {"in_feats": rng.choice([13, 20, 23, 33]), "freq_pos_enc": False}
    return cfg | {key: value for key, value in forced.items() if key in cfg}


def draw_audio_feats(rng: Random, multiple_of: int) -> tuple[dict[str, Any], int]:
    """The configuration and the number of features."""
    cfg = pick(
        rng,
        audio_feat=["logfb"] * 5 + ["mfcc", "mfcc", "spec", "log_spec", "kanbayashi_logfb"],
        sample_frequency=[16000, 8000],
        frame_length=[25, 20, 32],
        frame_shift=[10, 12.5, 8],
        remove_dc_offset=[True, True, False],
        preemphasis_coeff=[0.97, 0.0, 0.9],
        window_type=["povey", "hamming", "hanning", "rectangular", "blackman"],
        use_fft_mag=[False, True],
        fb_type=["mel_kaldi", "mel_kaldi", "mel_etsi", "linear", "mel_librosa", "mel_librosa_htk"],
        low_freq=[20, 60],
        high_freq=[0, 3600, -300],
        norm_filters=[False, True],
        snip_edges=[True, False],
        center=[False, False, True],
        raw_energy=[True, False],
        use_energy=[False, False, True],
        cepstral_lifter=[22, 30, 0],
    )
    cfg |= {"dither": rng.choice([0.0, 2.0**-15]), "fft_length": rng.choice([512, 512, 1024, 128])}
    if multiple_of > 1:
        cfg |= {"audio_feat": rng.choice(["logfb", "mfcc"]), "use_energy": False}
    cfg["num_filters"] = rng.choice([16, 32] if multiple_of > 1 else [15, 20, 24])
    kind = cfg["audio_feat"]
    if kind == "mfcc":
        cfg["num_ceps"] = 16 if multiple_of > 1 else rng.choice([10, 13])
    if kind == "kanbayashi_logfb":
        # what this type does not leave open
        cfg = {
            key: value
            for key, value in cfg.items()
            if key not in ("use_fft_mag", "fb_type", "norm_filters", "use_energy")
        }
    if kind in ("spec", "log_spec"):
        length = int(cfg["frame_length"] * cfg["sample_frequency"] / 1000)
        return cfg, max(cfg["fft_length"], 1 << (length - 1).bit_length()) // 2 + 1
    energy = 1 if kind == "logfb" and cfg["use_energy"] else 0
    return cfg, (cfg["num_ceps"] if kind == "mfcc" else cfg["num_filters"]) + energy


def draw_feats(rng: Random, multiple_of: int = 1) -> tuple[dict[str, Any], int]:
    audio_feats, count = draw_audio_feats(rng, multiple_of)
    mvn = rng.choice([None, {}, {"norm_mean": True}, {"left_context": 5, "right_context": 5}, 1, 2, 3])
    if isinstance(mvn, int):
        mvn = pick(
            rng, norm_mean=[True, False], norm_var=[True, False], left_context=[0, 4, 150], right_context=[0, 6, 150]
        )
    aug = rng.choice(
        [None, {"time_warp_prob": 0.2, "time_mask_prob": 0.5, "freq_mask_prob": 0.5, "freq_mask_max_width": 5}]
    )
    feats = {"class_name": "AudioFeatsMVN", "audio_feats": audio_feats, "mvn": mvn, "spec_augment": aug, "trans": True}
    return feats | {"aug_after_mvn": rng.choice([False, True])}, count


def draw_model(seed: int, kind: str) -> tuple[dict[str, Any], Tensor]:
    """A configuration in canonical spelling, and an input; ``kind`` is a ``class_name``."""
    rng = Random(f"{kind} {seed}")
    flat = kind.endswith("ResNetXVector")
    wave = kind.startswith("Wav2")
    feats, count = (
        draw_feats(rng, 16 if flat else 1) if wave else (None, rng.choice([16, 32]) if flat else rng.choice([7, 24]))
    )
    inner = kind.removeprefix("Wav2")
    if inner == "ConformerV1XVector":
        count = count if wave else rng.choice([7, 7, 24, 12])
        encoder = {"encoder": draw_conformer(rng, count)}
    else:
        encoder = draw_resnet(rng, count) if flat else {"resnet_enc": draw_resnet_enc(rng, count)}
    if flat and wave:
        encoder["in_feats"] = count
    elif flat:
        count = encoder["in_feats"]
    config = {"class_name": inner} | encoder | draw_head(rng)
    if flat and config["norm_layer"] == "group-norm":
        config["norm_layer"] = "layer-norm"
    if flat and config["norm_layer"] == "instance-norm":
        config["zero_init_residual"] = False
    generator = torch.Generator().manual_seed(seed)
    if not wave:
        frames = rng.randrange(9, 60) if "encoder" in config else rng.randrange(60, 90)
        return config, torch.randn(1, count, 40 if flat else frames, generator=generator)
    config = {"class_name": kind, "feats": feats, "xvector": config}
    if flat and config["xvector"]["resnet_type"] == "lresnet34_345":
        feats["audio_feats"] |= {"snip_edges": False, "center": False}
        rate, shift = feats["audio_feats"]["sample_frequency"], feats["audio_feats"]["frame_shift"]
        samples = 40 * int(rate * shift / 1000)
    else:
        samples = rng.randrange(4000, 6000) if flat else rng.randrange(8000, 10000)
    x = torch.randn(1, samples, generator=generator).cumsum(1)
    return config, 0.03 * (x - x.mean()) / x.std() + 0.02 * torch.randn(1, samples, generator=generator)


OLD = {
    "norm_before": "norm_after",
    "use_norm": "wo_norm",
    "do_maxpool": "no_maxpool",
    "use_bias": "wo_bias",
    "norm_mean": "no_norm_mean",
}


def respell(config: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same model as another release writes it: old names, tuples, defaults left out, ints and floats mixed, surplus keys."""
    rng = Random(f"respell {seed}")
    config = copy.deepcopy(config)
    inner = config.get("xvector", config)
    parts = [(inner, heads.DEFAULTS | (resnet2d.DEFAULTS if "resnet_type" in inner else {}))]
    if "resnet_enc" in inner:
        parts.append((inner["resnet_enc"], {k: v for k, v in resnet1d.DEFAULTS.items() if k != "hid_act"}))
    if "encoder" in inner:
        parts.append((inner["encoder"], conformer.DEFAULTS))
    if "feats" in config:
        parts.append((config["feats"]["audio_feats"], {k: v for k, v in front_end.DEFAULTS.items() if k != "dither"}))
        config["feats"].pop("class_name")
    for part, defaults in parts:
        for key in [k for k in part if k in defaults and part[k] == defaults[k] and rng.random() < 0.7]:
            del part[key]
    pool = inner.get("pool_net")
    if isinstance(pool, dict):
        pool |= {"in_feats": 999}
        if pool["pool_type"] == "ch-wise-att-mean+stddev" and rng.random() < 0.5:
            pool["pool_type"] = "ch-wise-att-mean-stddev"
        if set(pool) <= {"pool_type", "dim", "keepdim", "in_feats"} and rng.random() < 0.5:
            inner["pool_net"] = pool["pool_type"]
    for key in ("resnet_enc", "encoder"):
        if key in inner and rng.random() < 0.5:
            inner["in_feats"] = inner[key]["in_feats"]
    if "cos_scale" in inner and rng.random() < 0.5:
        inner["s"] = inner.pop("cos_scale")
    mvn = config.get("feats", {}).get("mvn")
    if mvn and mvn.get("left_context") == mvn.get("right_context") and "left_context" in mvn:
        mvn["context"] = mvn.pop("left_context")
        del mvn["right_context"]
    return _respell_values(config, rng)


def _respell_values(value: Any, rng: Random) -> Any:
    if isinstance(value, dict):
        found = {}
        for key, item in value.items():
            old = OLD.get(key)
            if old and isinstance(item, bool) and rng.random() < 0.4:
                found[old] = not item
            else:
                found[key] = _respell_values(item, rng)
        return found
    if isinstance(value, list):
        return tuple(_respell_values(item, rng) for item in value) if rng.random() < 0.5 else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def rename(state: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The tensors as a trainer saves them: wrapper prefixes, a count of averaged models, either weight-norm spelling."""
    rng = Random(f"rename {seed}")
    prefix = rng.choice(["", "module.", "module.module."])
    found = {}
    for name, value in state.items():
        if name.endswith("num_batches_tracked") and seed % 3 == 0:
            continue
        if seed % 2:
            name = name.replace("output.weight_g", "output.parametrizations.weight.original0")
            name = name.replace("output.weight_v", "output.parametrizations.weight.original1")
        found[prefix + name] = value
    if prefix and rng.random() < 0.5:
        found["n_averaged"] = torch.tensor(4)
    return found
