"""No encoder: frames that are encoded already."""

from __future__ import annotations

import torch

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.narchs.conv_encoder import ConvEncoder, Taps


class IdentityEncoder(ConvEncoder):
    """Gives its input, with zeros in the padding: for models whose frames come from a pretrained encoder. It has no tensors.

    Args:
        in_feats: features per frame.

    Raises:
        ValueError: ``in_feats`` is not positive.
    """

    alignment = 1
    stage_names = ("input",)
    layer_names = ("input",)

    def __init__(self, in_feats: int) -> None:
        super().__init__()
        if in_feats < 1:
            raise ValueError(f"in_feats must be positive, got {in_feats}")
        self.in_feats = in_feats

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """(in_feats,)."""
        return (self.in_feats,)

    @property
    def receptive_field(self) -> ReceptiveField:
        """One frame."""
        return ReceptiveField()

    def _encode(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, item_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        taps.record("input", x, padding)
        return x, padding
