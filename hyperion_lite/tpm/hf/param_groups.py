"""Learning rates and weight decay of the parts of an encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def encoder_param_groups(
    encoder: nn.Module,
    front: Iterable[nn.Module],
    front_rate: float | None,
    encoder_rate: float | None,
    bias_decay: float | None,
) -> list[dict[str, Any]]:
    """Parameter groups of what learns in ``encoder``: one for each part, or two where biases decay on their own.

    Args:
        encoder: the whole encoder.
        front: the modules of its feature extractor.
        front_rate: learning rate of the feature extractor, ``None`` for the optimizer's.
        encoder_rate: of the rest, adapters included.
        bias_decay: weight decay of biases and other one-dimensional parameters; ``None`` for the optimizer's.
    """
    in_front = {id(p) for module in front for p in module.parameters()}
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for parameter in encoder.parameters():
        if not parameter.requires_grad:
            continue
        key = id(parameter) in in_front, bias_decay is not None and parameter.dim() <= 1
        if key not in groups:
            rate = front_rate if key[0] else encoder_rate
            options: dict[str, Any] = {} if rate is None else {"lr": rate}
            options |= {"weight_decay": bias_decay} if key[1] else {}
            groups[key] = {"params": [], **options}
        groups[key]["params"].append(parameter)
    return list(groups.values())
