"""Splitting a batch by length, so that little is computed for its padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_LARGEST_SHARE = {"cpu": 0.0}
_USUAL_LARGEST_SHARE = 0.15


def largest_padded_share(device: torch.device) -> float:
    """How much of a group may be padding: nothing on the CPU, where a batch gains nothing; more where small batches are slow."""
    return _LARGEST_SHARE.get(device.type, _USUAL_LARGEST_SHARE)


def group_by_length(lengths: Sequence[int], padded_share: float) -> list[list[int]]:
    """Indices of ``lengths`` in groups, longest first, in each of which at most ``padded_share`` of the padded size is padding.

    Indices of equal length keep their order.
    """
    groups: list[list[int]] = []
    valid = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        if groups:
            group = groups[-1]
            size = lengths[group[0]] * (len(group) + 1)
            if valid + length >= (1.0 - padded_share) * size:
                group.append(index)
                valid += length
                continue
        groups.append([index])
        valid = length
    return groups
