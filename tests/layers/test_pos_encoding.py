"""Encodings of positions."""

import math

import pytest
import torch

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.pos_encoding import ConvPosEncoder, make_pos_encoder, sinusoids


@pytest.mark.parametrize("num_feats", [6, 7])
def test_the_table_is_the_formula(num_feats):
    table = sinusoids(torch.tensor([[-3, 0], [5, 1000]]), num_feats, torch.float64)
    assert table.shape == (2, 2, num_feats)
    for (row, column), position in {(0, 0): -3, (0, 1): 0, (1, 0): 5, (1, 1): 1000}.items():
        for i in range(num_feats):
            angle = position * 10000 ** (-(i - i % 2) / num_feats)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            assert table[row, column, i].item() == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_up_to_float32_the_table_is_that_of_existing_models(dtype):
    num_feats, frames = 32, 600
    frequencies = torch.exp(torch.arange(0, num_feats, 2, dtype=torch.float32) * -(math.log(10000.0) / num_feats))
    angles = torch.arange(frames, dtype=torch.float32)[:, None] * frequencies
    table = torch.empty(frames, num_feats)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    found = sinusoids(torch.arange(frames), num_feats, dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 2**-8
    assert (found.float() - table).abs().max() <= tolerance
    mirrored = sinusoids(-torch.arange(frames), num_feats, dtype)
    assert torch.equal(mirrored[:, 0::2], -found[:, 0::2]) and torch.equal(mirrored[:, 1::2], found[:, 1::2])


def test_kinds():
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.equal(make_pos_encoder("no", 8, 0.5, 3, 1, "relu")(x), x)
    assert torch.allclose(make_pos_encoder("rel", 8, 0.0, 3, 1, "relu")(x), x * 8**0.5)
    absolute = make_pos_encoder("abs", 8, 0.0, 3, 1, "relu")
    table = sinusoids(torch.arange(9), 8, torch.float64)
    assert torch.allclose(absolute(x), x * 8**0.5 + table[:5])
    assert torch.allclose(absolute(x, start=4), x * 8**0.5 + table[4:])


@pytest.mark.parametrize("kernel_size", [1, 2, 5, 8])
def test_a_convolution_takes_the_place_of_its_input_and_ends_with_each_item(kernel_size):
    encoder = ConvPosEncoder(8, kernel_size, 2, "tanh").double().eval()
    items = [torch.randn(1, n, 8, dtype=torch.float64) for n in (9, 4)]
    x = torch.full((2, 9, 8), math.nan, dtype=torch.float64)
    for row, item in enumerate(items):
        x[row, : item.size(1)] = item
    with torch.no_grad():
        batch = encoder(x, Padding(torch.tensor([9, 4]), 9))
        for row, item in enumerate(items):
            alone = encoder(item)
            assert alone.shape == item.shape
            assert torch.allclose(batch[row, : item.size(1)], alone[0], atol=1e-14)
        left, right = encoder.context
        moved = items[0].clone()
        moved[0, 5] += 1
        changed = (encoder(moved) - encoder(items[0])).abs().amax(-1)[0] > 0
    assert changed.nonzero().flatten().tolist() == [t for t in range(9) if t - left <= 5 <= t + right]


def test_settings_that_are_impossible():
    with pytest.raises(ValueError, match="pos_num_groups"):
        ConvPosEncoder(8, 3, 3, None)
    with pytest.raises(ValueError, match="pos_kernel_size"):
        ConvPosEncoder(8, 0, 1, None)
