"""The 2-D residual encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference.parts import Style, conv, squeeze_excite_2d
from tests.reference.resnet1d import res2_basic, res2_bottleneck, res2_residual
from tests.reference.tensors import Scope

DEFAULTS: dict[str, Any] = {
    "in_channels": 1,
    "conv_channels": 64,
    "base_channels": 64,
    "in_kernel_size": 7,
    "in_stride": 1,
    "zero_init_residual": False,
    "groups": 1,
    "replace_stride_with_dilation": None,
    "do_maxpool": False,
    "in_norm": False,
    "se_r": 16,
    "res2net_scale": 4,
    "res2net_width_factor": 1,
    "freq_pos_enc": False,
}
SE_KINDS = {"cfwse": "cfw-se", "fwse": "fw-se", "tse": "t-se", "se": "cw-se"}
LIGHT = {"conv_channels": 16, "base_channels": 16}
FAMILIES: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "resnet18": ("basic", [2, 2, 2, 2], {}),
    "resnet34": ("basic", [3, 4, 6, 3], {}),
    "resnet50": ("bn", [3, 4, 6, 3], {}),
    "resnet101": ("bn", [3, 4, 23, 3], {}),
    "resnet152": ("bn", [3, 8, 36, 3], {}),
    "resnext50_32x4d": ("bn", [3, 4, 6, 3], {"groups": 32, "base_channels": 128}),
    "resnext101_32x8d": ("bn", [3, 4, 23, 3], {"groups": 32, "base_channels": 256}),
    "wideresnet50": ("bn", [3, 4, 6, 3], {"base_channels": 128}),
    "wideresnet101": ("bn", [3, 4, 23, 3], {"base_channels": 128}),
    "lresnet18": ("basic", [2, 2, 2, 2], LIGHT),
    "lresnet34": ("basic", [3, 4, 6, 3], LIGHT),
    "lresnet50": ("bn", [3, 4, 6, 3], LIGHT),
    "lresnext50_4x4d": ("bn", [3, 4, 6, 3], {"groups": 4, "base_channels": 16}),
    "lresnet34_345": ("basic", [3, 4, 6, 3], {**LIGHT, "multilevel": 64}),
    "res2net18": ("res2basic", [2, 2, 2, 2], {}),
    "res2net34": ("res2basic", [3, 4, 6, 3], {}),
    "res2net50": ("res2bn", [3, 4, 6, 3], {}),
    "res2net101": ("res2bn", [3, 4, 23, 3], {}),
    "res2net152": ("res2bn", [3, 8, 36, 3], {}),
    "res2next50_32x4d": ("res2bn", [3, 4, 6, 3], {"groups": 32, "base_channels": 128}),
    "res2next101_32x8d": ("res2bn", [3, 4, 23, 3], {"groups": 32, "base_channels": 256}),
    "wideres2net50": ("res2bn", [3, 4, 6, 3], {"base_channels": 128}),
    "wideres2net101": ("res2bn", [3, 4, 23, 3], {"base_channels": 128}),
    "lres2net50": ("res2bn", [3, 4, 6, 3], LIGHT),
    "lres2next50_4x4d": ("res2bn", [3, 4, 6, 3], {"groups": 4, "base_channels": 16}),
    "idrndresnet100": ("basic", [6, 16, 24, 3], {"base_channels": 128, "widths": [128, 128, 256, 256]}),
    "idrndresnet202": ("basic", [6, 16, 75, 3], {"base_channels": 128, "widths": [128, 128, 256, 256]}),
}


def resolve(resnet_type: str) -> tuple[str | None, str, list[int], dict[str, Any]]:
    """The kind of squeeze-excitation (or None), the plain block, the depths and the forced values of a name."""
    for prefix, se in SE_KINDS.items():
        if resnet_type.startswith(prefix) and resnet_type[len(prefix) :] in FAMILIES:
            return (se, *FAMILIES[resnet_type[len(prefix) :]])
    return (None, *FAMILIES[resnet_type])


def block(t: Scope, x: Tensor, cfg: dict, n: int, stride: int, dilation: int, style: Style) -> Tensor:
    kind, se, bias, groups = cfg["block"], cfg["se"], not style.norm_before, cfg["groups"]
    out = n if kind.endswith("basic") else 4 * n
    residual = res2_residual(t, x, out, stride, style)
    if cfg["freq_pos_enc"] and se:
        x = x + t("pos_enc.pos_enc", x.shape[2], 1, kind="shift")

    def excite(v: Tensor) -> Tensor:
        return squeeze_excite_2d(t / "se_layer", v, cfg["se_r"], style.act, se) if se else v

    shape = {"kernel": 3, "stride": stride, "dilation": dilation, "groups": groups, "bias": bias}
    scale = cfg["res2net_scale"]
    width = int(cfg["res2net_width_factor"] * n) // scale
    if kind.endswith("basic"):
        if kind == "basic":
            h = style.norm_act(t / "bn1", conv(t / "conv1", x, n, **shape))
        else:
            h = res2_basic(t, x, width, scale, shape, style, last_name="conv1x1", strided_projections=False)
        h = conv(t / "conv2", h, n, 3, groups=groups, bias=bias)
        return style.end(t / "bn2", h, residual, excite)
    middle = n if kind == "bn" else width * scale
    h = style.norm_act(t / "bn1", conv(t / "conv1", x, middle, bias=bias))
    if kind == "bn":
        h = style.norm_act(t / "bn2", conv(t / "conv2", h, n, **shape))
    else:
        h = res2_bottleneck(t, h, width, scale, shape, style)
    return style.end(t / "bn3", conv(t / "conv3", h, out, bias=bias), residual, excite)


def encode(t: Scope, x: Tensor, config: dict, head_config: dict) -> Tensor:
    """x (B, F, T) -> (B, C * F', T')."""
    se, kind, depths, forced = resolve(config["resnet_type"])
    cfg = {**DEFAULTS, **config, **forced, "se": se, "block": kind}
    before, norm = head_config["norm_before"], head_config["norm_layer"]
    style = Style(head_config["hid_act"], norm, max(min(cfg["base_channels"] // 2, 32), cfg["groups"]), before)
    x = x[:, None]
    if cfg["in_norm"]:
        x = style.normalise(t / "in_bn", x)
    stem = t / "in_block"
    x = conv(stem / "conv", x, cfg["conv_channels"], cfg["in_kernel_size"], cfg["in_stride"], bias=not before)
    x = style.norm_act(stem / "bn", x)
    if cfg["do_maxpool"]:
        x = F.max_pool2d(x, 3, 2, 1)
    widths = cfg.get("widths") or [cfg["base_channels"] * m for m in (1, 2, 4, 8)]
    dilate = [False, *(cfg["replace_stride_with_dilation"] or [False] * 3)]
    dilation, ends = 1, []
    for layer, (count, n, stride) in enumerate(zip(depths, widths, (1, 2, 2, 2), strict=True)):
        first_dilation = dilation
        if dilate[layer]:
            dilation, stride = dilation * stride, 1
        for j in range(count):
            place = t / f"layer{layer + 1}" / j
            x = block(place, x, cfg, n, 1 if j else stride, dilation if j else first_dilation, style)
        ends.append(x)
    if "multilevel" in cfg:
        x = multilevel(t, ends[1:], cfg["multilevel"], style)
    return x.flatten(1, 2)


def multilevel(t: Scope, ends: list[Tensor], out: int, style: Style) -> Tensor:
    total = torch.zeros(())
    for layer, (x, factor) in enumerate(zip(ends, (1, 2, 4), strict=True), start=2):
        place = t / f"endpoint{layer}"
        if x.shape[1] != out:
            x = style.norm_act(place / "bn", conv(place / "conv", x, out, bias=not style.norm_before))
        total = total + x.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    return total / 3
