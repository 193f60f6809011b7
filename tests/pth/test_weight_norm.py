from __future__ import annotations

import copy
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hyperion_lite.pth.weight_norm import find_weight_norm_pairs, fuse_pair, fuse_weight_norm


def _weight_norm(layer: nn.Module, spelling: str, dim: int | None, name: str = "weight") -> nn.Module:
    if spelling == "new":
        return torch.nn.utils.parametrizations.weight_norm(layer, name, dim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer, name, dim)


def _arrays(layer: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in layer.state_dict().items()}


class _Bare(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape) * 0.1)

    def forward(self) -> torch.Tensor:
        return self.weight


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    spelling=st.sampled_from(["old", "new"]),
    data=st.data(),
)
def test_any_dim_and_both_spellings_give_the_weight_of_torch(shape, spelling, data):
    dim = data.draw(st.none() | st.integers(0, len(shape) - 1))
    layer = _weight_norm(_Bare(shape), spelling, dim)
    with torch.no_grad():
        # after training the magnitude is not the norm of the direction any more
        for parameter in layer.parameters():
            parameter.mul_(torch.rand_like(parameter) + 0.5)
    fused = fuse_weight_norm(_arrays(layer))
    assert list(fused) == ["weight"] and fused["weight"].dtype == np.float32
    np.testing.assert_allclose(fused["weight"], layer().detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spelling", ["old", "new"])
@pytest.mark.parametrize(
    "layer", [nn.Conv1d(12, 8, 5), nn.ConvTranspose1d(12, 8, 5), nn.Linear(40, 30), nn.Conv2d(3, 4, 3)]
)
def test_real_layers_keep_their_bias_and_order(layer, spelling):
    normed = _weight_norm(copy.deepcopy(layer), spelling, 0)
    names = list(fuse_weight_norm(_arrays(nn.Sequential(nn.ReLU(), normed))))
    assert sorted(names) == ["1.bias", "1.weight"]
    fused = fuse_weight_norm(_arrays(normed))
    reference = torch._weight_norm(*[torch.from_numpy(_arrays(normed)[name]) for name in _halves(spelling)], 0)
    np.testing.assert_allclose(fused["weight"], reference.numpy(), rtol=0, atol=1e-6)


def _halves(spelling: str) -> tuple[str, str]:
    if spelling == "old":
        return "weight_v", "weight_g"
    return "parametrizations.weight.original1", "parametrizations.weight.original0"


def test_recurrent_weights_are_recognised():
    lstm = _weight_norm(nn.LSTM(3, 4), "old", 0, "weight_hh_l0")
    fused = fuse_weight_norm(_arrays(lstm))
    assert set(fused) == {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"}


def test_lone_halves_and_other_tensors_pass_through_unchanged():
    spectral = _arrays(nn.utils.spectral_norm(nn.Linear(3, 2)))
    assert "weight_v" in spectral
    tensors = {**spectral, "embed_g": np.ones(3), "embed_v": np.ones((3, 2)), "scale": np.ones(1)}
    fused = fuse_weight_norm(tensors)
    assert list(fused) == list(tensors) and all(fused[name] is tensors[name] for name in tensors)


def test_the_input_is_not_changed():
    tensors = {"a.weight_g": np.full((2, 1), 2, np.float32), "a.weight_v": np.ones((2, 4), np.float32)}
    copies = {name: value.copy() for name, value in tensors.items()}
    np.testing.assert_array_equal(fuse_weight_norm(tensors)["a.weight"], np.ones((2, 4)))
    assert list(tensors) == list(copies) and all((tensors[name] == copies[name]).all() for name in copies)


def test_fusing_in_place_writes_into_the_direction():
    g, v = np.full((2, 1, 1), 2, np.float32), np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    expected = fuse_pair(g, v)
    assert fuse_pair(g, v, out=v) is v
    np.testing.assert_array_equal(v, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_the_dtype_of_the_direction_is_kept(dtype):
    v = np.random.default_rng(0).standard_normal((4, 6)).astype(dtype)
    g = np.ones((4, 1), dtype)
    wide = v.astype(np.float64)
    expected = wide / np.sqrt((wide**2).sum(axis=1, keepdims=True))
    for fused in (fuse_pair(g, v), fuse_pair(g, v, out=v.copy())):
        assert fused.dtype == dtype
        eps = {2: 2.0**-8, 8: 1e-15}[np.dtype(dtype).itemsize]
        np.testing.assert_allclose(fused.astype(np.float64), expected, rtol=eps, atol=0)


def test_a_direction_of_zero_length_is_nan_as_in_torch():
    assert np.isnan(fuse_pair(np.ones((1, 1), np.float32), np.zeros((1, 3), np.float32))).all()


@pytest.mark.parametrize("g_shape", [(3, 1, 1), (2, 3, 1), (1, 1, 1), (2,), (2, 1)])
def test_shapes_that_do_not_fit_are_named(g_shape):
    tensors = {"conv.weight_g": np.ones(g_shape, np.float32), "conv.weight_v": np.ones((2, 3, 4), np.float32)}
    with pytest.raises(ValueError, match=r"conv\.weight"):
        fuse_weight_norm(tensors)


def test_integers_are_refused():
    with pytest.raises(ValueError, match="floating-point"):
        fuse_pair(np.ones((2, 1), np.int64), np.ones((2, 2), np.int64))


def test_a_taken_name_and_two_spellings_at_once_are_refused():
    old, new = (
        ["c.weight_g", "c.weight_v"],
        ["c.parametrizations.weight.original0", "c.parametrizations.weight.original1"],
    )
    with pytest.raises(ValueError, match="beside its weight-normalised halves"):
        find_weight_norm_pairs([*old, "c.weight"])
    with pytest.raises(ValueError, match="both spellings"):
        find_weight_norm_pairs(old + new)
