"""The convolution that encodes positions in a Conformer: one name, and plain weights."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")

_PLACES = {"conv2d-sub": "out.1", "conv1d-sub": "out.1", "linear": "4", "embed": "1"}
_TENSOR = re.compile(
    r"^((?:xvector\.)?encoder_net\.in_layer\.)(?:.+\.)?conv\."
    r"(bias|weight|weight_[gv]|parametrizations\.weight\.original[01])$"
)
_WEIGHT_NORM = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}


def modernise_conv_positions(config: Mapping[str, Any], state: Mapping[str, _T]) -> OrderedDict[str, _T]:
    """Bring the position convolution of a Conformer to the name that this package has for it.

    Which number it has among the parts of the input layer depends on whether dropout and activation are parts of their own; and its
    weight may be stored by weight norm, which is multiplied out here.

    Args:
        config: of the model.
        state: its tensors.

    Returns:
        The tensors; the same ones where nothing is to be done.
    """
    inner = config.get("xvector", config)
    encoder = inner.get("encoder") if isinstance(inner, Mapping) else None
    renamed: OrderedDict[str, _T] = OrderedDict(state)
    if not isinstance(encoder, Mapping) or encoder.get("pos_enc_type") != "conv":
        return renamed
    place = _PLACES.get(str(encoder.get("in_layer_type", "conv2d-sub")), "0")
    found: dict[str, Any] = {}
    lead = ""
    for name in state:
        match = _TENSOR.match(name)
        if match:
            lead = match.group(1)
            found[_WEIGHT_NORM.get(match.group(2), match.group(2))] = renamed.pop(name)
    if _fit(found.get("weight_g"), found.get("weight_v")):
        found["weight"] = _multiply_out(found.pop("weight_g"), found.pop("weight_v"))
    renamed.update({f"{lead}{place}.conv.{leaf}": value for leaf, value in found.items()})
    return renamed


def _fit(scale: Any, direction: Any) -> bool:
    if not isinstance(scale, torch.Tensor) or not isinstance(direction, torch.Tensor) or scale.dim() != direction.dim():
        return False
    return all(a in (1, b) for a, b in zip(scale.shape, direction.shape, strict=True))


def _multiply_out(scale: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    wide = direction.double()
    axes = [axis for axis, size in enumerate(scale.shape) if size == 1]
    norm = torch.linalg.vector_norm(wide, dim=axes, keepdim=True) if axes else wide.abs()
    return (scale.double() * wide / norm.clamp(min=torch.finfo(torch.float64).tiny)).to(direction.dtype)
