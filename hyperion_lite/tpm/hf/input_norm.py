"""Zero mean and unit variance of every waveform."""

from __future__ import annotations

import torch

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.precision import at_least_float32

_EPSILON = 1e-7
"""Added to the variance, as the feature processors of wav2vec 2.0 models do."""


def normalise_waveforms(x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
    """Subtract the mean and divide by the standard deviation, both (biased) over the item's valid samples.

    Args:
        x: (batch, samples) floating point, finite at valid positions; what the padding holds does not matter.
        padding: valid samples.

    Returns:
        (batch, samples) float32 or float64; padding is 0.
    """
    x = at_least_float32(x)
    if padding is None:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
    else:
        count = padding.lengths[:, None].to(x.dtype)
        centred = padding.fill(x)
        centred = padding.fill(centred - centred.sum(-1, keepdim=True) / count)
        variance = centred.square().sum(-1, keepdim=True) / count
    return centred / torch.sqrt(variance + _EPSILON)
