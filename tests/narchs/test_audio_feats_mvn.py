"""The whole front end: order of its parts, batch invariance, configuration, errors."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import ConfigError, TooShortError
from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN
from hyperion_lite.narchs.net_arch import NetArch

FEATS = {"audio_feat": "logfb", "num_filters": 20, "snip_edges": False, "use_energy": False}
SLIDING = {"norm_mean": True, "left_context": 15, "right_context": 15}


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(141, 12000), min_size=1, max_size=4),
    mvn=st.sampled_from([None, SLIDING, {"norm_mean": True}, {**SLIDING, "norm_var": True}]),
    rules=st.sampled_from(["legacy", "modern"]),
    fill=st.sampled_from([0.0, 1e3, math.nan, math.inf]),
    double=st.booleans(),
    as_mask=st.booleans(),
)
def test_an_item_is_the_same_alone_and_in_a_batch(lengths, mvn, rules, fill, double, as_mask):
    front_end = AudioFeatsMVN(FEATS, mvn, trans=True, frontend_rules=rules).eval()
    dtype = torch.float64 if double else torch.float32
    items = [torch.randn(n, dtype=dtype) * 0.1 for n in lengths]
    x = torch.full((len(items), max(lengths) + 90), fill, dtype=dtype)
    for row, item in zip(x, items, strict=True):
        row[: len(item)] = item
    x_lengths = torch.tensor(lengths)
    out, out_lengths = front_end(x, torch.arange(x.size(1)) < x_lengths[:, None] if as_mask else x_lengths)
    assert out_lengths is not None and torch.equal(out_lengths, front_end.out_lengths(x_lengths))
    for item, feats, frames in zip(items, out, out_lengths.tolist(), strict=True):
        alone, no_lengths = front_end(item[None])
        assert no_lengths is None and alone.shape[1:] == (20, frames)
        scale = float(alone.abs().max().clamp(min=1))
        assert float((feats[:, :frames] - alone[0]).abs().max()) <= (1e-10 if double else 1e-5) * scale
        assert not feats[:, frames:].any()


@pytest.fixture(params=["item by item", "as a batch"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs both ways of computing a batch, the one of the CPU and the one of other devices."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "as a batch":
            patch.setattr("hyperion_lite.layers.item_by_item.DEVICE_TYPES", frozenset())
        yield request.param


def test_on_the_cpu_a_batch_is_bit_equal_to_its_items(way):
    same = torch.equal if way == "item by item" else functools.partial(torch.allclose, atol=1e-4)
    front_end = AudioFeatsMVN(FEATS, {**SLIDING, "norm_var": True}).eval()
    x = torch.randn(3, 9000)
    lengths = torch.tensor([9000, 7001, 300])
    out, frames = front_end(x, lengths)
    assert frames is not None
    for b in range(3):
        alone, _ = front_end(x[b : b + 1, : lengths[b]])
        assert same(alone[0], out[b, : frames[b]])
        padded, _ = front_end(x[b : b + 1], lengths[b : b + 1])
        assert same(padded, out[b : b + 1])


def test_normalisation_exists_only_if_the_configuration_asks_for_it():
    assert AudioFeatsMVN(FEATS, {"left_context": 150, "right_context": 150}).mvn is None
    assert AudioFeatsMVN(FEATS, {"context": 150}).mvn is None
    assert AudioFeatsMVN(FEATS, {"norm_mean": False, "norm_var": False}).mvn is None
    assert AudioFeatsMVN(FEATS, {"norm_var": True}).mvn is not None
    old = AudioFeatsMVN(FEATS, {"no_norm_mean": False, "context": 3}, frontend_rules="legacy")
    assert isinstance(old.mvn, MeanVarianceNorm) and old.mvn.window_length == 7 and old.mvn.frontend_rules == "legacy"


def test_configuration_rebuilds_the_object_and_is_not_modified():
    config = {
        "audio_feats": dict(FEATS),
        "mvn": {"context": 3, "norm_mean": True},
        "spec_augment": {"time_mask_prob": 0.5},
        "trans": True,
        "frontend_rules": "legacy",
    }
    before = copy.deepcopy(config)
    front_end = AudioFeatsMVN(**config)
    assert config == before
    saved = front_end.get_config()
    assert saved["class_name"] == "AudioFeatsMVN" and saved["audio_feats"] == FEATS
    assert saved["mvn"] == {"norm_mean": True, "left_context": 3, "right_context": 3}
    again = NetArch.create(saved).eval()
    assert again.get_config() == saved
    x = torch.randn(1, 4000)
    assert torch.equal(again(x)[0], front_end.eval()(x)[0])


def test_order_of_augmentation_and_normalisation():
    x = torch.randn(2, 8000)
    for after in (False, True):
        torch.manual_seed(0)
        front_end = AudioFeatsMVN(
            {**FEATS, "dither": 0.0},
            {"norm_mean": True},
            {"time_mask_prob": 1, "time_mask_min_width": 9, "mask_value": 50.0},
            aug_after_mvn=after,
        ).train()
        out, _ = front_end(x, torch.tensor([8000, 5000]))
        assert bool((out == 50).any()) == after
        assert not out[1, 31:].any()


def test_training_draws_and_evaluation_repeats():
    front_end = AudioFeatsMVN(FEATS, SLIDING, {"freq_mask_prob": 1, "freq_mask_min_width": 3})
    x = torch.randn(1, 8000)
    front_end.train()
    assert not torch.equal(front_end(x)[0], front_end(x)[0])
    front_end.eval()
    assert torch.equal(front_end(x)[0], front_end(x)[0])


def test_gradients_reach_the_waveform_in_every_mode():
    for training in (False, True):
        front_end = AudioFeatsMVN(FEATS, {**SLIDING, "norm_var": True}, trans=True).train(training)
        for x in (torch.randn(2, 8000), torch.zeros(2, 8000), torch.zeros(2, 200)):
            x.requires_grad_()
            front_end(x, torch.tensor([x.size(1), 150]))[0].square().sum().backward()
            assert x.grad is not None and x.grad.isfinite().all()


def test_shapes_and_receptive_field():
    front_end = AudioFeatsMVN(FEATS, SLIDING, trans=True)
    assert front_end.in_shape() == (None, None) and front_end.in_dim() == 2
    assert front_end.out_shape() == (None, 20, None) and front_end.out_shape((3, 16000)) == (3, 20, 100)
    assert AudioFeatsMVN(FEATS).out_shape((3, 16000)) == (3, 100, 20)
    assert (front_end.sample_frequency, front_end.frame_length_samples, front_end.frame_shift_samples) == (
        16000,
        400,
        160,
    )
    assert front_end.min_length == 141
    left, right = AudioFeatsMVN({**FEATS, "remove_dc_offset": False}, trans=True).in_context()
    plain = AudioFeatsMVN({**FEATS, "remove_dc_offset": False}, trans=True).eval()
    x = torch.randn(1, 8000, requires_grad=True)
    plain(x)[0][0, :, 20].sum().backward()
    assert x.grad is not None
    touched = torch.nonzero(x.grad[0]).flatten()
    assert 20 * 160 - left <= int(touched.min()) and int(touched.max()) <= 20 * 160 + right
    assert front_end.in_context() == (left + 15 * 160, right + 15 * 160)


def test_tables_have_the_names_of_model_files():
    assert set(AudioFeatsMVN(FEATS).state_dict()) == {"audio_feats._fb", "audio_feats.wav2win._window"}
    mfcc = AudioFeatsMVN({"audio_feat": "mfcc"})
    assert set(mfcc.state_dict()) == {f"audio_feats.{name}" for name in ("_fb", "_dct", "_lifter", "wav2win._window")}


def test_half_precision_models_get_half_precision_features_of_full_accuracy():
    x = torch.randn(1, 8000) * 0.1
    front_end = AudioFeatsMVN(FEATS, SLIDING).eval()
    expected = front_end(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(front_end(x)[0], expected)
    out, _ = front_end.to(torch.bfloat16)(x.to(torch.bfloat16))
    assert out.dtype == torch.bfloat16 and torch.equal(front_end(x)[0], expected)


def test_errors_name_the_key_and_the_item():
    with pytest.raises(ConfigError, match="did you mean 'num_filters'"):
        AudioFeatsMVN({**FEATS, "num_filter": 3})
    with pytest.raises(ConfigError, match=r"audio_feats\.num_filters: expected int"):
        AudioFeatsMVN({**FEATS, "num_filters": "many"})
    with pytest.raises(ConfigError, match="missing key 'audio_feat'"):
        AudioFeatsMVN({})
    with pytest.raises(ConfigError, match="mvn: unknown key"):
        AudioFeatsMVN(FEATS, {"norm": True})
    with pytest.raises(ConfigError, match="spec_augment: unknown key"):
        AudioFeatsMVN(FEATS, None, {"mask": 1})
    with pytest.raises(ValueError, match="frontend_rules"):
        AudioFeatsMVN(FEATS, frontend_rules="auto")  # type: ignore[arg-type]
    front_end = AudioFeatsMVN(FEATS)
    with pytest.raises(TooShortError, match=r"item 1 .* 140 samples, the minimum is 141"):
        front_end(torch.randn(2, 500), torch.tensor([500, 140]))
