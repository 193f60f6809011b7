from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.grn import GlobalResponseNorm


def random_norm(channels: int, ndim: int, dtype: torch.dtype = torch.float64) -> GlobalResponseNorm:
    norm = GlobalResponseNorm(channels, ndim).to(dtype)
    with torch.no_grad():
        norm.gamma.normal_()
        norm.beta.normal_()
    return norm


def by_hand(norm: GlobalResponseNorm, x: torch.Tensor) -> torch.Tensor:
    """One item (..., time, channels), channel by channel."""
    channels = x.size(-1)
    energies = [math.sqrt(float(x[..., c].square().sum())) for c in range(channels)]
    mean = sum(energies) / channels
    scaled = [x[..., c] * energies[c] / (mean + 1e-6) for c in range(channels)]
    return norm.gamma[0] * torch.stack(scaled, dim=-1) + norm.beta[0] + x


@pytest.mark.parametrize("shape", [(7, 5), (3, 7, 5)])
def test_formula(shape):
    torch.manual_seed(0)
    norm = random_norm(5, len(shape) - 1)
    x = torch.randn(2, *shape, dtype=torch.float64)
    assert list(norm.state_dict()) == ["gamma", "beta"]
    assert norm.gamma.shape == (1, *[1] * (len(shape) - 1), 5)
    torch.testing.assert_close(norm(x), torch.stack([by_hand(norm, item) for item in x]))


def test_it_starts_as_the_identity():
    x = torch.randn(2, 4, 3)
    assert torch.equal(GlobalResponseNorm(3)(x), x)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    extra=st.integers(0, 5),
    ndim=st.sampled_from([1, 2]),
    fill=st.sampled_from([0.0, 1e6, math.inf, math.nan]),
)
def test_padding_does_not_count(lengths, extra, ndim, fill):
    torch.manual_seed(1)
    norm = random_norm(4, ndim)
    inner = (3,) if ndim == 2 else ()
    size = max(lengths) + extra
    x = torch.full((len(lengths), *inner, size, 4), fill, dtype=torch.float64)
    for row, length in zip(x, lengths, strict=True):
        row[..., :length, :] = torch.randn(*inner, length, 4, dtype=torch.float64)
    y = norm(x, Padding.from_lengths(torch.tensor(lengths), len(lengths), size))
    for i, length in enumerate(lengths):
        torch.testing.assert_close(
            y[i : i + 1, ..., :length, :], norm(x[i : i + 1, ..., :length, :]), rtol=1e-12, atol=0
        )


def test_zeros_in_the_padding_become_the_shift():
    norm = random_norm(4, 1)
    x = torch.zeros(1, 5, 4, dtype=torch.float64)
    x[:, :2] = 1.0
    y = norm(x, Padding.from_lengths(torch.tensor([2]), 1, 5))
    torch.testing.assert_close(y[:, 2:], norm.beta.expand(1, 3, 4))


def test_silent_channels_have_finite_gradients():
    norm = random_norm(4, 1)
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    x[..., 1] = 0.0
    x[1] = 0.0
    x.requires_grad_()
    norm(x).square().sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype):
    norm = random_norm(4, 1, dtype)
    x = (torch.randn(1, 500, 4) * 200).to(dtype)
    y = norm(x)
    assert y.dtype == dtype
    exact = random_norm(4, 1, torch.float32)
    exact.load_state_dict({k: v.float() for k, v in norm.state_dict().items()})
    assert torch.isfinite(y).all()
    torch.testing.assert_close(y.float(), exact(x.float()), rtol=0.05, atol=20.0)


def test_autocast_gives_the_dtype_of_the_input():
    norm = random_norm(4, 1, torch.float32)
    x = torch.randn(2, 50, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm(x).dtype == torch.float32
        assert norm(x.bfloat16()).dtype == torch.bfloat16
        torch.testing.assert_close(norm(x.bfloat16()).float(), norm(x), rtol=0.05, atol=0.05)


def test_training_in_half_precision_keeps_no_copy_in_float32():
    norm = random_norm(4, 1, torch.bfloat16)
    x = torch.randn(2, 50, 4).bfloat16().requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = norm(x, Padding.from_lengths(torch.tensor([50, 20]), 2, 50))
    large = [t for t in kept if t.shape == x.shape and t.is_floating_point()]
    assert large and {t.dtype for t in large} == {torch.bfloat16} and len({t.data_ptr() for t in large}) == 1
    y.float().square().sum().backward()
    assert x.grad.isfinite().all() and not x.grad[1, 20:].any()
