"""Folding batch normalisation into the convolutions before it, for inference."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from hyperion_lite.layer_blocks.conv import NoNorm

_M = TypeVar("_M", bound=nn.Module)

_FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Linear)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def fold_batch_norm(module: _M) -> _M:
    """A copy for inference, with batch norms merged into the convolutions or linear maps that they directly follow.

    In ``eval()`` a batch norm is an affine map of each channel, so the pair is a convolution with other weights. The result is that of
    ``module.eval()`` up to rounding (relative error below 1e-5 in float32; the new weights are computed in float64). Pairs that have an
    activation between convolution and norm, other kinds of norm, and parametrised weights stay as they are.

    The pairs are those that sub-modules name in a method ``norm_pairs() -> [(convolution, norm), ...]``, as the blocks of this package
    do.

    Args:
        module: an encoder, or a model with encoders inside. Not changed.

    Returns:
        The copy, in ``eval()``. It is not for training, and its tensors are no longer those of a model file: ``save`` refuses it.
    """
    folded = copy.deepcopy(module).eval()
    folded.unsaveable_because = "its batch norms are folded into its convolutions; save the model it is a copy of"  # type: ignore[assignment]
    for owner in list(folded.modules()):
        pairs = getattr(owner, "norm_pairs", None)
        if callable(pairs):
            for conv_name, norm_name in pairs():
                _fold_pair(owner, conv_name, norm_name)
    return folded


def _fold_pair(owner: nn.Module, conv_name: str, norm_name: str) -> None:
    conv, norm = owner.get_submodule(conv_name), owner.get_submodule(norm_name)
    if not isinstance(conv, _FOLDABLE) or parametrize.is_parametrized(conv):
        return
    if not isinstance(norm, _BATCH_NORMS) or norm.running_mean is None or norm.running_var is None:
        return
    with torch.no_grad():
        scale = torch.rsqrt(norm.running_var.double() + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight.double()
        shift = -norm.running_mean.double() * scale
        if norm.bias is not None:
            shift = shift + norm.bias.double()
        if conv.bias is not None:
            shift = shift + conv.bias.double() * scale
        weight = conv.weight.double() * scale.view(-1, *[1] * (conv.weight.dim() - 1))
        trained = conv.weight.requires_grad
        conv.weight = nn.Parameter(weight.to(conv.weight.dtype), requires_grad=trained)
        conv.bias = nn.Parameter(shift.to(conv.weight.dtype), requires_grad=trained)
    parent_name, _, name = norm_name.rpartition(".")
    setattr(owner.get_submodule(parent_name), name, NoNorm())
