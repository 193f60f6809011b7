"""DET plots and the quantile that their axes need."""

import numpy as np
import pytest

from hyperion_lite.metrics.plots import probit, save_det_plot


def test_probit_is_the_normal_quantile():
    scipy_stats = pytest.importorskip("scipy.stats")
    p = np.array([0.0, 1e-6, 0.02, 0.5, 0.9, 1.0])
    assert np.allclose(probit(p), scipy_stats.norm.ppf(p), rtol=1e-9)


def test_det_plot_is_written_for_any_scores(tmp_path):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    systems = {"usual": (rng.normal(2, 1, 50), rng.normal(0, 1, 200)), "perfect": ([1.0], [0.0])}
    save_det_plot(tmp_path / "det.png", systems)
    assert (tmp_path / "det.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no target scores"):
        save_det_plot(tmp_path / "none.png", {"empty": ([], [0.0])})
    assert not (tmp_path / "none.png").exists()
