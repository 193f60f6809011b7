"""Features equal those that the original toolkit computed."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN
from tests.helpers import have_shared, shared_path

# Where the original's own float32 rounding is larger than the tolerance: the windows' variance as E[x^2] - E[x]^2 of values near -12,
# and the logarithm at the nulls of a spectrum, where the FFT of another processor already differs.
LOOSE = {"mvn_slide_varonly": 3e-5, "log_spec": 4e-5, "log_spec_mag": 4e-5}


@cache
def description() -> dict[str, Any]:
    return json.loads(shared_path("fixtures/hyperion/features.json").read_text())


@cache
def arrays() -> dict[str, torch.Tensor]:
    with np.load(shared_path("fixtures/hyperion/features.npz")) as stored:
        return {key: torch.from_numpy(stored[key]) for key in stored.files}


def names(kind: str) -> list[Any]:
    if not have_shared():
        return [pytest.param(None, marks=pytest.mark.skip(reason="the fixture folder is not part of a clone"))]
    return [key for key, value in description().items() if kind in value]


@pytest.mark.parametrize("tables", ["stored", "computed"])
@pytest.mark.parametrize("name", names("saved_config"))
def test_features_equal_the_original(name, tables):
    entry = description()[name]
    front_end = AudioFeatsMVN(**entry["saved_config"], frontend_rules="legacy").eval()
    assert {key: list(value.shape) for key, value in front_end.state_dict().items()} == entry["state_dict"]
    assert (front_end.mvn is not None) == entry["has_mvn"]
    if tables == "stored":
        keys = {key: f"{name}.{key.rsplit('.', 1)[-1]}" for key in front_end.state_dict()}
        known = {key: arrays()[stored] for key, stored in keys.items() if stored in arrays()}
        front_end.load_state_dict(known, strict=False)
    feats, lengths = front_end(arrays()["x"])
    reference = arrays()[name]
    assert feats.shape == reference.shape and lengths is None
    tolerance = LOOSE.get(name, 1e-5) * max(1.0, float(reference.abs().max()))
    assert float((feats - reference).abs().max()) <= tolerance


@pytest.mark.parametrize("name", names("config"))
def test_old_spellings_give_the_same_front_end(name):
    entry = description()[name]
    old = AudioFeatsMVN(**entry["config"], frontend_rules="legacy").eval()
    new = AudioFeatsMVN(**entry["saved_config"], frontend_rules="legacy").eval()
    assert torch.equal(old(arrays()["x"])[0], new(arrays()["x"])[0])


def test_frame_counts_equal_the_original():
    (counts,) = [value for key, value in description().items() if key.startswith("frame_counts")]
    for key, count in counts.items():
        snip_edges, center, num_samples = key.split(",")
        front_end = AudioFeatsMVN(
            {"audio_feat": "spec", "snip_edges": snip_edges == "True", "center": center == "True"}
        )
        assert int(front_end.out_lengths(torch.tensor([int(num_samples)]))) == count
        if int(num_samples) < 1200:
            assert front_end(torch.randn(1, int(num_samples)))[0].size(1) == count


@pytest.mark.parametrize("name", names("mvn"))
def test_normalisation_with_lengths(name):
    # The original's numbers for items with padding, and its variance of whole items once lengths are given, are not what it computes
    # for the items alone.
    if not name.startswith("mvnlen"):
        pytest.skip("not an array with lengths")
    mvn = MeanVarianceNorm(**description()[name]["mvn"], frontend_rules="legacy")
    x, lengths = arrays()["mvnlen_in"], arrays()["mvnlen_lengths"]
    out = mvn(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = mvn(x[row : row + 1, :length])[0]
        assert float((out[row, :length] - alone).abs().max()) <= 1e-6 * max(1.0, float(alone.abs().max()))
        if length == x.size(1) and name not in ("mvnlen_global_mv", "mvnlen_global_v"):
            reference = arrays()[name][row]
            assert float((out[row] - reference).abs().max()) <= 1e-5 * max(1.0, float(reference.abs().max()))
