"""The 1-D residual encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference.parts import Style, activation, conv, squeeze_excite_1d
from tests.reference.tensors import Scope

DEFAULTS: dict[str, Any] = {
    "in_conv_channels": 128,
    "in_kernel_size": 3,
    "in_stride": 1,
    "resb_type": "basic",
    "resb_repeats": [1, 1, 1],
    "resb_channels": 128,
    "resb_kernel_sizes": 3,
    "resb_strides": 2,
    "resb_dilations": 1,
    "resb_groups": 1,
    "head_channels": 0,
    "hid_act": "relu",
    "head_act": None,
    "dropout_rate": 0,
    "drop_connect_rate": 0,
    "se_r": 16,
    "res2net_width_factor": 1,
    "res2net_scale": 4,
    "multilayer": False,
    "multilayer_concat": False,
    "endpoint_channels": None,
    "endpoint_layers": None,
    "endpoint_scale_layer": -1,
    "use_norm": True,
    "norm_layer": None,
    "norm_before": True,
    "upsampling_mode": "nearest",
}


def per_superblock(value: Any, count: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def max_pool(x: Tensor, stride: int) -> Tensor:
    return F.max_pool1d(x, 2 * (stride // 2) + 1, stride, stride // 2) if stride > 1 else x


def downsample(t: Scope, x: Tensor, out: int, stride: int, style: Style) -> Tensor:
    """1x1 convolution, normalisation (before only), max-pool: the residual of plain blocks and the way of endpoints."""
    conv_stride = 2 if stride % 2 == 0 else 1
    x = conv(t / 0, x, out, stride=conv_stride, bias=not style.norm_before)
    if style.norm_before:
        x = style.normalise(t / 1, x)
    return max_pool(x, stride // conv_stride)


def plain_residual(t: Scope, x: Tensor, out: int, stride: int, style: Style) -> Tensor:
    return x if stride == 1 and x.shape[1] == out else downsample(t / "downsample", x, out, stride, style)


def res2_residual(t: Scope, x: Tensor, out: int, stride: int, style: Style) -> Tensor:
    if stride == 1 and x.shape[1] == out:
        return x
    if not style.norm_before:
        return conv(t / "downsample", x, out, stride=stride)
    return style.normalise(t / "downsample" / 1, conv(t / "downsample" / 0, x, out, stride=stride, bias=False))


def block(t: Scope, x: Tensor, cfg: dict, out: int, kernel: int, stride: int, dilation: int, style: Style) -> Tensor:
    kind, groups, bias = cfg["resb_type"], cfg["resb_groups"], not style.norm_before
    core = kind.removeprefix("se")
    residual = (res2_residual if core.startswith("res2") else plain_residual)(t, x, out, stride, style)

    def excite(v: Tensor) -> Tensor:
        return squeeze_excite_1d(t / "se_layer", v, cfg["se_r"], cfg["hid_act"]) if kind.startswith("se") else v

    shape = {"kernel": kernel, "stride": stride, "dilation": dilation, "groups": groups, "bias": bias}
    if core == "basic":
        h = style.norm_act(t / "bn1", conv(t / "conv1", x, out, **shape))
        h = conv(t / "conv2", h, out, kernel, groups=groups, bias=bias)
        return style.end(t / "bn2", h, residual, excite)
    if core == "bn":
        h = style.norm_act(t / "bn1", conv(t / "conv1", x, out // 4, bias=bias))
        h = style.norm_act(t / "bn2", conv(t / "conv2", h, out // 4, **shape))
        return style.end(t / "bn3", conv(t / "conv3", h, out, bias=bias), residual, excite)
    scale = cfg["res2net_scale"]
    width = int(cfg["res2net_width_factor"] * out) // scale
    if core == "res2bn":
        h = style.norm_act(t / "bn1", conv(t / "conv1", x, width * scale, bias=bias))
        h = res2_bottleneck(t, h, width, scale, shape, style)
        return style.end(t / "bn3", conv(t / "conv3", h, out, bias=bias), residual, excite)
    assert core == "res2basic"
    h = res2_basic(t, x, width, scale, shape, style, last_name="conv1", strided_projections=True)
    h = conv(t / "conv2", h, out, kernel, groups=groups, bias=bias)
    return style.end(t / "bn2", h, residual, excite)


def res2_bottleneck(t: Scope, h: Tensor, width: int, scale: int, shape: dict, style: Style) -> Tensor:
    """The split convolutions of a Res2Net bottleneck (1-D and 2-D)."""
    groups = list(h.split(width, dim=1))
    outputs: list[Tensor] = []
    for i in range(max(1, scale - 1)):
        u = groups[i] + outputs[-1] if i and shape["stride"] == 1 else groups[i]
        outputs.append(style.norm_act(t / "bn2s" / i, conv(t / "conv2s" / i, u, width, **shape)))
    if scale > 1:
        pool = F.avg_pool1d if h.dim() == 3 else F.avg_pool2d
        outputs.append(groups[-1] if shape["stride"] == 1 else pool(groups[-1], 3, shape["stride"], 1))
    return torch.cat(outputs, dim=1)


def res2_basic(
    t: Scope, x: Tensor, out: int, scale: int, shape: dict, style: Style, last_name: str, strided_projections: bool
) -> Tensor:
    """The split convolutions of a basic Res2Net block (1-D and 2-D)."""
    axes, into, stride = x.dim() - 2, x.shape[1] // scale, shape["stride"]
    sizes = [into] * (scale - 1) + [x.shape[1] % into + into] if scale > 1 else [x.shape[1]]
    groups = list(x.split(sizes, dim=1))
    outputs: list[Tensor] = []
    for i in range(max(1, scale - 1)):
        u = groups[i]
        projected = into != out and i > 0 and (stride == 1 or strided_projections)
        if projected:
            t(f"proj1s.{i - 1}.weight", into, out, *[1] * axes)
        if i and stride == 1:
            u = u + (conv(t / "proj1s" / (i - 1), outputs[-1], into, bias=False) if projected else outputs[-1])
        outputs.append(style.norm_act(t / "bn1s" / i, conv(t / "conv1s" / i, u, out, **shape)))
    if scale > 1:
        outputs.append(conv(t / last_name, groups[-1], out, stride=stride, bias=shape["bias"]))
    return torch.cat(outputs, dim=1)


def endpoint(t: Scope, x: Tensor, out: int, z: int, z_ref: int, style: Style, cfg: dict) -> Tensor:
    """Brings one superblock to the common scale; the normalisation is on whatever ``use_norm`` says."""
    r = t / "resample"
    if z <= z_ref:
        x = downsample(r, x, out, z_ref // z, style)
    elif cfg["upsampling_mode"] == "subpixel":
        x = subpixel(r / 0 / "conv" if style.norm_before else r / "conv", x, out, z // z_ref, style)
        if style.norm_before:
            x = style.normalise(r / 1, x)
    else:
        x = downsample(r, x, out, 1, style).repeat_interleave(z // z_ref, dim=2)
    x = style.activate(x)
    return x if style.norm_before else style.normalise(t / "bn", x)


def subpixel(t: Scope, x: Tensor, out: int, factor: int, style: Style) -> Tensor:
    x = conv(t, x, out * factor, bias=not style.norm_before)
    return x.unflatten(1, (factor, out)).permute(0, 2, 3, 1).flatten(2)


def cut_to_shortest(parts: list[Tensor]) -> list[Tensor]:
    shortest = min(p.shape[2] for p in parts)
    return [p[:, :, (p.shape[2] - shortest) // 2 :][:, :, :shortest] for p in parts]


def aggregate(t: Scope, ends: list[Tensor], scales: list[int], channels: list[int], cfg: dict, style: Style) -> Tensor:
    layers = cfg["endpoint_layers"] or list(range(1, len(ends) + 1))
    z_ref = scales[cfg["endpoint_scale_layer"]]
    out = cfg["endpoint_channels"] or channels[cfg["endpoint_scale_layer"]]
    style = Style(style.act, style.norm, style.groups, style.norm_before)
    parts, blocks = [], 0
    for layer in range(len(ends)):
        if layer + 1 not in layers:
            continue
        part = ends[layer]
        if not cfg["multilayer_concat"] or scales[layer] != z_ref:
            width = channels[layer] if cfg["multilayer_concat"] else out
            part = endpoint(t / "endpoint_blocks" / blocks, part, width, scales[layer], z_ref, style, cfg)
            blocks += 1
        parts.append(part)
    parts = cut_to_shortest(parts)
    if cfg["multilayer_concat"]:
        return endpoint(t / "concat_endpoint_block", torch.cat(parts, 1), out, 1, 1, style, cfg)
    return torch.stack(parts).mean(0)


def encode(t: Scope, x: Tensor, config: dict) -> Tensor:
    """x (B, F, T) -> (B, C, T')."""
    cfg = {**DEFAULTS, **config}
    repeats = list(cfg["resb_repeats"])
    channels, kernels, strides, dilations = (
        per_superblock(cfg[f"resb_{key}"], len(repeats)) for key in ("channels", "kernel_sizes", "strides", "dilations")
    )
    groups = max(min(min(channels) // 2, 32), cfg["resb_groups"])
    style = Style(cfg["hid_act"], cfg["norm_layer"], groups, cfg["norm_before"], cfg["use_norm"])
    stem = t / "in_block"
    bias = not (cfg["use_norm"] and cfg["norm_before"])
    x = conv(stem / "conv1", x, cfg["in_conv_channels"], cfg["in_kernel_size"], cfg["in_stride"], bias=bias)
    x = style.norm_act(stem / "bn1", x)
    ends, scales, scale = [], [], cfg["in_stride"]
    for i, count in enumerate(repeats):
        scale *= strides[i]
        for j in range(count):
            stride = 1 if j else strides[i]
            dilation = dilations[i] if stride == 1 else 1
            x = block(t / "blocks" / i / j, x, cfg, channels[i], kernels[i], stride, dilation, style)
        ends.append(x)
        scales.append(scale)
    if cfg["multilayer"]:
        x = aggregate(t, ends, scales, channels, cfg, style)
    if cfg["head_channels"]:
        x = activation(cfg["head_act"], conv(t / "head_block" / "conv1", x, cfg["head_channels"]))
    return x
