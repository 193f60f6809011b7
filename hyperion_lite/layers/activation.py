"""Activation functions by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.errors import ConfigError


class Swish(nn.Module):
    """``x * sigmoid(x - shift)``, with ``x`` limited from above first when ``limit`` is given.

    Args:
        shift: 0 for swish, 1 for double swish.
        limit: upper limit of ``x``; ``None`` for none.
    """

    def __init__(self, shift: float = 0.0, limit: float | None = None) -> None:
        super().__init__()
        self.shift = shift
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape; elementwise."""
        if self.limit is not None:
            x = x.clamp(max=self.limit)
        if self.shift == 0.0:
            return nn.functional.silu(x)
        return x * torch.sigmoid(x - self.shift)

    def extra_repr(self) -> str:
        return f"shift={self.shift}, limit={self.limit}"


_TORCH_CLASSES: Mapping[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "hardshrink": nn.Hardshrink,
    "hardtanh": nn.Hardtanh,
    "leakyrelu": nn.LeakyReLU,
    "logsigmoid": nn.LogSigmoid,
    "prelu": nn.PReLU,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "rrelu": nn.RReLU,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "softshrink": nn.Softshrink,
    "softsign": nn.Softsign,
    "tanh": nn.Tanh,
    "tanhshrink": nn.Tanhshrink,
    "threshold": nn.Threshold,
    "softmin": nn.Softmin,
    "softmax": nn.Softmax,
    "softmax2d": nn.Softmax2d,
    "logsoftmax": nn.LogSoftmax,
    "gelu": nn.GELU,
}
# torch's implicit axis of a softmax is the batch for (batch, channels, time)
_DEFAULT_ARGS: Mapping[str, Mapping[str, Any]] = {name: {"dim": 1} for name in ("softmin", "softmax", "logsoftmax")}
_SWISH_ARGS: Mapping[str, Mapping[str, float]] = {
    "swish": {},
    "swish6": {"limit": 6.0},
    "double_swish": {"shift": 1.0},
    "double_swish6": {"shift": 1.0, "limit": 6.0},
}

ACTIVATIONS: tuple[str, ...] = tuple(sorted([*_TORCH_CLASSES, *_SWISH_ARGS]))
"""The names that :func:`make_activation` knows."""


def make_activation(spec: str | Mapping[str, Any] | None) -> nn.Module:
    """A new activation module.

    Args:
        spec: a name of :data:`ACTIVATIONS`; or ``{"name": ..., **arguments of the torch class}``; or ``None`` for the identity.
            ``inplace`` is accepted for every name and ignored: it has no numerical meaning, and overwriting an input that a block
            still needs is an error that appears only in training. The softmax kinds normalise over axis 1 unless ``dim`` is given.

    Returns:
        A module of its own at each call, so that ``prelu`` weights are never shared by accident.

    Raises:
        ConfigError: unknown name or arguments.
    """
    if spec is None:
        return nn.Identity()
    if isinstance(spec, str):
        name, arguments = spec, {}
    elif isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
        name = spec["name"]
        arguments = {key: value for key, value in spec.items() if key not in ("name", "inplace")}
    else:
        raise ConfigError(f'an activation is a name, {{"name": ..., arguments}} or null, got {spec!r}')

    if name in _SWISH_ARGS and not arguments:
        return Swish(**_SWISH_ARGS[name])
    if name not in _TORCH_CLASSES and name not in _SWISH_ARGS:
        raise ConfigError(unknown_choice("activation", name, ACTIVATIONS))
    try:
        return _TORCH_CLASSES[name](**{**_DEFAULT_ARGS.get(name, {}), **arguments})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"activation {name!r} does not take the arguments {arguments}: {error}") from error
