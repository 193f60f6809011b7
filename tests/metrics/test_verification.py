"""Error rates against independent computations."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.metrics import act_dcf, categorical_accuracy, det_curve, equal_error_rate, min_dcf, rocch

scores = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=25)


def brute_force_rates(target, nontarget):
    """Rates by counting, at every score and beyond it."""
    points = []
    for threshold in [-np.inf, *sorted({*target, *nontarget}), np.inf]:
        points.append((np.mean([t < threshold for t in target]), np.mean([n >= threshold for n in nontarget])))
    return points


def eer_by_duality(target, nontarget):
    """The hull's equal error rate is the largest, over priors, of the smallest Bayes error."""
    points = np.array(brute_force_rates(target, nontarget))
    priors = np.linspace(0, 1, 20001)
    return max((priors[:, None] * points[None, :, 0] + (1 - priors[:, None]) * points[None, :, 1]).min(axis=1))


@given(scores, scores)
def test_det_curve_counts(target, nontarget):
    curve = det_curve(target, nontarget)
    assert np.allclose(np.stack([curve.p_miss, curve.p_fa], 1), brute_force_rates(target, nontarget), atol=1e-12)
    assert curve.p_miss[0] == 0 and curve.p_fa[0] == 1 and curve.p_miss[-1] == 1 and curve.p_fa[-1] == 0


@given(scores, scores)
def test_equal_error_rate_against_its_dual(target, nontarget):
    assert equal_error_rate(target, nontarget) == pytest.approx(eer_by_duality(target, nontarget), abs=2e-4)


@given(scores, scores, st.floats(0.01, 0.99), st.floats(0.5, 10))
def test_min_dcf_is_the_smallest_cost(target, nontarget, prior, c_miss):
    miss, alarm = prior * c_miss, 1 - prior
    costs = [(miss * a + alarm * b) / min(miss, alarm) for a, b in brute_force_rates(target, nontarget)]
    assert min_dcf(target, nontarget, prior, c_miss) == pytest.approx(min(costs))
    assert act_dcf(target, nontarget, prior, c_miss) >= min_dcf(target, nontarget, prior, c_miss) - 1e-12


def test_known_values():
    assert equal_error_rate([2, 3], [0, 1]) == 0.0
    assert equal_error_rate([0, 1], [2, 3]) == pytest.approx(0.5)
    assert equal_error_rate([1], [1]) == pytest.approx(0.5)
    # equal-variance normal scores whose means are d apart: the normal distribution at -d/2
    rng = np.random.default_rng(0)
    from scipy.stats import norm

    target, nontarget = rng.standard_normal(200_000) + 2.0, rng.standard_normal(200_000)
    assert equal_error_rate(target, nontarget) == pytest.approx(norm.cdf(-1.0), abs=2e-3)
    p_miss, p_fa = rocch([2, 3], [0, 1])
    assert p_miss.tolist() == [1.0, 0.0, 0.0] and p_fa.tolist() == [0.0, 0.0, 1.0]


def test_wrong_scores_are_refused():
    with pytest.raises(ValueError, match="no target scores"):
        equal_error_rate([], [1])
    with pytest.raises(ValueError, match="1 of 2 non-target scores are NaN"):
        min_dcf([1], [1, np.nan])
    with pytest.raises(ValueError, match="p_target"):
        min_dcf([1], [0], p_target=1.0)


def test_categorical_accuracy():
    logits = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    assert categorical_accuracy(logits, torch.tensor([1, 0, 0])).item() == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="logits must be"):
        categorical_accuracy(logits, torch.tensor([1, 0]))
