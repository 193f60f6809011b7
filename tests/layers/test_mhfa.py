"""Multi-head factorised attention: the formula, and what it ignores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.mhfa import MHFAPool1d

LAYERS, D, HEADS = 3, 4, 2


def make() -> MHFAPool1d:
    torch.manual_seed(0)
    pool = MHFAPool1d(LAYERS * D, LAYERS, HEADS, d_k=5, d_v=6).double()
    for parameter in pool.parameters():
        nn.init.normal_(parameter)
    return pool


def test_it_is_the_formula_head_by_head():
    pool = make()
    layers = torch.randn(2, LAYERS, D, 7, dtype=torch.float64)
    found = pool(layers.flatten(1, 2))
    for item, result in zip(layers, found, strict=True):
        a, b = pool.layer_weights_k.softmax(0), pool.layer_weights_v.softmax(0)
        keys = torch.stack([pool.linear_k(sum(a[i] * item[i, :, t] for i in range(LAYERS))) for t in range(7)])
        values = torch.stack([pool.linear_v(sum(b[i] * item[i, :, t] for i in range(LAYERS))) for t in range(7)])
        heads = []
        for head in range(HEADS):
            weights = torch.softmax(keys @ pool.att.weight[head], 0)
            heads.append((weights[:, None] * values).sum(0))
        torch.testing.assert_close(result, torch.cat(heads))


def test_keys_and_values_have_layer_weights_of_their_own_and_all_learn():
    pool = make()
    x = torch.randn(2, LAYERS * D, 7, dtype=torch.float64)
    pool(x).square().sum().backward()
    for name, parameter in pool.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-9, name
    expected = pool(x)
    with torch.no_grad():
        pool.layer_weights_k += torch.tensor([2.0, 0.0, -2.0])
    only_keys = pool(x)
    assert not torch.allclose(only_keys, expected)
    with torch.no_grad():
        pool.layer_weights_v += 7.0
    torch.testing.assert_close(pool(x), only_keys)


def test_one_frame_is_its_values_in_every_head():
    pool = make()
    x = torch.randn(1, LAYERS * D, 1, dtype=torch.float64)
    mixed = (x.unflatten(1, (LAYERS, D)) * pool.layer_weights_v.softmax(0)[:, None, None]).sum(1)[..., 0]
    torch.testing.assert_close(pool(x), pool.linear_v(mixed).repeat(1, HEADS))


@pytest.mark.parametrize("num_layers", [0, 5])
def test_features_that_are_not_those_of_the_layers_are_refused(num_layers):
    with pytest.raises(ConfigError, match=f"num_layers = {num_layers}"):
        MHFAPool1d(12, num_layers)
