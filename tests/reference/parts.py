"""Activations, normalisation, convolutions and squeeze-excitation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference.tensors import Scope

EPS = 1e-5

ACTIVATIONS = {
    "elu": F.elu,
    "hardshrink": F.hardshrink,
    "hardtanh": F.hardtanh,
    "leakyrelu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "relu": F.relu,
    "relu6": F.relu6,
    "rrelu": lambda x: F.leaky_relu(x, (1 / 8 + 1 / 3) / 2),
    "selu": F.selu,
    "celu": F.celu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "softsign": F.softsign,
    "tanh": torch.tanh,
    "tanhshrink": F.tanhshrink,
    "threshold": F.threshold,
    "gelu": F.gelu,
    "swish": lambda x: x * torch.sigmoid(x),
    "swish6": lambda x: x.clamp(max=6) * torch.sigmoid(x.clamp(max=6)),
    "double_swish": lambda x: x * torch.sigmoid(x - 1),
    "double_swish6": lambda x: x.clamp(max=6) * torch.sigmoid(x.clamp(max=6) - 1),
}


def activation(spec: Any, x: Tensor) -> Tensor:
    """``None``, a name, or a dict with ``name`` and arguments (``inplace`` means nothing here)."""
    if spec is None:
        return x
    arguments = dict(spec) if isinstance(spec, dict) else {"name": spec}
    name = arguments.pop("name")
    arguments.pop("inplace", None)
    return ACTIVATIONS[name](x, **arguments)


def normalise(t: Scope, kind: str | None, x: Tensor, groups: int) -> Tensor:
    """x (B, C, ...); the layer's tensors lie directly under ``t``."""
    channels = x.shape[1]
    if kind in (None, "batch-norm"):
        t("num_batches_tracked", kind="steps")
        mean = t("running_mean", channels, kind="shift")
        variance = t("running_var", channels, kind="variance")
        return F.batch_norm(
            x, mean, variance, t("weight", channels, kind="scale"), t("bias", channels, kind="shift"), eps=EPS
        )
    if kind == "instance-norm":
        return F.instance_norm(x, eps=EPS)
    weight, bias = t("weight", channels, kind="scale"), t("bias", channels, kind="shift")
    if kind == "instance-norm-affine":
        return F.instance_norm(x, weight=weight, bias=bias, eps=EPS)
    if kind == "group-norm":
        return F.group_norm(x, groups, weight, bias, EPS)
    assert kind == "layer-norm"
    if x.dim() == 4:
        return F.group_norm(x, 1, weight, bias, EPS)
    return F.layer_norm(x.transpose(1, -1), (channels,), weight, bias, EPS).transpose(1, -1)


@dataclass
class Style:
    """What the blocks of one encoder share."""

    act: Any
    norm: str | None
    groups: int
    norm_before: bool
    use_norm: bool = True

    @property
    def before(self) -> bool:
        return self.use_norm and self.norm_before

    @property
    def after(self) -> bool:
        return self.use_norm and not self.norm_before

    def normalise(self, t: Scope, x: Tensor) -> Tensor:
        return normalise(t, self.norm, x, self.groups)

    def activate(self, x: Tensor) -> Tensor:
        return activation(self.act, x)

    def norm_act(self, t: Scope, x: Tensor) -> Tensor:
        """What follows a convolution inside a block; ``t`` is the place of the normalisation."""
        if self.before:
            x = self.normalise(t, x)
        x = self.activate(x)
        return self.normalise(t, x) if self.after else x

    def end(self, t: Scope, x: Tensor, residual: Tensor, excite: Any) -> Tensor:
        """The end of a residual block."""
        if self.before:
            return self.activate(excite(self.normalise(t, x)) + residual)
        if self.after:
            return excite(self.normalise(t, self.activate(x))) + residual
        return self.activate(excite(x) + residual)


def conv(
    t: Scope,
    x: Tensor,
    out: int,
    kernel: int = 1,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> Tensor:
    """A 1-D or 2-D convolution by the number of axes of x; zeros on both sides keep the centre."""
    axes = x.dim() - 2
    weight = t("weight", out, x.shape[1] // groups, *[kernel] * axes)
    shift = t("bias", out, kind="shift") if bias else None
    function = F.conv1d if axes == 1 else F.conv2d
    return function(
        x, weight, shift, stride=stride, dilation=dilation, padding=dilation * (kernel - 1) // 2, groups=groups
    )


def excitation(t: Scope, mean: Tensor, hidden: int, act: Any) -> Tensor:
    """Two 1x1 maps without bias; ``mean`` is (B, n, 1) or (B, n, 1, 1); the answer is before the sigmoid."""
    assert hidden > 0
    h = activation(act, conv(t / "conv1", mean, hidden, bias=False))
    return conv(t / "conv2", h, mean.shape[1], bias=False)


def squeeze_excite_1d(t: Scope, x: Tensor, r: float, act: Any) -> Tensor:
    return x * torch.sigmoid(excitation(t, x.mean(2, keepdim=True), int(x.shape[1] / r), act))


def squeeze_excite_2d(t: Scope, x: Tensor, r: float, act: Any, kind: str) -> Tensor:
    """x (B, C, F, T)."""
    batch, channels, freqs, _ = x.shape
    if kind == "cw-se":
        return x * torch.sigmoid(excitation(t, x.mean((2, 3), keepdim=True), int(channels / r), act))
    if kind == "t-se":
        mean = x.mean(3).reshape(batch, channels * freqs, 1, 1)
        return x * torch.sigmoid(excitation(t, mean, int(channels * freqs / r), act)).reshape(batch, channels, freqs, 1)
    by_freq = x.mean((1, 3)).reshape(batch, freqs, 1, 1)
    if kind == "fw-se":
        return x * torch.sigmoid(excitation(t, by_freq, int(freqs / r), act)).reshape(batch, 1, freqs, 1)
    assert kind == "cfw-se"
    freq_r = freqs // 4 if freqs // r < 4 else r
    by_channel = excitation(t / "cw_se", x.mean((2, 3), keepdim=True), int(channels / r), act)
    by_freq = excitation(t / "fw_se", by_freq, int(freqs / freq_r), act).reshape(batch, 1, freqs, 1)
    return x * torch.sigmoid(by_channel + by_freq)
