"""Tensor names as training wrappers leave them, and as models expect them."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TypeVar

_T = TypeVar("_T")

_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")
_INNER_COMPILE = re.compile(r"(?<=\.)_orig_mod\.")
_COMPILED = re.compile(r"(?:^|(?<=\.))_orig_mod\.")
_AVERAGING_COUNT = re.compile(r"^(?:module\.|_orig_mod\.)*n_averaged$")

_WEIGHT_NORM_OLD = re.compile(r"(?:^|\.)weight_([gv])$")
_WEIGHT_NORM_NEW = re.compile(r"(?:^|\.)parametrizations\.weight\.original([01])$")


def clean_names(state: Mapping[str, _T]) -> OrderedDict[str, _T]:
    """Drop ``n_averaged`` and strip ``module.`` and ``_orig_mod.``, in any nesting, from every name.

    Data-parallel wrappers and weight averaging put ``module.`` in front, ``torch.compile`` puts ``_orig_mod.`` in front of what it
    compiled, which can be a part of the model.

    Raises:
        ValueError: two names become one.
    """
    cleaned: OrderedDict[str, _T] = OrderedDict()
    for name, value in state.items():
        if _AVERAGING_COUNT.match(name):
            continue
        short = _clean(name)
        if short in cleaned:
            raise ValueError(
                f"two tensors are called {short!r} once wrapper prefixes are stripped (one of them is {name!r})"
            )
        cleaned[short] = value
    return cleaned


def _clean(name: str) -> str:
    return _INNER_COMPILE.sub("", _WRAPPERS.sub("", name))


def strip_compiled(state: Mapping[str, _T]) -> OrderedDict[str, _T]:
    """``state`` without the ``_orig_mod.`` of compiled parts, which would make a file that only compiled models load."""
    return OrderedDict((_COMPILED.sub("", name), value) for name, value in state.items())


def match_wrappers(state: Mapping[str, _T], expected: Iterable[str]) -> OrderedDict[str, _T]:
    """Rename tensors whose name was cleaned to the name in ``expected`` that becomes the same.

    A model can have a part that is called ``module``, or a part that is compiled when its tensors are loaded.
    """
    known = set(expected)
    wrapped = {_clean(name): name for name in known}
    return OrderedDict((name if name in known else wrapped.get(name, name), value) for name, value in state.items())


def match_weight_norm(state: Mapping[str, _T], expected: Iterable[str]) -> OrderedDict[str, _T]:
    """Rename weight-norm tensors to the spelling that the model uses.

    ``x.weight_g``/``x.weight_v`` and ``x.parametrizations.weight.original0``/``original1`` are the same tensors in two releases of
    torch; only names that the model does not have, and whose other spelling it has, are changed.
    """
    known = set(expected)
    renamed: OrderedDict[str, _T] = OrderedDict()
    for name, value in state.items():
        other = name if name in known else other_weight_norm_spelling(name)
        renamed[other if other in known else name] = value
    return renamed


def other_weight_norm_spelling(name: str) -> str:
    """The name of the same weight-norm tensor in the other spelling; other names come back unchanged."""
    match = _WEIGHT_NORM_OLD.search(name)
    if match:
        return f"{name[: match.end() - len('weight_g')]}parametrizations.weight.original{'gv'.index(match.group(1))}"
    match = _WEIGHT_NORM_NEW.search(name)
    if match:
        return f"{name[: match.end() - len('parametrizations.weight.original0')]}weight_{'gv'[int(match.group(1))]}"
    return name
