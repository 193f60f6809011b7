"""Statistics of one frame: an unbiased variance is NaN; a square root at a variance of zero has a finite value and a NaN gradient.

Right: value and gradient are finite for one frame, for constant frames, and for an item of a batch of which one frame is valid; an
item without a single valid frame is refused by name instead of becoming NaN.
"""

from __future__ import annotations

import pytest
import torch

from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm
from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from tests.models.small_models import build

POOLS = {
    "mean+stddev": {},
    "mean+logvar": {},
    "ch-wise-att-mean+stddev": {"in_feats": 4, "inner_feats": 3},
    "lde": {"in_feats": 4, "num_comp": 3},
}


def layer_of(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return GlobalPool1dFactory.create(name, **POOLS[name])


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("constant", [False, True])
def test_pooling_one_frame_or_constant_frames(name: str, constant: bool) -> None:
    pool = layer_of(name)
    x = torch.full((2, 4, 5), 0.7) if constant else torch.randn(2, 4, 5)
    for lengths in (torch.tensor([5, 1]), torch.tensor([1, 1])):
        leaf = x.clone().requires_grad_()
        out = pool(leaf, lengths)
        out.square().sum().backward()
        assert torch.isfinite(out).all() and torch.isfinite(leaf.grad).all()
        assert all(torch.isfinite(p.grad).all() for p in pool.parameters() if p.grad is not None)


def test_normalising_one_frame() -> None:
    norm = MeanVarianceNorm(norm_mean=True, norm_var=True)
    x = torch.randn(1, 1, 6).requires_grad_()
    y = norm(x)
    y.square().sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", ["ecapa", "fwse-res2"])
def test_a_batch_item_without_a_valid_frame_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"x_lengths\[1\] = 0: every item needs at least one valid position"):
        build(name)(torch.randn(2, 24, 40), x_lengths=torch.tensor([40, 0]))
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[1] = False
    with pytest.raises(ValueError, match=r"x_lengths\[1\] = 0"):
        build(name)(torch.randn(2, 24, 40), x_lengths=mask)
