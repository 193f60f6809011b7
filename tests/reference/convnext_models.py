"""Seeded random configurations of models with ConvNeXt encoders."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.reference.convnext import per_superblock
from tests.reference.random_models import ACTS, draw_feats, draw_head, pick


def draw_convnext_enc(rng: Random, two: bool) -> dict[str, Any]:
    """The keys of ``convnext_enc`` but ``in_feats``."""
    count = rng.choice([1, 2, 3, 3])
    cfg = pick(
        rng,
        in_kernel_size=[1, 2, 3, 4, 5],
        in_stride=[1, 1, 2, 4],
        short_name=[None],
        hid_act=["gelu", "gelu", *ACTS],
        head_act=[None, "relu"],
        head_channels=[0],
        drop_path_rate=[0, 0.2],
        norm_layer=["layer-norm", "layer-norm", None],
        multilayer=[False, True, True],
        multilayer_concat=[False, True],
    )
    cfg["convb_repeats"] = [rng.choice([1, 2]) for _ in range(count)]
    cfg["convb_channels"] = rng.choice([[12], [rng.choice([8, 12, 20]) for _ in range(count)]])
    if not two:
        cfg["convb_kernel_sizes"] = rng.choice([[7], [3], [rng.choice([1, 3, 5, 7]) for _ in range(count)]])
        cfg["convb_dilations"] = rng.choice([[1], [2], [rng.choice([1, 2, 3]) for _ in range(count)]])
    most = 12 if two else 32
    cfg["downb_strides"] = [99]
    while cfg["in_stride"] * math.prod(per_superblock(cfg["downb_strides"], count - 1)) > most:
        steps = [1, 1, 2, 2, 3, 4] if two else [1, 1, 2, 2, 3, 4, 6, 8]
        cfg["downb_strides"] = rng.choice([[2], [rng.choice(steps) for _ in range(max(count - 1, 1))]])
    cfg["endpoint_channels"] = rng.choice([None, 16])
    cfg["endpoint_layers"] = rng.choice([None, rng.sample(range(1, count + 1), rng.randint(1, count))])
    cfg["endpoint_scale_layer"] = rng.choice([-1, *range(-count, count)])
    return cfg


def draw_convnext(seed: int, kind: str) -> tuple[dict[str, Any], Tensor]:
    """A configuration in canonical spelling, and an input; ``kind`` is a ``class_name``."""
    rng = Random(f"{kind} {seed}")
    two, wave = "2d" in kind, kind.startswith("Wav2")
    feats, count = draw_feats(rng, 16 if two else 1) if wave else (None, rng.choice([24, 33]))
    encoder = draw_convnext_enc(rng, two)
    while two and count < 4 * encoder["in_stride"] * math.prod(encoder["downb_strides"]):
        encoder = draw_convnext_enc(rng, two)
    if not two:
        encoder["in_feats"] = count
    config = {"class_name": kind.removeprefix("Wav2"), "convnext_enc": encoder} | draw_head(rng)
    if two:
        config["in_feats"] = count
    generator = torch.Generator().manual_seed(seed)
    if not wave:
        frames = rng.randrange(60, 90) if two else rng.randrange(130, 170)
        return config, torch.randn(1, count, frames, generator=generator)
    samples = rng.randrange(9000, 12000) if two else rng.randrange(20000, 24000)
    x = torch.randn(1, samples, generator=generator).cumsum(1)
    x = 0.03 * (x - x.mean()) / x.std() + 0.02 * torch.randn(1, samples, generator=generator)
    return {"class_name": kind, "feats": feats, "xvector": config}, x


def respell_convnext(config: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same model with tuples for lists, single numbers for lists of one, and surplus keys."""
    rng = Random(f"respell {seed}")
    inner = dict(config.get("xvector", config))
    encoder: dict[str, Any] = {}
    for key, value in inner["convnext_enc"].items():
        if isinstance(value, list):
            single = len(value) == 1 and key.startswith(("convb_", "downb_")) and key != "convb_repeats"
            value = value[0] if single and rng.random() < 0.5 else tuple(value)
        encoder[key] = value
    encoder["another_release"] = 3
    inner["convnext_enc"] = encoder
    if "in_feats" in encoder and rng.random() < 0.5:
        inner["in_feats"] = encoder["in_feats"]
    if rng.random() < 0.5:
        inner["s"] = inner.pop("cos_scale")
    return {**config, "xvector": inner} if "xvector" in config else inner
