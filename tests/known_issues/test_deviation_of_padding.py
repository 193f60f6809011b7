"""The standard deviation of a padded item counted the zeros behind it: 0.95 alone, 5.2 in the batch.

Right: statistics over the valid positions, wherever a layer computes any.
"""

from __future__ import annotations

import pytest
import torch

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm
from hyperion_lite.layers.norm import BatchNorm1d
from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from tests.models.small_models import pad_items

ITEMS = [10 + torch.randn(3, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (40, 12)]
FILLS = [0.0, float("nan")]


@pytest.mark.parametrize("fill", FILLS)
def test_statistics_pooling(fill: float) -> None:
    batch, lengths = pad_items(ITEMS, fill)
    pooled = GlobalPool1dFactory.create("mean+stddev")(batch, lengths)
    assert torch.allclose(pooled[1, 3:], ITEMS[1].std(-1, correction=0), rtol=1e-12)
    assert 0.5 < float(pooled[1, 3]) < 1.5


@pytest.mark.parametrize("fill", FILLS)
def test_mean_and_variance_normalisation(fill: float) -> None:
    norm = MeanVarianceNorm(norm_mean=True, norm_var=True)
    batch, lengths = pad_items(ITEMS, fill)
    normalised = norm(batch.transpose(1, 2), lengths)
    alone = norm(ITEMS[1].T[None])
    assert torch.allclose(normalised[1, :12], alone[0], rtol=1e-10, atol=1e-12)
    assert not normalised[1, 12:].any()


@pytest.mark.parametrize("fill", FILLS)
def test_batch_norm_while_training(fill: float) -> None:
    batch, lengths = pad_items(ITEMS, fill)
    norm = BatchNorm1d(3, momentum=1.0).double().train()
    norm(batch, Padding.from_lengths(lengths, 2, batch.size(-1)))
    frames = torch.cat(ITEMS, dim=1)
    assert torch.allclose(norm.running_mean, frames.mean(1))
    assert torch.allclose(norm.running_var, frames.var(1))
