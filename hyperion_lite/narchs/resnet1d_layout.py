"""What follows from the constructor arguments of the 1-D encoder: per-superblock values, scales, endpoints; with all checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hyperion_lite.core.padding import conv_out_length


def per_superblock(
    value: int | Sequence[int], count: int, name: str, what: str = "superblocks of resb_repeats"
) -> list[int]:
    """One value for each of ``count`` parts; a single value is used for all.

    Args:
        value: the value or values.
        count: number of parts.
        name: of the argument, for messages.
        what: what the parts are, for messages.

    Raises:
        ValueError: wrong number of values, or a value below 1.
    """
    values = [value] if isinstance(value, int) else [int(v) for v in value]
    if len(values) == 1:
        values = values * count
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values for the {count} {what}")
    if min(values, default=1) < 1:
        raise ValueError(f"{name} must be positive, got {values}")
    return values


@dataclass(frozen=True)
class StemSettings:
    """The first convolution: kernel size and stride."""

    kernel_size: int
    stride: int

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Lengths after the stem."""
        return conv_out_length(lengths, self.kernel_size, self.stride, 1, (self.kernel_size - 1) // 2)


@dataclass(frozen=True)
class EndpointLayout:
    """Which superblocks are merged, and at which scale.

    Attributes:
        superblocks: indices from 0.
        scales: input frames per output frame of each superblock of the encoder.
        reference: superblock whose scale the merged output has.
    """

    superblocks: tuple[int, ...]
    scales: tuple[int, ...]
    reference: int

    @classmethod
    def create(
        cls, endpoint_layers: Sequence[int] | None, endpoint_scale_layer: int, scales: Sequence[int]
    ) -> EndpointLayout:
        """Check the arguments; ``endpoint_layers`` counts superblocks from 1, ``endpoint_scale_layer`` is a Python index.

        Raises:
            ValueError: values out of range or repeated.
        """
        count = len(scales)
        layers = list(range(1, count + 1)) if endpoint_layers is None else sorted(int(v) for v in endpoint_layers)
        if not layers or len(set(layers)) != len(layers) or layers[0] < 1 or layers[-1] > count:
            raise ValueError(f"endpoint_layers must be different numbers in 1...{count}, got {endpoint_layers}")
        if not -count <= endpoint_scale_layer < count:
            raise ValueError(f"endpoint_scale_layer must be in {-count}...{count - 1}, got {endpoint_scale_layer}")
        return cls(tuple(layer - 1 for layer in layers), tuple(scales), endpoint_scale_layer % count)

    @property
    def scale(self) -> int:
        """Input frames per merged output frame."""
        return self.scales[self.reference]

    def upsampling(self, superblock: int) -> int:
        """By which factor the output of ``superblock`` grows; 1 if it keeps its length or shrinks."""
        return max(self.scales[superblock] // self.scale, 1)

    @property
    def ragged(self) -> bool:
        """Whether endpoints of one item can have different lengths: rounding up before upsampling shows then."""
        return any(self.upsampling(superblock) > 1 for superblock in self.superblocks)


def crop_starts(lengths: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """First position of the centred cut to the shortest, for each item of each of ``lengths``."""
    shortest = torch.stack(list(lengths)).amin(dim=0)
    return [torch.div(length - shortest, 2, rounding_mode="floor") for length in lengths]
