"""Verification: how well scores of target trials separate from scores of non-target trials.

A trial is accepted when its score is at or above a threshold. ``p_miss`` is the share of targets below it, ``p_fa`` the share of
non-targets at or above it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class DetCurve:
    """Error rates over all thresholds that make a difference, threshold rising.

    Attributes:
        p_miss: (n,) miss rates, not falling; from 0 to 1.
        p_fa: (n,) false-alarm rates, not rising; from 1 to 0.
        thresholds: (n,) the smallest accepted score; the first is -inf, the last +inf.
    """

    p_miss: np.ndarray
    p_fa: np.ndarray
    thresholds: np.ndarray


def _scores(values: ArrayLike, what: str) -> np.ndarray:
    scores = np.asarray(values, dtype=np.float64).reshape(-1)
    if scores.size == 0:
        raise ValueError(f"there are no {what} scores; error rates need trials of both kinds")
    if np.isnan(scores).any():
        raise ValueError(f"{int(np.isnan(scores).sum())} of {scores.size} {what} scores are NaN")
    return scores


def det_curve(target: ArrayLike, nontarget: ArrayLike) -> DetCurve:
    """Miss and false-alarm rates at every distinct score. Equal scores are accepted or rejected together.

    Args:
        target: scores of target trials, any shape.
        nontarget: scores of non-target trials, any shape.

    Raises:
        ValueError: no scores, or NaN among them.
    """
    positive, negative = np.sort(_scores(target, "target")), np.sort(_scores(nontarget, "non-target"))
    thresholds = np.unique(np.concatenate([positive, negative, [-np.inf, np.inf]]))
    misses = np.searchsorted(positive, thresholds, side="left")
    alarms = negative.size - np.searchsorted(negative, thresholds, side="left")
    # nothing is at or above a threshold beyond every score, also where a score is infinite itself
    misses[-1], alarms[-1] = positive.size, 0
    return DetCurve(misses / positive.size, alarms / negative.size, thresholds)


def rocch(target: ArrayLike, nontarget: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Corners ``(p_miss, p_fa)`` of the lower convex hull of the ROC: what mixtures of thresholds can reach.

    The hull is the one of Brummer and de Villiers, "The BOSARIS toolkit" (2013).
    """
    curve = det_curve(target, nontarget)
    hull: list[tuple[float, float]] = []
    for point in zip(curve.p_fa[::-1], curve.p_miss[::-1], strict=True):
        while len(hull) >= 2 and _turn(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    corners = np.array(hull)
    return corners[:, 1], corners[:, 0]


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def equal_error_rate(target: ArrayLike, nontarget: ArrayLike) -> float:
    """Equal error rate: where the convex hull of the ROC has equal miss and false-alarm rates; from 0 to 0.5.

    On the hull the rate is defined for any number of trials and never above 0.5; the definition is that of the BOSARIS toolkit.

    Raises:
        ValueError: no scores, or NaN among them.
    """
    p_miss, p_fa = rocch(target, nontarget)
    difference = p_miss - p_fa
    # p_fa rises along the hull and p_miss falls: the difference goes from 1 to -1
    after = int(np.argmax(difference <= 0))
    before = max(after - 1, 0)
    span = difference[before] - difference[after]
    weight = difference[before] / span if span > 0 else 0.0
    return float(p_miss[before] + weight * (p_miss[after] - p_miss[before]))


def _normalised_cost(p_miss: np.ndarray, p_fa: np.ndarray, p_target: float, c_miss: float, c_fa: float) -> np.ndarray:
    if not 0.0 < p_target < 1.0 or c_miss <= 0 or c_fa <= 0:
        raise ValueError(f"p_target must be in (0, 1) and costs positive, got {p_target}, {c_miss}, {c_fa}")
    miss, alarm = c_miss * p_target, c_fa * (1.0 - p_target)
    return (miss * p_miss + alarm * p_fa) / min(miss, alarm)


def min_dcf(
    target: ArrayLike, nontarget: ArrayLike, p_target: float = 0.01, c_miss: float = 1.0, c_fa: float = 1.0
) -> float:
    """Smallest normalised detection cost over all thresholds (NIST SRE evaluation plans); 1 is what a constant decision costs.

    Args:
        target, nontarget: scores.
        p_target: prior of a target trial.
        c_miss, c_fa: costs of the two errors.

    Raises:
        ValueError: no scores, NaN among them, or a prior or cost out of range.
    """
    curve = det_curve(target, nontarget)
    return float(_normalised_cost(curve.p_miss, curve.p_fa, p_target, c_miss, c_fa).min())


def act_dcf(
    target: ArrayLike, nontarget: ArrayLike, p_target: float = 0.01, c_miss: float = 1.0, c_fa: float = 1.0
) -> float:
    """Normalised detection cost when scores are taken for log-likelihood ratios, with Bayes' threshold. Raises as :func:`min_dcf`."""
    positive, negative = _scores(target, "target"), _scores(nontarget, "non-target")
    threshold = -np.log(p_target * c_miss / ((1.0 - p_target) * c_fa)) if 0.0 < p_target < 1.0 else 0.0
    p_miss, p_fa = np.array((positive < threshold).mean()), np.array((negative >= threshold).mean())
    return float(_normalised_cost(p_miss, p_fa, p_target, c_miss, c_fa))
