"""From a DINO model to a classifier that starts from the same embedding."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.batch_norm import BatchNorm1d
from hyperion_lite.narchs.classif_head import ClassifHead, FCBlock
from hyperion_lite.narchs.proj_head import ProjHead

logger = logging.getLogger(__name__)


def head_layout(proj: ProjHead, norm_before: bool, can_move: bool, softmax: bool) -> dict[str, bool]:
    """Where the norm of the projection head goes in a classification head with one layer.

    The new head has its norm where the projection head has it: on its input (``head_use_in_norm``), or behind the linear map. Where the
    model's norm position, shared with the encoder, does not allow that, the norm is folded into the linear map: the embedding is the same,
    only further training differs.

    Args:
        proj: the projection head.
        norm_before: the ``norm_before`` of the model.
        can_move: whether ``norm_before`` belongs to the head alone and may change.
        softmax: whether the layer gets an activation, in front of which the embedding is taken.

    Returns:
        Configuration keys ``norm_before``, ``head_use_norm``, ``head_use_in_norm``.
    """
    if proj.use_norm and proj.norm_before and (can_move or not norm_before):
        return {"norm_before": False, "head_use_norm": True, "head_use_in_norm": True}
    if proj.use_norm and not proj.norm_before:
        if can_move:
            # with an activation only a norm before it is part of the embedding
            return {"norm_before": softmax, "head_use_norm": True, "head_use_in_norm": False}
        if norm_before or not softmax:
            return {"norm_before": norm_before, "head_use_norm": True, "head_use_in_norm": False}
    return {"norm_before": norm_before, "head_use_norm": False, "head_use_in_norm": False}


@torch.no_grad()
def fill_from_projection(head: ClassifHead, proj: ProjHead) -> None:
    """Give the one layer of ``head``, laid out by :func:`head_layout`, the weights of ``proj``, so that embeddings are the same.

    Raises:
        ConfigError: a norm that would have to be folded, and is no batch norm.
    """
    block: FCBlock = head._block(0)
    weight = proj.proj.weight
    bias = torch.zeros_like(weight[:, 0]) if proj.proj.bias is None else proj.proj.bias
    norm = proj._norm_layer
    if norm is not None:
        target = head.in_norm if head.in_norm is not None else block.bn1
        if target is not None:
            _copy_module(norm, target)
        else:
            weight, bias = _fold(norm, weight, bias, proj.norm_before)
            logger.info("the norm of the projection head was folded into the linear layer of the new head")
    block.linear.weight.copy_(weight)
    if block.linear.bias is not None:
        block.linear.bias.copy_(bias)


def _copy_module(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def _fold(norm: nn.Module, weight: torch.Tensor, bias: torch.Tensor, before: bool) -> tuple[Any, Any]:
    if not isinstance(norm, BatchNorm1d) or norm.running_mean is None or norm.running_var is None:
        raise ConfigError(
            "the norm of this projection head has no place in a classification head of this model, and only a batch norm can be "
            "folded into the linear layer"
        )
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    shift = norm.bias - norm.running_mean * scale
    if before:
        return weight * scale, bias + weight @ shift
    return weight * scale[:, None], bias * scale + shift
