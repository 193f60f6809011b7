"""The two kinds of heads, from the pooled vector to embedding and logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference.parts import activation, normalise
from tests.reference.pooling import linear
from tests.reference.tensors import Scope

DEFAULTS: dict[str, Any] = {
    "embed_dim": 256,
    "num_embed_layers": 1,
    "hid_act": {"name": "relu", "inplace": True},
    "loss_type": "arc-softmax",
    "cos_scale": 64,
    "margin": 0.3,
    "margin_warmup_epochs": 0,
    "intertop_k": 5,
    "intertop_margin": 0,
    "num_subcenters": 2,
    "norm_layer": None,
    "head_norm_layer": None,
    "use_norm": True,
    "norm_before": True,
    "head_use_norm": True,
    "head_use_in_norm": False,
    "head_hid_dim": 2048,
    "head_bottleneck_dim": 256,
    "proj_head_use_norm": True,
    "proj_head_norm_before": True,
    "dropout_rate": 0,
    "embed_layer": 0,
    "proj_feats": None,
    "head_type": "x-vector",
    "bias_weight_decay": None,
    "pool_net": "mean+stddev",
}


def head_norm(cfg: dict[str, Any]) -> str | None:
    if cfg["head_norm_layer"] is not None:
        return cfg["head_norm_layer"]
    return None if str(cfg["norm_layer"]).startswith("instance-norm") else cfg["norm_layer"]


def cosines(x: Tensor, kernel: Tensor) -> Tensor:
    x = x / (x.norm(dim=1, keepdim=True) + 1e-10)
    return (x @ (kernel / (kernel.norm(dim=0, keepdim=True) + 1e-10))).clamp(-1, 1)


def classify(t: Scope, x: Tensor, cfg: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
    """The embedding for every ``embed_layer``, and the logits."""
    kind, groups, count = head_norm(cfg), min(cfg["embed_dim"] // 8, 32), cfg["num_embed_layers"]
    if cfg["head_use_in_norm"]:
        x = normalise(t / "in_norm", kind, x, groups)
    embeddings = []
    for i in range(count):
        place, last = t / "fc_blocks" / i, i == count - 1
        use_norm = cfg["head_use_norm"] and not (last and cfg["head_use_in_norm"])
        before = use_norm and cfg["norm_before"]
        act = cfg["hid_act"] if not last or cfg["loss_type"] == "softmax" else None
        x = embedding = linear(place / "linear", x, cfg["embed_dim"], bias=not before)
        if before:
            x = embedding = normalise(place / "bn1", kind, x, groups)
        x = activation(act, x)
        if use_norm and not before:
            x = normalise(place / "bn1", kind, x, groups)
            embedding = x if act is None else embedding
        embeddings.append(embedding)
    return embeddings, output_layer(t / "output", x, cfg)


def output_layer(t: Scope, x: Tensor, cfg: dict[str, Any]) -> Tensor:
    classes, sub = cfg["num_classes"], cfg["num_subcenters"]
    if cfg["loss_type"] == "softmax":
        return linear(t, x, classes)
    if cfg["loss_type"] != "subcenter-arc-softmax":
        return cfg["cos_scale"] * cosines(x, t("kernel", x.shape[1], classes))
    t("subcenter_counts", classes, sub, kind="counts")
    return cfg["cos_scale"] * cosines(x, t("kernel", x.shape[1], classes * sub)).unflatten(1, (classes, sub)).amax(2)


def dino(t: Scope, x: Tensor, cfg: dict[str, Any]) -> tuple[list[Tensor], Tensor]:
    """The projection head gives the embedding, the prototypes the logits."""
    kind, place = head_norm(cfg), t / "proj_head_net"
    groups = min(cfg["head_hid_dim"] // 8, 32)
    use, before = cfg["proj_head_use_norm"], cfg["proj_head_norm_before"]
    if use and before:
        x = normalise(place / "_norm_layer", kind, x, min(cfg["embed_dim"] // 8, 32))
    x = linear(place / "proj", x, cfg["embed_dim"], bias=not use or before)
    if use and not before:
        x = normalise(place / "_norm_layer", kind, x, min(cfg["embed_dim"] // 8, 32))
    embedding = x
    use, before, index = cfg["head_use_norm"], cfg["norm_before"], 0
    net = t / "classif_net"
    for _ in range(cfg["num_embed_layers"] - 1):
        x = linear(net / "hid_layers" / index, x, cfg["head_hid_dim"], bias=not (use and before))
        if use and before:
            index += 1
            x = normalise(net / "hid_layers" / index, kind, x, groups)
        x = activation(cfg["hid_act"], x)
        index += 1
        if use and not before:
            index += 1
            x = normalise(net / "hid_layers" / index, kind, x, groups)
        index += 2 if cfg["dropout_rate"] > 0 else 1
    x = F.normalize(linear(net / "hid_layers" / index, x, cfg["head_bottleneck_dim"]), dim=1)
    out, classes = net / "output", cfg["num_classes"]
    if cfg["loss_type"] != "softmax":
        # the scale of cosines is not among this head's keys
        return [embedding], cosines(x, out("kernel", x.shape[1], classes))
    g = out.put("weight_g", torch.ones(classes, 1))
    v = out("weight_v", classes, x.shape[1])
    return [embedding], x @ (g * v / v.norm(dim=1, keepdim=True)).T
