"""The sizes of ConvNeXt encoders that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyperion_lite.core.config import unknown_choice

_SMALLEST, _NANO, _TINY, _LARGER = (2, 2, 6, 2), (2, 2, 8, 2), (3, 3, 9, 3), (3, 3, 27, 3)


@dataclass(frozen=True)
class ConvNextSize:
    """What a name fixes.

    Attributes:
        repeats: blocks of each superblock.
        channels: channels of each superblock.
    """

    repeats: tuple[int, ...]
    channels: tuple[int, ...]

    def forced(self) -> dict[str, Any]:
        """The constructor arguments that a name overrides; resolutions halve between superblocks."""
        return {
            "convb_repeats": list(self.repeats),
            "convb_channels": list(self.channels),
            "downb_strides": [2] * (len(self.channels) - 1),
        }


def _doubling(repeats: tuple[int, ...], width: int) -> ConvNextSize:
    return ConvNextSize(repeats, (width, 2 * width, 4 * width, 8 * width))


SIZES_2D: Mapping[str, ConvNextSize] = {
    "atto": _doubling(_SMALLEST, 40),
    "femto": _doubling(_SMALLEST, 48),
    "pico": _doubling(_SMALLEST, 64),
    "nano": _doubling(_NANO, 80),
    "tiny": _doubling(_TINY, 96),
    "small": _doubling(_LARGER, 96),
    "base": _doubling(_LARGER, 128),
    "large": _doubling(_LARGER, 192),
    "xlarge": _doubling(_LARGER, 256),
    "huge": _doubling(_LARGER, 352),
}
"""``short_name`` of the 2-D encoder."""

SIZES_1D: Mapping[str, ConvNextSize] = {
    "atto": ConvNextSize(_SMALLEST, (96, 128, 160, 320)),
    "femto": ConvNextSize(_SMALLEST, (96, 128, 192, 384)),
    "pico": ConvNextSize(_SMALLEST, (96, 128, 256, 512)),
    "pico2": ConvNextSize(_SMALLEST, (128, 128, 256, 512)),
    "pico3": ConvNextSize(_SMALLEST, (128, 256, 256, 512)),
    "pico4": ConvNextSize(_SMALLEST, (256, 256, 256, 512)),
    "pico5": ConvNextSize(_SMALLEST, (512, 512, 512, 512)),
    "pico6": ConvNextSize(_SMALLEST, (512, 798, 1024, 1536)),
    "pico7": ConvNextSize(_SMALLEST, (798, 1024, 1536, 2048)),
    "nano": ConvNextSize(_NANO, (96, 160, 320, 640)),
    "tiny": ConvNextSize(_TINY, (96, 192, 384, 768)),
    "small": ConvNextSize(_LARGER, (96, 192, 384, 768)),
    "base": ConvNextSize(_LARGER, (128, 256, 512, 1024)),
    "large": ConvNextSize(_LARGER, (192, 384, 768, 1536)),
    "huge": ConvNextSize(_LARGER, (352, 704, 1408, 2816)),
}
"""``short_name`` of the 1-D encoder."""


def find_size(sizes: Mapping[str, ConvNextSize], short_name: str) -> ConvNextSize:
    """The size called ``short_name``.

    Raises:
        ValueError: unknown; lists the known names.
    """
    if short_name not in sizes:
        raise ValueError(unknown_choice("short_name", short_name, sizes))
    return sizes[short_name]
