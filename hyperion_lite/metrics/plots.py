"""Pictures of verification results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.extras import require
from hyperion_lite.metrics.verification import det_curve, equal_error_rate

_TICKS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


def probit(p: ArrayLike) -> np.ndarray:
    """Quantile of the normal distribution, elementwise; float64, infinite at 0 and 1."""
    import torch

    values = torch.as_tensor(np.asarray(p, dtype=np.float64))
    return torch.special.ndtri(values).numpy()


def save_det_plot(path: str | os.PathLike[str], systems: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> None:
    """Draw detection error trade-off curves: miss rate over false-alarm rate, on axes on which normal scores give straight lines.

    Args:
        path: PNG file.
        systems: name -> (scores of target trials, scores of non-target trials).

    Raises:
        ValueError: no scores, or NaN among them.
        MissingDependencyError: matplotlib is not installed.
    """
    figure_module = require("matplotlib.figure", extra="plots", purpose="DET plots")
    figure = figure_module.Figure(figsize=(4.8, 4.8), layout="constrained")
    axes = figure.subplots()
    low, high = float(probit(_TICKS[0])), float(probit(0.9))
    for name, (target, nontarget) in systems.items():
        curve = det_curve(target, nontarget)
        rate = equal_error_rate(target, nontarget)
        x, y = (np.clip(probit(p), low, high) for p in (curve.p_fa, curve.p_miss))
        axes.plot(x, y, label=f"{name}, EER {100 * rate:.1f} %")
    axes.plot([low, high], [low, high], color="0.7", linewidth=0.8)
    ticks = [float(v) for v in probit(_TICKS)]
    labels = [f"{100 * tick:g}" for tick in _TICKS]
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("false alarms, %")
    axes.set_ylabel("misses, %")
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_file(Path(path)) as temporary:
        figure.savefig(temporary, format="png", dpi=100)
