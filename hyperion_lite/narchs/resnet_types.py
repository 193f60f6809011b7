"""The table of 2-D residual networks: families, and what a prefix for squeeze-excitation makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hyperion_lite.core.config import nearest


@dataclass(frozen=True)
class ResNetType:
    """What a ``resnet_type`` stands for.

    Attributes:
        block: residual block, a name of :data:`~hyperion_lite.layer_blocks.res_blocks.BLOCK_KINDS`.
        depths: number of blocks in each of the four layers.
        se_type: squeeze-excitation, ``None`` for none.
        forced: constructor arguments that the type sets, whatever the configuration says.
        widths: widths of the layers; ``None`` means ``base_channels`` times 1, 2, 4, 8.
        endpoint_channels: channels to which the outputs of layers 2, 3 and 4 are brought and averaged; ``None`` means that the output
            of layer 4 is the output.
    """

    block: str
    depths: tuple[int, int, int, int]
    se_type: str | None = None
    forced: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[int, int, int, int] | None = None
    endpoint_channels: int | None = None


SE_PREFIXES: Mapping[str, str | None] = {"": None, "se": "cw-se", "tse": "t-se", "fwse": "fw-se", "cfwse": "cfw-se"}
"""Prefix of a type name -> kind of squeeze-excitation."""

_ALL = tuple(SE_PREFIXES)
_FREQ_ONLY = ("", "fwse", "cfwse")
_D18, _D34, _D101, _D152 = (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)
_LIGHT = {"conv_channels": 16, "base_channels": 16}
_WIDE = {"base_channels": 128}
_NEXT_32X4 = {"groups": 32, "base_channels": 128}
_NEXT_32X8 = {"groups": 32, "base_channels": 256}
_NEXT_4X4 = {"groups": 4, "base_channels": 16}
_IDRND_WIDTHS = (128, 128, 256, 256)

_FAMILIES: Mapping[str, tuple[ResNetType, tuple[str, ...]]] = {
    "resnet18": (ResNetType("basic", _D18), _ALL),
    "resnet34": (ResNetType("basic", _D34), _ALL),
    "resnet50": (ResNetType("bn", _D34), _ALL),
    "resnet101": (ResNetType("bn", _D101), _ALL),
    "resnet152": (ResNetType("bn", _D152), _ALL),
    "resnext50_32x4d": (ResNetType("bn", _D34, forced=_NEXT_32X4), _ALL),
    "resnext101_32x8d": (ResNetType("bn", _D101, forced=_NEXT_32X8), _ALL),
    "wideresnet50": (ResNetType("bn", _D34, forced=_WIDE), _ALL),
    "wideresnet101": (ResNetType("bn", _D101, forced=_WIDE), _ALL),
    "lresnet18": (ResNetType("basic", _D18, forced=_LIGHT), _ALL),
    "lresnet34": (ResNetType("basic", _D34, forced=_LIGHT), _ALL),
    "lresnet50": (ResNetType("bn", _D34, forced=_LIGHT), _ALL),
    "lresnext50_4x4d": (ResNetType("bn", _D34, forced=_NEXT_4X4), _ALL),
    "lresnet34_345": (ResNetType("basic", _D34, forced=_LIGHT, endpoint_channels=64), ("",)),
    "res2net18": (ResNetType("res2basic", _D18), _ALL),
    "res2net34": (ResNetType("res2basic", _D34), _ALL),
    "res2net50": (ResNetType("res2bn", _D34), _ALL),
    "res2net101": (ResNetType("res2bn", _D101), _ALL),
    "res2net152": (ResNetType("res2bn", _D152), _ALL),
    "res2next50_32x4d": (ResNetType("res2bn", _D34, forced=_NEXT_32X4), _ALL),
    "res2next101_32x8d": (ResNetType("res2bn", _D101, forced=_NEXT_32X8), _ALL),
    "wideres2net50": (ResNetType("res2bn", _D34, forced=_WIDE), _ALL),
    "wideres2net101": (ResNetType("res2bn", _D101, forced=_WIDE), _ALL),
    "lres2net50": (ResNetType("res2bn", _D34, forced=_LIGHT), _ALL),
    "lres2next50_4x4d": (ResNetType("res2bn", _D34, forced=_NEXT_4X4), _ALL),
    "idrndresnet100": (ResNetType("basic", (6, 16, 24, 3), forced=_WIDE, widths=_IDRND_WIDTHS), _FREQ_ONLY),
    "idrndresnet202": (ResNetType("basic", (6, 16, 75, 3), forced=_WIDE, widths=_IDRND_WIDTHS), _FREQ_ONLY),
}


def _with_prefix(family: ResNetType, prefix: str) -> ResNetType:
    if not prefix:
        return family
    return replace(family, block=f"se{family.block}", se_type=SE_PREFIXES[prefix])


RESNET_TYPES: Mapping[str, ResNetType] = {
    f"{prefix}{name}": _with_prefix(family, prefix)
    for name, (family, prefixes) in _FAMILIES.items()
    for prefix in prefixes
}
"""All types by name."""


def resnet_type(name: str) -> ResNetType:
    """The type called ``name``.

    Raises:
        ValueError: unknown; names the nearest one.
    """
    if name not in RESNET_TYPES:
        raise ValueError(
            f"unknown resnet_type {name!r}{nearest(name, RESNET_TYPES)} (a type is a prefix out of "
            f"{', '.join(p for p in SE_PREFIXES if p)} or none, and a family: {', '.join(_FAMILIES)})"
        )
    return RESNET_TYPES[name]
