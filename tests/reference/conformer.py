"""The Conformer encoder, pair of frames by pair of frames."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference.parts import activation, conv, normalise, squeeze_excite_1d
from tests.reference.pooling import linear
from tests.reference.tensors import Scope

DEFAULTS: dict[str, Any] = {
    "d_model": 256,
    "num_heads": 4,
    "num_blocks": 6,
    "att_type": "scaled-dot-prod-v1",
    "att_context": 25,
    "conv_repeats": 1,
    "conv_kernel_sizes": 31,
    "conv_strides": 1,
    "ff_type": "linear",
    "d_ff": 2048,
    "ff_kernel_size": 1,
    "dropout_rate": 0.1,
    "pos_dropout_rate": 0.1,
    "att_dropout_rate": 0,
    "in_layer_type": "conv2d-sub",
    "in_stride": 4,
    "pos_enc_type": "rel",
    "causal_pos_enc": False,
    "pos_kernel_size": 128,
    "pos_num_groups": 16,
    "hid_act": "swish",
    "conv_norm_layer": None,
    "se_r": None,
    "ff_macaron": True,
    "red_lnorms": True,
    "concat_after": False,
    "padding_idx": -1,
    "in_time_dim": 2,
    "out_time_dim": 2,
}


def layer_norm(t: Scope, x: Tensor) -> Tensor:
    d = x.shape[-1]
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt() * t("weight", d, kind="scale") + t("bias", d, kind="shift")


def encoding(position: int, d: int) -> Tensor:
    """One row of the table, also for negative positions."""
    row = torch.zeros(d, dtype=torch.float64)
    for i in range((d + 1) // 2):
        angle = position * 10000 ** (-2 * i / d)
        row[2 * i] = math.sin(angle)
        if 2 * i + 1 < d:
            row[2 * i + 1] = math.cos(angle)
    return row


def along_time(t: Scope, x: Tensor, out: int, kernel: int) -> Tensor:
    """A convolution over (B, T, d)."""
    return conv(t, x.transpose(1, 2), out, kernel).transpose(1, 2)


def conv_2d(t: Scope, x: Tensor, out: int, stride: int) -> Tensor:
    """x (B, C, F, T); zeros around time only."""
    padded = F.pad(x, (1, 1))
    return F.conv2d(padded, t("weight", out, x.shape[1], 3, 3), t("bias", out, kind="shift"), stride=stride)


def input_layer(t: Scope, x: Tensor, cfg: dict[str, Any]) -> Tensor:
    """x (B, F, T) -> (B, T', d)."""
    kind, d, act = cfg["in_layer_type"], cfg["d_model"], cfg["hid_act"]
    s1, s2 = {4: (2, 2), 2: (2, 1), 1: (1, 1)}[cfg["in_stride"]]
    if kind == "conv2d-sub":
        x = activation(act, conv_2d(t / "conv" / 0, x[:, None], d, s1))
        x = activation(act, conv_2d(t / "conv" / 2, x, d, s2))
        rows = [torch.cat([x[:, c, :, time] for c in range(d)], 1) for time in range(x.shape[3])]
        return position_encoder(t / "out" / 1, linear(t / "out" / 0, torch.stack(rows, 1), d), cfg)
    if kind == "conv1d-sub":
        x = activation(act, conv(t / "conv" / 0, x, d, 3, s1))
        x = activation(act, conv(t / "conv" / 2, x, d, 3, s2))
        return position_encoder(t / "out" / 1, linear(t / "out" / 0, x.transpose(1, 2), d), cfg)
    x = x.transpose(1, 2)
    if kind == "linear":
        x = activation(act, layer_norm(t / 1, linear(t / 0, x, d)))
        return position_encoder(t / 4, x, cfg)
    assert kind in (None, "None")
    return position_encoder(t / 0, x, cfg)


def position_encoder(t: Scope, x: Tensor, cfg: dict[str, Any]) -> Tensor:
    kind, d = cfg["pos_enc_type"], cfg["d_model"]
    if kind == "rel":
        return x * math.sqrt(d)
    if kind == "abs":
        table = torch.stack([encoding(position, d) for position in range(x.shape[1])])
        return x * math.sqrt(d) + table.to(x.dtype)
    if kind == "conv":
        k, groups = cfg["pos_kernel_size"], cfg["pos_num_groups"]
        weight, bias = t / "conv", (t / "conv")("bias", d, kind="shift")
        y = F.conv1d(x.transpose(1, 2), weight("weight", d, d // groups, k), bias, padding=k // 2, groups=groups)
        if k % 2 == 0:
            y = y[..., :-1]
        return activation(cfg["hid_act"], y).transpose(1, 2)
    return x


def pairs(frames: int, cfg: dict[str, Any]) -> Tensor:
    """(T, T) which pairs of frames attend to each other."""
    kind, context, rel = cfg["att_type"].split("-")[0], cfg["att_context"], cfg["pos_enc_type"] == "rel"
    allowed = torch.zeros(frames, frames, dtype=torch.bool)
    if kind == "scaled":
        return ~allowed
    if kind == "local":
        whole = round(frames / context) <= 1 if rel else frames <= 2 * context
        blocks = max(1, round(frames / context))
    else:
        whole = frames // context <= 1 if rel else frames < 2 * context
        blocks = max(1, frames // context)
    if whole:
        return ~allowed
    c = math.ceil(frames / blocks)
    s = c // 2
    for i in range(frames):
        for j in range(frames):
            allowed[i, j] = i // c == j // c
            if kind == "block":
                continue
            for b in range(blocks - 1):
                first = s + b * c
                if first <= i < first + c and first <= j < first + c:
                    p, q = i - first, j - first
                    if not (p < c - s and q < c - s) and not (p >= s and q >= s):
                        allowed[i, j] = True
    return allowed


def attention(t: Scope, x: Tensor, cfg: dict[str, Any]) -> Tensor:
    d, heads, frames = cfg["d_model"], cfg["num_heads"], x.shape[1]
    size = d // heads
    q, k, v = (linear(t / f"linear_{name}", x, d) for name in "qkv")
    rel = cfg["pos_enc_type"] == "rel"
    if rel:
        u_all, v_all = t("u", heads, size), t("v", heads, size)
        distances = range(-frames + 1, frames)
        table = torch.stack([encoding(r, d) for r in distances]).to(x.dtype)
        p = linear(t / "linear_pos", table, d)
    allowed = pairs(frames, cfg)
    out = torch.zeros_like(x)
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        for i in range(frames):
            qi = q[:, i, part]
            if rel:
                content = ((qi + u_all[h])[:, None] * k[:, :, part]).sum(-1)
                place = (qi + v_all[h]) @ p[[i - j + frames - 1 for j in range(frames)], part].T
                if cfg["causal_pos_enc"]:
                    place[:, i + 1 :] = 0
                scores = (content + place) / math.sqrt(size)
            else:
                scores = (qi[:, None] * k[:, :, part]).sum(-1) / math.sqrt(size)
            scores = scores.masked_fill(~allowed[i], -math.inf)
            out[:, i, part] = (scores.softmax(-1)[:, :, None] * v[:, :, part]).sum(1)
    return linear(t / "linear_out", out, d)


def feed_forward(t: Scope, x: Tensor, cfg: dict[str, Any]) -> Tensor:
    d, hidden, k, act = cfg["d_model"], cfg["d_ff"], cfg["ff_kernel_size"], cfg["hid_act"]
    if cfg["ff_type"] == "linear":
        return linear(t / "w_2", activation(act, linear(t / "w_1", x, hidden)), d)
    y = activation(act, along_time(t / "w_1", x, hidden, k))
    return along_time(t / "w_2", y, d, k if cfg["ff_type"] == "conv1dx2" else 1)


def conv_block(t: Scope, x: Tensor, kernel: int, stride: int, cfg: dict[str, Any]) -> Tensor:
    d, act = cfg["d_model"], cfg["hid_act"]
    u = conv(t / "conv_exp", layer_norm(t / "layer_norm", x).transpose(1, 2), 2 * d)
    u = u[:, :d] * torch.sigmoid(u[:, d:])
    u = conv(t / "conv_dw", u, d, kernel, stride, groups=d, bias=False)
    u = norm_dw(t / "norm_dw", u, cfg["conv_norm_layer"])
    u = activation(act, u)
    if cfg["se_r"] is not None and cfg["se_r"] > 1:
        u = squeeze_excite_1d(t / "se_layer", u, cfg["se_r"], act)
    u = conv(t / "conv_proj", u, d)
    return x[:, ::stride] + u.transpose(1, 2)


def norm_dw(t: Scope, u: Tensor, kind: str | None) -> Tensor:
    d = u.shape[1]
    if kind not in (None, "batch-norm"):
        return normalise(t, kind, u, max(min(d // 2, 32), 1))
    t("num_batches_tracked", kind="steps")
    mean, var = t("running_mean", d, kind="shift"), t("running_var", d, kind="variance")
    u = (u - mean[:, None]) / (var[:, None] + 1e-3).sqrt()
    return u * t("weight", d, kind="scale")[:, None] + t("bias", d, kind="shift")[:, None]


def of_block(value: Any, n: int) -> int:
    if isinstance(value, int):
        return value
    return value[n] if len(value) > 1 else value[0]


def block(t: Scope, x: Tensor, n: int, cfg: dict[str, Any]) -> Tensor:
    scale = 1.0
    if cfg["ff_macaron"]:
        scale = 0.5
        x = x + 0.5 * feed_forward(t / "feed_forward_macaron", layer_norm(t / "norm_ff_macaron", x), cfg)
    y = layer_norm(t / "norm_att", x)
    z = attention(t / "self_attn", y, cfg)
    if cfg["concat_after"]:
        z = linear(t / "concat_linear", torch.cat([y, z], 2), cfg["d_model"])
    x = x + z
    for i in range(of_block(cfg["conv_repeats"], n)):
        stride = of_block(cfg["conv_strides"], n) if i == 0 else 1
        x = conv_block(t / "conv_blocks" / i, x, of_block(cfg["conv_kernel_sizes"], n), stride, cfg)
    x = x + scale * feed_forward(t / "feed_forward", layer_norm(t / "norm_ff", x), cfg)
    return layer_norm(t / "norm_out", x) if cfg["red_lnorms"] else x


def encode(t: Scope, x: Tensor, config: dict[str, Any]) -> Tensor:
    """x (B, F, T) -> (B, d, T')."""
    cfg = {**DEFAULTS, **config}
    x = input_layer(t / "in_layer", x, cfg)
    for n in range(cfg["num_blocks"]):
        x = block(t / "blocks" / n, x, n, cfg)
    if not cfg["red_lnorms"]:
        x = layer_norm(t / "norm_out", x)
    return x.transpose(1, 2)
