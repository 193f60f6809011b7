"""The two ConvNeXt encoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference.parts import activation
from tests.reference.pooling import linear
from tests.reference.resnet1d import max_pool as max_pool_1d
from tests.reference.resnet1d import per_superblock
from tests.reference.tensors import Scope

DEFAULTS: dict[str, Any] = {
    "in_kernel_size": 4,
    "in_stride": 4,
    "short_name": None,
    "convb_repeats": [3, 3, 27, 3],
    "downb_strides": [2],
    "head_channels": 0,
    "hid_act": "gelu",
    "head_act": None,
    "drop_path_rate": 0,
    "norm_layer": "layer-norm",
    "multilayer": False,
    "multilayer_concat": False,
    "endpoint_channels": None,
    "endpoint_layers": None,
    "endpoint_scale_layer": -1,
}
DEFAULTS_1D: dict[str, Any] = {
    "convb_channels": [384, 512, 768, 1024],
    "convb_kernel_sizes": [7],
    "convb_dilations": [1],
    **DEFAULTS,
}
DEFAULTS_2D: dict[str, Any] = {"in_channels": 1, "convb_channels": [128, 256, 512, 1024], **DEFAULTS}

REPEATS = {"nano": [2, 2, 8, 2], "tiny": [3, 3, 9, 3]}
REPEATS |= {name: [3, 3, 27, 3] for name in ("small", "base", "large", "xlarge", "huge")}
WIDTHS_2D = {"atto": 40, "femto": 48, "pico": 64, "nano": 80, "tiny": 96, "small": 96}
WIDTHS_2D |= {"base": 128, "large": 192, "xlarge": 256, "huge": 352}
CHANNELS_2D = {name: [width, 2 * width, 4 * width, 8 * width] for name, width in WIDTHS_2D.items()}
CHANNELS_1D = {
    "atto": [96, 128, 160, 320],
    "femto": [96, 128, 192, 384],
    "pico": [96, 128, 256, 512],
    "pico2": [128, 128, 256, 512],
    "pico3": [128, 256, 256, 512],
    "pico4": [256, 256, 256, 512],
    "pico5": [512] * 4,
    "pico6": [512, 798, 1024, 1536],
    "pico7": [798, 1024, 1536, 2048],
    "nano": [96, 160, 320, 640],
    "tiny": [96, 192, 384, 768],
    "small": [96, 192, 384, 768],
    "base": [128, 256, 512, 1024],
    "large": [192, 384, 768, 1536],
    "huge": [352, 704, 1408, 2816],
}


def named_sizes(short_name: str, channels: dict[str, list[int]]) -> dict[str, list[int]]:
    return {
        "convb_repeats": REPEATS.get(short_name, [2, 2, 6, 2]),
        "convb_channels": channels[short_name],
        "downb_strides": [2, 2, 2],
    }


def channel_norm(t: Scope, x: Tensor) -> Tensor:
    """Every position of x (B, C, ...) by the mean and variance of its channels."""
    shape = (1, -1, *[1] * (x.dim() - 2))
    weight, bias = t("weight", x.shape[1], kind="scale"), t("bias", x.shape[1], kind="shift")
    mean = x.mean(1, keepdim=True)
    variance = ((x - mean) ** 2).mean(1, keepdim=True)
    return (x - mean) / (variance + 1e-6).sqrt() * weight.reshape(shape) + bias.reshape(shape)


def convolve(
    t: Scope,
    x: Tensor,
    out: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    padding: int | None = None,
) -> Tensor:
    axes = x.dim() - 2
    weight = t("weight", out, x.shape[1] // groups, *[kernel] * axes)
    pad = dilation * (kernel - 1) // 2 if padding is None else padding
    function = F.conv1d if axes == 1 else F.conv2d
    return function(x, weight, t("bias", out, kind="shift"), stride, pad, dilation, groups)


def response_norm(t: Scope, x: Tensor) -> Tensor:
    """x (B, [F,] T, C)."""
    shape = (1, *[1] * (x.dim() - 2), x.shape[-1])
    g = (x**2).sum(tuple(range(1, x.dim() - 1)), keepdim=True).sqrt()
    n = g / (g.mean(-1, keepdim=True) + 1e-6)
    return t("gamma", *shape) * (x * n) + t("beta", *shape, kind="shift") + x


def block(t: Scope, x: Tensor, kernel: int, dilation: int, act: Any) -> Tensor:
    channels = x.shape[1]
    h = convolve(t / "dwconv", x, channels, kernel, dilation=dilation, groups=channels)
    h = channel_norm(t / "norm", h).movedim(1, -1)
    h = activation(act, linear(t / "pwconv1", h, 4 * channels))
    h = linear(t / "pwconv2", response_norm(t / "grn", h), channels)
    return x + h.movedim(-1, 1)


def max_pool(x: Tensor, stride: int) -> Tensor:
    if x.dim() == 3:
        return max_pool_1d(x, stride)
    return F.max_pool2d(x, 2 * (stride // 2) + 1, stride, stride // 2) if stride > 1 else x


def endpoint(t: Scope, x: Tensor, out: int, z: int, z_ref: int) -> Tensor:
    x = channel_norm(t / "norm", x)
    place = t / "resample" / 0
    if z > z_ref:
        x = convolve(place, x, out, 1)
        for axis in range(2, x.dim()):
            x = x.repeat_interleave(z // z_ref, dim=axis)
        return x
    stride = z_ref // z
    if stride % 2:
        return max_pool(convolve(place, x, out, 1), stride)
    return max_pool(convolve(place, x, out, 2, 2, padding=0), stride // 2)


def cut(parts: list[Tensor]) -> list[Tensor]:
    """All to the shortest along every axis but channels, centred."""
    for axis in range(2, parts[0].dim()):
        size = min(p.shape[axis] for p in parts)
        parts = [p.narrow(axis, (p.shape[axis] - size) // 2, size) for p in parts]
    return parts


def aggregate(t: Scope, ends: list[Tensor], scales: list[int], channels: list[int], cfg: dict[str, Any]) -> Tensor:
    layers = cfg["endpoint_layers"] or list(range(1, len(ends) + 1))
    reference, concat = cfg["endpoint_scale_layer"], cfg["multilayer_concat"]
    out = cfg["endpoint_channels"] or channels[reference]
    parts, blocks = [], 0
    for i, end in enumerate(ends):
        if i + 1 not in layers:
            continue
        if not concat or scales[i] != scales[reference]:
            width = channels[i] if concat else out
            end = endpoint(t / "endpoint_blocks" / blocks, end, width, scales[i], scales[reference])
            blocks += 1
        parts.append(end)
    parts = cut(parts)
    if concat:
        return endpoint(t / "concat_endpoint_block", torch.cat(parts, 1), out, 1, 1)
    return torch.stack(parts).mean(0)


def encode(t: Scope, x: Tensor, config: dict[str, Any], two: bool) -> Tensor:
    """x (B, F, T) -> (B, C, T') or, flattened, (B, C F', T'); with a head (B, head_channels)."""
    cfg = {**(DEFAULTS_2D if two else DEFAULTS_1D), **config}
    if cfg["short_name"] is not None:
        cfg |= named_sizes(cfg["short_name"], CHANNELS_2D if two else CHANNELS_1D)
    repeats = list(cfg["convb_repeats"])
    channels = per_superblock(cfg["convb_channels"], len(repeats))
    kernels = per_superblock(7 if two else cfg["convb_kernel_sizes"], len(repeats))
    dilations = per_superblock(1 if two else cfg["convb_dilations"], len(repeats))
    strides = per_superblock(cfg["downb_strides"], len(repeats) - 1)
    if two and x.dim() == 3:
        x = x[:, None]
    kernel = max(cfg["in_kernel_size"], cfg["in_stride"])
    stem = t / "downsample_blocks" / 0
    x = channel_norm(stem / "norm", convolve(stem / "conv", x, channels[0], kernel, cfg["in_stride"]))
    ends, scales = [], [cfg["in_stride"]]
    for i, count in enumerate(repeats):
        if i > 0:
            stride, place = strides[i - 1], t / "downsample_blocks" / i
            scales.append(scales[-1] * stride)
            if two or stride != 1 or channels[i] != channels[i - 1]:
                x = convolve(place / "conv", channel_norm(place / "norm", x), channels[i], max(2, stride), stride)
        for j in range(count):
            x = block(t / "conv_blocks" / i / j, x, kernels[i], dilations[i], cfg["hid_act"])
        ends.append(x)
    if cfg["multilayer"]:
        x = aggregate(t, ends, scales, channels, cfg)
    if cfg["head_channels"]:
        x = channel_norm(t / "head_norm", x.mean(tuple(range(2, x.dim()))))
        return activation(cfg["head_act"], linear(t / "head", x, cfg["head_channels"]))
    return x.flatten(1, -2)
