"""Small x-vectors with random statistics, for the tests of this folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyperion_lite.models.xvectors.resnet1d_xvector import ResNet1dXVector
from hyperion_lite.models.xvectors.resnet_xvector import ResNetXVector
from hyperion_lite.models.xvectors.xvector import XVector

FEATS = 8
PLAIN_ENC = {
    "in_feats": FEATS,
    "in_conv_channels": 8,
    "resb_type": "basic",
    "resb_repeats": [1, 1],
    "resb_channels": [8, 12],
    "resb_kernel_sizes": [3, 3],
    "resb_strides": [1, 2],
    "resb_dilations": [1, 1],
}
ECAPA_ENC = {
    **PLAIN_ENC,
    "resb_type": "seres2bn",
    "resb_channels": 8,
    "resb_strides": 1,
    "resb_dilations": [2, 3],
    "se_r": 4,
    "res2net_scale": 4,
    "norm_before": False,
    "multilayer": True,
    "multilayer_concat": True,
    "endpoint_channels": 10,
}
HEAD = {"num_classes": 6, "embed_dim": 16, "cos_scale": 10.0, "margin": 0.2}


def randomise(model: nn.Module) -> None:
    """Random affine parameters and statistics of norms, so that an order of operations cannot go wrong unseen."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)


def make(enc: dict[str, Any] = PLAIN_ENC, **options: Any) -> ResNet1dXVector:
    torch.manual_seed(0)
    model = ResNet1dXVector(enc, **{**HEAD, **options}).eval()
    randomise(model)
    return model


def make_2d(**options: Any) -> ResNetXVector:
    torch.manual_seed(0)
    settings = {"in_channels": 1, "conv_channels": 4, "base_channels": 4, "in_kernel_size": 3, **HEAD, **options}
    model = ResNetXVector("resnet18", FEATS, **settings).eval()
    randomise(model)
    return model


def frames(
    *lengths: int, fill: float = float("nan"), dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, FEATS, time) with ``fill`` in the padding, and lengths."""
    generator = torch.Generator().manual_seed(sum(lengths))
    x = torch.randn(len(lengths), FEATS, max(lengths), generator=generator, dtype=dtype)
    for item, n in zip(x, lengths, strict=True):
        item[:, n:] = fill
    return x, torch.tensor(lengths)


VARIANTS: dict[str, Any] = {
    "plain": lambda: make(),
    "ecapa": lambda: make(
        ECAPA_ENC, pool_net={"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 4}, norm_before=False
    ),
    "lde-proj": lambda: make(pool_net={"pool_type": "lde", "num_comp": 3}, proj_feats=5, num_embed_layers=2),
    "dot": lambda: make(pool_net={"pool_type": "scaled-dot-prod-att-v1", "num_heads": 2, "d_k": 4, "d_v": 4}),
    "logvar-group": lambda: make(
        {**PLAIN_ENC, "norm_layer": "group-norm"}, pool_net="mean+logvar", norm_layer="group-norm"
    ),
    "dino": lambda: make(
        head_type="dino", loss_type="softmax", head_hid_dim=20, head_bottleneck_dim=8, num_embed_layers=2
    ),
    "2d": lambda: make_2d(),
    "2d-instance": lambda: make_2d(norm_layer="instance-norm-affine", loss_type="subcenter-arc-softmax"),
}


def is_equal(a: XVector, b: XVector) -> bool:
    """Whether two models have the same tensors, bit by bit."""
    first, second = a.state_dict(), b.state_dict()
    return list(first) == list(second) and all(torch.equal(first[k], second[k]) for k in first)
