"""From frames (B, D, T) to one vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference.parts import conv, normalise
from tests.reference.tensors import Scope


def mean_stddev(x: Tensor, w: Tensor | None = None) -> Tensor:
    w = torch.ones_like(x) if w is None else w
    mean = (w * x).sum(2) / w.sum(2)
    variance = (w * (x - mean[:, :, None]) ** 2).sum(2) / w.sum(2)
    return torch.cat([mean, variance.clamp(min=1e-5).sqrt()], 1)


def lde(t: Scope, x: Tensor, cfg: dict[str, Any]) -> Tensor:
    cfg = {"num_comp": 64, "dist_pow": 2, "use_bias": False, **cfg}
    count, dim = cfg["num_comp"], x.shape[1]
    delta = x.transpose(1, 2)[:, :, None] - t("mu", count, dim, kind="shift")
    distance = (delta**2).sum(3) if cfg["dist_pow"] == 2 else delta.norm(dim=3)
    score = -(t("prec", count, kind="scale") ** 2) * distance
    if cfg["use_bias"]:
        score = score + t("bias", count, kind="shift")
    r = score.softmax(2)[..., None]
    return ((r * delta).sum(1) / (r.sum(1) + 1e-6)).flatten(1)


def linear(t: Scope, x: Tensor, out: int, bias: bool = True) -> Tensor:
    return F.linear(x, t("weight", out, x.shape[-1]), t("bias", out, kind="shift") if bias else None)


def scaled_dot(t: Scope, x: Tensor, cfg: dict[str, Any]) -> Tensor:
    cfg = {"num_heads": 8, "d_k": 256, "d_v": 256, "bin_attn": False, **cfg}
    heads, d_k, d_v = cfg["num_heads"], cfg["d_k"], cfg["d_v"]
    x = x.transpose(1, 2)
    k = linear(t / "linear_k", x, heads * d_k).unflatten(2, (heads, d_k))
    v = linear(t / "linear_v", x, heads * d_v).unflatten(2, (heads, d_v))
    a = (k * t("q", 1, heads, 1, d_k)[0, :, 0]).sum(3) / d_k**0.5
    if cfg["bin_attn"]:
        a = torch.sigmoid(a + t("bias", 1, heads, 1, 1, kind="shift")[:, :, 0, 0])
        a = a / (a.sum(1, keepdim=True) + 1e-9)
    else:
        a = a.softmax(1)
    return (a[..., None] * v).sum(1).flatten(1)


def channel_wise(t: Scope, x: Tensor, cfg: dict[str, Any]) -> Tensor:
    cfg = {"inner_feats": 128, "bin_attn": False, "use_global_context": True, **cfg}
    inner = cfg["inner_feats"]
    h = conv(t / "conv1", x, inner, bias=False)
    if cfg["use_global_context"]:
        h = h + linear(t / "lin_global", mean_stddev(x), inner, bias=False)[:, :, None]
    a = conv(t / "conv2", torch.tanh(normalise(t / "norm_layer", None, h, 1)), x.shape[1])
    if cfg["bin_attn"]:
        w = torch.sigmoid(a + t("bias", 1, x.shape[1], 1, kind="shift")).clamp(min=1e-6)
    else:
        w = a.softmax(2)
    return mean_stddev(x, w)


def pool(t: Scope, x: Tensor, config: dict[str, Any]) -> Tensor:
    cfg = {k: v for k, v in config.items() if k not in ("pool_type", "in_feats", "dim", "keepdim")}
    kind = config["pool_type"]
    if kind == "avg":
        return x.mean(2)
    if kind == "mean+stddev":
        return mean_stddev(x)
    if kind == "mean+logvar":
        mean = x.mean(2)
        return torch.cat([mean, ((x**2).mean(2) - mean**2 + 1e-5).log()], 1)
    return {"lde": lde, "scaled-dot-prod-att-v1": scaled_dot, "ch-wise-att-mean+stddev": channel_wise}[kind](t, x, cfg)
