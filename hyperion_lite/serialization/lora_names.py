"""Tensors of low-rank adapters in model files: how they are called, and whether the weights hold them already.

Two spellings occur. loralib: ``x.weight``, ``x.lora_A``, ``x.lora_B``. peft: ``base_model.model.`` in front of the names inside the adapted
network, ``x.base_layer.weight``, ``x.lora_A.default.weight``, ``x.lora_B.default.weight``.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TypeVar

import torch

from hyperion_lite.core.errors import ModelFileError
from hyperion_lite.serialization.names import other_weight_norm_spelling

_T = TypeVar("_T")

_PEFT_ROOT = re.compile(r"(?:^|(?<=\.))base_model\.model\.")
_PEFT_BASE = re.compile(r"\.base_layer(?=\.)")
_PEFT_ADAPTER = re.compile(r"\.(lora_[AB])\.[^.]+\.weight$")
_DOWN = ".lora_A"


def loralib_name(name: str) -> str:
    """The name of a tensor in the spelling of loralib; names of other tensors come back without peft's prefix."""
    return _PEFT_ADAPTER.sub(r".\1", _PEFT_BASE.sub("", _PEFT_ROOT.sub("", name)))


def match_adapters(state: Mapping[str, _T], expected: Iterable[str]) -> OrderedDict[str, _T]:
    """Rename tensors to the spelling of adapters that ``expected`` has.

    Only names that are not expected, and whose other spelling is, are changed; weight norm may be spelled in either way.
    """
    known = set(expected)
    spelled = {loralib_name(name): name for name in known}
    renamed: OrderedDict[str, _T] = OrderedDict()
    for name, value in state.items():
        plain = loralib_name(name)
        other = spelled.get(plain, spelled.get(other_weight_norm_spelling(plain), name))
        renamed[name if name in known else other] = value
    return renamed


def spell_adapters_as_loralib(state: Mapping[str, _T]) -> OrderedDict[str, _T]:
    """``state`` with the names of loralib, those of the original toolkit's single files; the same names where there is no adapter."""
    if not adapted_weights(state):
        return OrderedDict(state)
    return OrderedDict((loralib_name(name), value) for name, value in state.items())


def adapted_weights(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Weight that has an adapter -> names of its ``lora_A`` and ``lora_B``, all as in ``names``."""
    by_plain = {loralib_name(name): name for name in names}
    found: dict[str, tuple[str, str]] = {}
    for plain, name in by_plain.items():
        if plain.endswith(_DOWN):
            root = plain[: -len(_DOWN)]
            weight, up = by_plain.get(f"{root}.weight"), by_plain.get(f"{root}.lora_B")
            if weight is not None and up is not None:
                found[weight] = (name, up)
    return found


def unfold_adapters(state: MutableMapping[str, torch.Tensor], alpha: float, source: object) -> None:
    """Take adapters out of weights that hold them already: ``W - (alpha / rank) * B A``, in place.

    Args:
        state: tensors of a file that was saved with its adapters folded in.
        alpha: ``lora_alpha``; the rank is that of the tensors.
        source: the file, for messages.

    Raises:
        ModelFileError: the shapes of weight and adapter do not belong together.
    """
    for weight, (down, up) in adapted_weights(state).items():
        w, a, b = state[weight], state[down], state[up]
        if a.dim() != 2 or b.dim() != 2 or a.size(0) != b.size(1) or w.shape != (b.size(0), a.size(1)):
            raise ModelFileError(
                f"{source}: the adapter of {weight}, {tuple(b.shape)} times {tuple(a.shape)}, does not fit its shape {tuple(w.shape)}"
            )
        state[weight] = (w.double() - alpha / a.size(0) * (b.double() @ a.double())).to(w.dtype)
