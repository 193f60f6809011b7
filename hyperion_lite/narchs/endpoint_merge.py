"""Cutting endpoint outputs to a common size, every item at its own place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hyperion_lite.core.padding import Padding
from hyperion_lite.narchs.resnet1d_layout import crop_starts

Endpoint = tuple[torch.Tensor, Padding | None]


def crop_endpoints(
    endpoints: Sequence[Endpoint], full_lengths: Sequence[torch.Tensor] | None
) -> tuple[list[torch.Tensor], Padding | None]:
    """Cut endpoints, centred, to the shortest.

    Where the cut lies depends on how lengths were rounded before upsampling, so it is a property of the item. Inside a window of a
    longer item it has to lie where the whole item has it.

    Args:
        endpoints: outputs (batch, channels, [freq_i,] time_i) and their padding. Frequencies are cut too, at the same place for all items.
        full_lengths: for each endpoint, its lengths (batch,) for the whole items; ``None`` when the outputs are of whole items.

    Returns:
        The cut outputs, all of one size, and their padding.
    """
    if endpoints[0][0].dim() > 3:
        freqs = min(x.size(2) for x, _ in endpoints)
        endpoints = [(x.narrow(2, (x.size(2) - freqs) // 2, freqs), padding) for x, padding in endpoints]
    if full_lengths is None and all(padding is None for _, padding in endpoints):
        size = min(x.size(-1) for x, _ in endpoints)
        return [x.narrow(-1, (x.size(-1) - size) // 2, size) for x, _ in endpoints], None
    lengths = [_lengths(x, padding) for x, padding in endpoints]
    starts = crop_starts(lengths if full_lengths is None else full_lengths)
    cut = torch.stack([length - start for length, start in zip(lengths, starts, strict=True)]).amin(dim=0)
    size = min(x.size(-1) for x, _ in endpoints)
    steps = torch.arange(size, device=cut.device)
    outputs = []
    for (x, _), start in zip(endpoints, starts, strict=True):
        index = (start[:, None] + steps).clamp(max=x.size(-1) - 1)
        index = index.view(-1, *[1] * (x.dim() - 2), size).expand(-1, *x.shape[1:-1], -1)
        outputs.append(x.gather(-1, index))
    return outputs, Padding(cut, size)


def _lengths(x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    if padding is not None:
        return padding.lengths
    return torch.full((x.size(0),), x.size(-1), dtype=torch.int64, device=x.device)
