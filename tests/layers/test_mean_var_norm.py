"""Mean and variance normalisation: definition, per-item decisions, precision of long recordings, gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import LengthsError
from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm, canonical_mvn_config

KINDS = [(True, False), (True, True), (False, True), (False, False)]


@pytest.fixture(params=["item by item", "as a batch"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs both ways of computing a batch, the one of the CPU and the one of other devices."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "as a batch":
            patch.setattr("hyperion_lite.layers.item_by_item.DEVICE_TYPES", frozenset())
        yield


def direct(x: torch.Tensor, mvn: MeanVarianceNorm) -> torch.Tensor:
    """One frame at a time, in float64."""
    x = x.double()
    num_frames, left, right = len(x), mvn.left_context, mvn.right_context
    if left + right == 0 or num_frames <= mvn.window_length:
        out = x - x.mean(0) if mvn.norm_mean else x
        std = x.std(0) if num_frames > 1 else torch.zeros(x.size(1), dtype=torch.float64)
        return out / std.clamp(min=1e-5) if mvn.norm_var else out
    if mvn.norm_mean:
        x = x - x.mean(0)
    oldest = left if mvn.frontend_rules == "modern" else left - 1
    rows = []
    for t in range(num_frames):
        index = torch.arange(t - oldest, t + right + 1).abs()
        window = x[torch.where(index < num_frames, index, 2 * (num_frames - 1) - index)]
        mean = window.sum(0) / mvn.window_length
        row = x[t] - mean if mvn.norm_mean else x[t]
        variance = window.square().sum(0) / mvn.window_length - mean.square()
        rows.append(row / variance.clamp(min=1e-5).sqrt() if mvn.norm_var else row)
    return torch.stack(rows)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    left=st.integers(0, 6),
    right=st.integers(0, 6),
    rules=st.sampled_from(["legacy", "modern"]),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    extra=st.integers(0, 20),
    fill=st.sampled_from([0.0, 1e3, math.inf, math.nan]),
    block=st.sampled_from([5, 2048]),
    seed=st.integers(0, 100),
)
def test_every_item_follows_the_definition_whatever_is_beside_it(
    kind, left, right, rules, lengths, extra, fill, block, seed
):
    mvn = MeanVarianceNorm(*kind, left, right, frontend_rules=rules)
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((len(lengths), max(lengths) + extra, 3), fill, dtype=torch.float64)
    items = [torch.randn(n, 3, generator=generator, dtype=torch.float64) * 2 - 8 for n in lengths]
    for row, item in zip(x, items, strict=True):
        row[: len(item)] = item
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hyperion_lite.layers.mean_var_norm._BLOCK", block)
        out = mvn(x, torch.tensor(lengths))
        single = mvn(x.float(), torch.tensor(lengths))
        alone = [mvn(item[None])[0] for item in items]
    for b, (item, length) in enumerate(zip(items, lengths, strict=True)):
        expected = direct(item, mvn)
        scale = float(expected.abs().max().clamp(min=1))
        assert float((out[b, :length] - expected).abs().max()) <= 1e-9 * scale
        assert float((alone[b] - out[b, :length]).abs().max()) <= 1e-10 * scale
        if length > 3:
            # two or three nearly equal values have a variance that float32 input cannot hold
            assert float((single[b, :length] - expected).abs().max()) <= 1e-3 * scale
        if any(kind) or extra:
            assert not out[b, length:].any()


@pytest.mark.parametrize("rules", ["legacy", "modern"])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_an_hour_keeps_its_precision(kind, rules):
    generator = torch.Generator().manual_seed(0)
    num_frames = 360_000
    x = torch.randn(1, num_frames, 2, generator=generator) * 2 - 12 + torch.linspace(0, 8, num_frames)[None, :, None]
    mvn = MeanVarianceNorm(*kind, left_context=150, right_context=150, frontend_rules=rules)
    out = mvn(x)
    exact = x.double() - (x.double().mean(1, keepdim=True) if kind[0] else 0)
    oldest = 150 if rules == "modern" else 149
    for t in (0, 149, 2047, 2048, 200_000, num_frames - 151, num_frames - 1):
        index = torch.arange(t - oldest, t + 151).abs()
        window = exact[0, torch.where(index < num_frames, index, 2 * (num_frames - 1) - index)]
        mean = window.sum(0) / 301
        expected = exact[0, t] - mean if kind[0] else exact[0, t]
        if kind[1]:
            expected = expected / (window.square().sum(0) / 301 - mean.square()).sqrt()
        assert float((out[0, t] - expected).abs().max()) <= 1e-5


def test_whether_an_item_slides_is_its_own_decision():
    mvn = MeanVarianceNorm(norm_var=True, left_context=5, right_context=4)
    x = torch.randn(3, 25, 4)
    lengths = torch.tensor([25, 10, 11])
    out = mvn(x, lengths)
    whole = MeanVarianceNorm(norm_var=True)
    torch.testing.assert_close(out[1:2, :10], whole(x[1:2, :10]))
    assert not torch.allclose(out[2:3, :11], whole(x[2:3, :11]))
    torch.testing.assert_close(out[2:3, :11], mvn(x[2:3, :11]))


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("context", [0, 3])
def test_one_frame_and_constant_input_have_finite_values_and_gradients(kind, context):
    mvn = MeanVarianceNorm(*kind, context, context)
    for frames in (1, 2, 20):
        for make in (torch.zeros, torch.ones):
            x = (make(2, frames, 3) * 0.7).requires_grad_()
            out = mvn(x, torch.tensor([frames, 1]))
            out.sum().backward()
            assert out.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_gradient_is_right():
    x = torch.randn(2, 12, 2, dtype=torch.float64, requires_grad=True)
    for kind in KINDS[:3]:
        mvn = MeanVarianceNorm(*kind, 3, 2)
        torch.autograd.gradcheck(lambda v, m=mvn: m(v, torch.tensor([12, 5])), x)


def test_no_gradient_leaks_from_nan_padding():
    x = torch.randn(2, 12, 2)
    x[1, 5:] = math.nan
    x.requires_grad_()
    MeanVarianceNorm(True, True, 2, 2)(x, torch.tensor([12, 5])).square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and not x.grad[1, 5:].any()


def test_half_precision_is_normalised_in_float32():
    x = torch.randn(1, 200, 4) * 3 - 12
    mvn = MeanVarianceNorm(left_context=20, right_context=20)
    half = mvn(x.to(torch.bfloat16))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), mvn(x.to(torch.bfloat16).float()), atol=0.04, rtol=0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mvn(x), mvn(x.clone()))
        assert mvn(x).dtype == torch.float32


def test_the_time_axis_can_be_elsewhere():
    x = torch.randn(2, 4, 30)
    lengths = torch.tensor([30, 12])
    expected = MeanVarianceNorm(True, True, 3, 3)(x.transpose(1, 2), lengths).transpose(1, 2)
    assert torch.equal(MeanVarianceNorm(True, True, 3, 3, dim=-1)(x, lengths), expected)
    deep = torch.randn(2, 30, 2, 5)
    flat = MeanVarianceNorm(True, True, 3, 3)(deep.flatten(2)).view_as(deep)
    assert torch.equal(MeanVarianceNorm(True, True, 3, 3)(deep), flat)


def test_old_spellings():
    assert canonical_mvn_config({"context": 7, "no_norm_mean": True}) == {
        "left_context": 7,
        "right_context": 7,
        "norm_mean": False,
    }
    assert canonical_mvn_config({"context": 7, "left_context": 2}) == {"left_context": 2, "right_context": 7}
    assert MeanVarianceNorm.filter_args(context=3, norm_var=True, other=1) == {
        "left_context": 3,
        "right_context": 3,
        "norm_var": True,
    }


def test_configuration_is_what_model_files_hold():
    mvn = MeanVarianceNorm(norm_var=True, frontend_rules="legacy")
    assert mvn.get_config() == {"norm_mean": True, "norm_var": True, "left_context": 0, "right_context": 0}


def test_errors():
    with pytest.raises(ValueError, match="left_context"):
        MeanVarianceNorm(left_context=-1)
    with pytest.raises(ValueError, match="frontend_rules"):
        MeanVarianceNorm(frontend_rules="auto")  # type: ignore[arg-type]
    with pytest.raises(LengthsError, match="x_lengths"):
        MeanVarianceNorm()(torch.randn(2, 5, 3), torch.tensor([5, 6]))
