"""Weight normalisation undone: one plain weight out of its magnitude and direction, without torch.

A weight-normalised layer stores two tensors in place of a weight, ``w = g * v / ||v||``. The Euclidean norm runs over every axis but
the one that ``g`` keeps, so the shape of ``g`` tells the ``dim`` that ``torch.nn.utils.weight_norm`` was called with: (C, 1, 1) is 0,
(1, C, 1) is 1, and a scalar is None. After training ``g`` and ``||v||`` are free of each other; only the direction of ``v`` counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hyperion_lite.pth.quantize import is_floating

_OLD_SPELLING = re.compile(r"(?P<name>(?:.*\.)?[^.]*weight[^.]*)_(?P<part>[gv])", re.DOTALL)
_NEW_SPELLING = re.compile(r"(?P<owner>(?:.*\.)?)parametrizations\.(?P<leaf>[^.]+)\.original(?P<part>[01])", re.DOTALL)


class WeightNormPair(NamedTuple):
    """Names of the two tensors that make one weight: ``g`` the magnitude, ``v`` the direction."""

    g: str
    v: str


def split_weight_norm_name(name: str) -> tuple[str, str] | None:
    """Return (name of the weight, "g" or "v") when ``name`` is spelt like half of a weight-normalised tensor, else None.

    Both spellings are known: ``conv.weight_g`` / ``conv.weight_v`` of the older torch function and
    ``conv.parametrizations.weight.original0`` / ``original1`` of the parametrisation.
    """
    if match := _NEW_SPELLING.fullmatch(name):
        return match["owner"] + match["leaf"], "gv"[int(match["part"])]
    if match := _OLD_SPELLING.fullmatch(name):
        return match["name"], match["part"]
    return None


def find_weight_norm_pairs(names: Iterable[str]) -> dict[str, WeightNormPair]:
    """Find the weight-normalised tensors among ``names``.

    A half without its other half is no pair (spectral normalisation keeps a lone ``weight_v``).

    Returns:
        Name of the fused weight -> the names of its two halves, in the order of appearance.

    Raises:
        ValueError: a fused weight would take the name of a tensor that is already there, or has two pairs.
    """
    known = list(names)
    halves: dict[str, dict[str, list[str]]] = {}
    for name in known:
        if split := split_weight_norm_name(name):
            halves.setdefault(split[0], {"g": [], "v": []})[split[1]].append(name)
    pairs = {}
    present = set(known)
    for weight, parts in halves.items():
        if not (parts["g"] and parts["v"]):
            continue
        if len(parts["g"]) > 1 or len(parts["v"]) > 1:
            raise ValueError(
                f"{weight!r}: both spellings of weight normalisation are present, {parts['g'] + parts['v']}; exclude one"
            )
        if weight in present:
            raise ValueError(
                f"{weight!r} is present beside its weight-normalised halves {parts['g'] + parts['v']}; exclude one of them"
            )
        pairs[weight] = WeightNormPair(parts["g"][0], parts["v"][0])
    return pairs


def check_weight_norm_shapes(weight: str, g_shape: tuple[int, ...], v_shape: tuple[int, ...]) -> None:
    """Raise ValueError when a magnitude of ``g_shape`` cannot belong to a direction of ``v_shape`` (a scalar fits anything)."""
    if g_shape == ():
        return
    kept = [axis for axis, size in enumerate(g_shape) if size != 1]
    fits = len(g_shape) == len(v_shape) and len(kept) <= 1 and all(g_shape[axis] == v_shape[axis] for axis in kept)
    # all ones: the kept axis must have size one in v too, or g lost its channels
    if not fits or (not kept and 1 not in v_shape):
        raise ValueError(
            f"{weight!r}: a magnitude of shape {list(g_shape)} does not fit a direction of shape {list(v_shape)}; expected one axis of "
            "the same size and 1 elsewhere, or a scalar"
        )


def fuse_pair(g: np.ndarray, v: np.ndarray, *, name: str = "weight", out: np.ndarray | None = None) -> np.ndarray:
    """Return ``g * v / ||v||`` in the dtype of ``v``.

    The norm is accumulated in float64. A direction of zero length gives NaN, as in torch.

    Args:
        g: magnitude; 1 on every axis but the kept one, or a scalar.
        v: direction, floating point, any shape.
        name: what error messages call the tensor.
        out: where to write the result, of the shape and dtype of ``v``; it may be ``v`` itself.

    Raises:
        ValueError: the shapes do not fit each other or a dtype is not floating point.
    """
    if not (is_floating(g.dtype) and is_floating(v.dtype)):
        raise ValueError(f"{name!r}: weight normalisation needs floating-point tensors, found {g.dtype} and {v.dtype}")
    check_weight_norm_shapes(name, g.shape, v.shape)
    # the arithmetic of 16-bit and 8-bit floats is too coarse to multiply twice: go through float32
    exact = v.dtype if v.dtype in (np.float32, np.float64) else np.dtype(np.float32)
    wide = v.astype(exact, copy=False)
    axes = list(range(v.ndim))
    kept = [axis for axis in axes if g.ndim and g.shape[axis] != 1]
    squares = np.einsum(wide, axes, wide, axes, kept, dtype=np.float64, casting="same_kind")
    norm = np.sqrt(squares).reshape([v.shape[axis] if axis in kept else 1 for axis in axes]).astype(exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        # divide first and round where torch does, so that the results differ in the last bit at most
        scale = g.astype(exact, copy=False).reshape(norm.shape) / norm
        if out is None:
            return np.multiply(wide, scale).astype(v.dtype, copy=False)
        if wide is out or exact == out.dtype:
            return np.multiply(wide, scale, out=out)
        out[...] = np.multiply(wide, scale).astype(out.dtype)
        return out


def fuse_weight_norm(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Replace every weight-normalised pair of a state dictionary by its effective weight.

    Formula: ``w = g * v / ||v||`` (Salimans and Kingma 2016), the norm over the axes where ``g`` has size one.

    Args:
        tensors: name -> array. Both spellings are recognised, for any ``dim`` and any parameter name that holds "weight"
            (``weight_hh_l0_g`` of a recurrent layer too).

    Returns:
        A new dictionary in the same order: the fused weight stands where the first half stood, everything else is passed on as it is.

    Raises:
        ValueError: the halves of a pair do not fit each other, or the fused name is already taken.
    """
    pairs = find_weight_norm_pairs(tensors)
    owners = {part: weight for weight, pair in pairs.items() for part in pair}
    fused: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        weight = owners.get(name)
        if weight is None:
            fused[name] = value
        elif weight not in fused:
            pair = pairs[weight]
            fused[weight] = fuse_pair(np.asarray(tensors[pair.g]), np.asarray(tensors[pair.v]), name=weight)
    return fused
