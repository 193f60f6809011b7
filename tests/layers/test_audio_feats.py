"""Feature extraction: batch invariance, frame counts, definitions, gradients, errors."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import LengthsError, TooShortError
from hyperion_lite.layers.audio_feats import AudioFeats
from hyperion_lite.layers.audio_feats_factory import AudioFeatsFactory
from hyperion_lite.layers.audio_feats_framing import FrameGeometry

TYPES = ["fft", "spec", "log_spec", "logfb", "mfcc", "kanbayashi_logfb"]
FILLS = [0.0, 1e3, math.inf, math.nan]


@pytest.fixture(params=["item by item", "as a batch"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs both ways of computing a batch, the one of the CPU and the one of other devices."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "as a batch":
            patch.setattr("hyperion_lite.layers.item_by_item.DEVICE_TYPES", frozenset())
        yield


def make(audio_feat: str = "logfb", **kwargs: object) -> AudioFeats:
    return AudioFeatsFactory.create(audio_feat, **kwargs).eval()  # type: ignore[arg-type]


def pad_batch(items: list[torch.Tensor], fill: float) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([item.numel() for item in items])
    batch = torch.full((len(items), int(lengths.max()) + 37), fill, dtype=items[0].dtype)
    for row, item in zip(batch, items, strict=True):
        row[: item.numel()] = item
    return batch, lengths


@settings(max_examples=60, deadline=None)
@given(
    audio_feat=st.sampled_from(TYPES),
    rules=st.sampled_from(["legacy", "modern"]),
    frame_length=st.sampled_from([2, 10.3, 25]),
    frame_shift=st.sampled_from([1.7, 5, 10, 30]),
    ends=st.sampled_from([(True, False), (False, False), (False, True), (True, True)]),
    use_energy=st.booleans(),
    raw_energy=st.booleans(),
    double=st.booleans(),
    fill=st.sampled_from(FILLS),
    extra=st.lists(st.integers(0, 700), min_size=1, max_size=4),
    seed=st.integers(0, 100),
)
def test_features_of_a_padded_item_are_those_of_the_item_alone(
    audio_feat, rules, frame_length, frame_shift, ends, use_energy, raw_energy, double, fill, extra, seed
):
    options = {"frame_length": frame_length, "frame_shift": frame_shift, "snip_edges": ends[0], "center": ends[1]}
    feats = make(
        audio_feat,
        sample_frequency=8000,
        num_filters=15,
        num_ceps=9,
        use_energy=use_energy,
        raw_energy=raw_energy,
        frontend_rules=rules,
        **options,
    )
    dtype = torch.float64 if double else torch.float32
    generator = torch.Generator().manual_seed(seed)
    items = [torch.randn(feats.min_length + n, generator=generator, dtype=dtype) * 0.1 + 0.02 for n in extra]
    batch, lengths = pad_batch(items, fill)
    out, out_lengths = feats(batch, lengths)
    assert out.isfinite().all()
    for item, frames, length in zip(items, out, out_lengths.tolist(), strict=True):
        alone = feats(item[None])[0]
        assert alone.shape == (length, feats.num_feats)
        scale = float(alone.abs().max().clamp(min=1))
        assert float((frames[:length] - alone).abs().max()) <= (1e-12 if double else 1e-6) * scale
        assert not frames[length:].any()


@settings(max_examples=40, deadline=None)
@given(frame_length=st.integers(1, 60), frame_shift=st.integers(1, 60), snip_edges=st.booleans(), center=st.booleans())
def test_every_length_from_the_minimum_on_has_frames_that_exist(frame_length, frame_shift, snip_edges, center):
    geometry = FrameGeometry(frame_length, frame_shift, snip_edges, center)
    for length in range(geometry.min_length, geometry.min_length + 2 * (frame_length + frame_shift)):
        frames = geometry.num_frames(length)
        assert frames >= 1
        assert geometry.left_pad < length and geometry.right_pad(length) < length
        assert (frames - 1) * frame_shift - geometry.left_pad + frame_length <= length + geometry.right_pad(length)
        if not snip_edges and not center:
            assert frames == (length + frame_shift // 2) // frame_shift
    assert geometry.num_frames(torch.tensor([0, length])).tolist() == [geometry.num_frames(0), frames]


def test_the_minimum_is_the_smallest_length_that_is_accepted():
    for kwargs, minimum in (({}, 400), ({"snip_edges": False}, 141), ({"center": True}, 201)):
        feats = make(**kwargs)
        assert feats.min_length == minimum
        assert feats(torch.randn(1, minimum)).size(1) >= 1
        with pytest.raises(TooShortError, match=f"item 0 .* {minimum - 1} samples, the minimum is {minimum}"):
            feats(torch.randn(1, minimum - 1))
        with pytest.raises(TooShortError) as error:
            feats(torch.randn(3, 500), torch.tensor([500, minimum, minimum - 1]))
        assert (error.value.index, error.value.length, error.value.minimum) == (2, minimum - 1, minimum)


def naive_logfb(x: torch.Tensor, feats: AudioFeats) -> torch.Tensor:
    """One frame at a time, from the definition."""
    geometry, options = feats.geometry, feats.options
    x = x - x.mean()
    y = [float(x[0] * (1 - options.preemphasis_coeff))]
    y += [float(x[n] - options.preemphasis_coeff * x[n - 1]) for n in range(1, len(x))]
    rows = []
    for t in range(geometry.num_frames(len(x))):
        positions = [t * geometry.frame_shift - geometry.left_pad + n for n in range(geometry.frame_length)]
        positions = [abs(p) for p in positions]
        positions = [p if p < len(x) else 2 * (len(x) - 1) - p for p in positions]
        frame = torch.tensor([y[p] for p in positions], dtype=torch.float64) * feats.wav2win._window
        power = torch.fft.rfft(frame, n=options.num_fft_points).abs() ** 2
        rows.append((power @ feats._fb.double()).clamp(min=2**-14).log())
    return torch.stack(rows)


@pytest.mark.parametrize(
    "kwargs", [{"snip_edges": False}, {"center": True}, {}, {"frame_shift": 40, "snip_edges": False}]
)
def test_features_follow_the_definition(kwargs):
    feats = make(use_energy=False, sample_frequency=8000, frame_length=20, num_filters=12, **kwargs).double()
    x = torch.randn(1, 901, dtype=torch.float64)
    torch.testing.assert_close(feats(x)[0], naive_logfb(x[0], feats), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_filters", [23, 80])
def test_equals_torchaudio_where_the_definitions_coincide(num_filters):
    kaldi = pytest.importorskip("torchaudio.compliance.kaldi")
    x = torch.randn(1, 16000) * 5
    feats = make(
        window_type="rectangular",
        remove_dc_offset=False,
        preemphasis_coeff=0.0,
        num_filters=num_filters,
        high_freq=7600,
        use_energy=False,
    )
    reference = kaldi.fbank(
        x,
        window_type="rectangular",
        remove_dc_offset=False,
        preemphasis_coefficient=0.0,
        num_mel_bins=num_filters,
        high_freq=7600.0,
        dither=0.0,
    )
    assert float((feats(x)[0] - reference).abs().max()) <= 5e-5


@pytest.mark.parametrize("audio_feat", TYPES)
@pytest.mark.parametrize("rules", ["legacy", "modern"])
@pytest.mark.parametrize("use_fft_mag", [False, True])
def test_gradients_reach_the_waveform_and_are_finite_for_silence(audio_feat, rules, use_fft_mag):
    feats = make(audio_feat, frontend_rules=rules, use_fft_mag=use_fft_mag, snip_edges=False)
    for x, lengths in (
        (torch.randn(1, 800), None),
        (torch.zeros(2, 800), torch.tensor([800, 300])),
        (torch.full((1, 800), 0.3), None),
        (torch.randn(1, feats.min_length), None),
    ):
        x.requires_grad_()
        out = feats(x) if lengths is None else feats(x, lengths)[0]
        out.abs().sum().backward()
        assert x.grad is not None and x.grad.isfinite().all()
        if lengths is not None:
            assert not x.grad[1, 300:].any()
    noise = torch.randn(1, 800, requires_grad=True)
    feats(noise).abs().sum().backward()
    assert noise.grad is not None and noise.grad.abs().sum() > 0


def test_no_gradient_leaks_from_nan_padding():
    feats = make(snip_edges=False)
    x = torch.randn(2, 900)
    x[1, 400:] = math.nan
    x.requires_grad_()
    feats(x, torch.tensor([900, 400]))[0].sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and not x.grad[1, 400:].any()


def test_gradient_is_right():
    feats = make(use_energy=True, sample_frequency=8000, frame_length=5, num_filters=5, fft_length=64).double()
    x = torch.randn(2, 90, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda v: feats(v, torch.tensor([90, 71]))[0], x)


@pytest.mark.parametrize("audio_feat", ["spec", "log_spec", "mfcc", "fft"])
def test_energy_replaces_the_first_feature(audio_feat):
    x = torch.randn(2, 2000)
    raw = make(audio_feat, use_energy=True)(x)
    without = make(audio_feat, use_energy=False)(x)
    expected = make("logfb", use_energy=True)(x)[..., 0]
    torch.testing.assert_close(raw[..., 0].real if raw.is_complex() else raw[..., 0], expected)
    assert torch.equal(raw[..., 1:], without[..., 1:])


def test_energy_is_an_extra_first_feature_of_the_filter_bank():
    x = torch.randn(1, 1000) * 0.1
    both = make(use_energy=True, remove_dc_offset=False)
    frames = x.unfold(1, 400, 160)
    assert both.num_feats == 24 and both(x).size(2) == 24
    torch.testing.assert_close(both(x)[..., 0], torch.log(frames.square().sum(-1) + 2**-14))
    windowed = make(use_energy=True, raw_energy=False, remove_dc_offset=False, preemphasis_coeff=0.0)
    expected = torch.log((frames * windowed.wav2win._window).square().sum(-1) + 2**-14)
    torch.testing.assert_close(windowed(x)[..., 0], expected)


def test_energy_floor_counts_under_the_modern_rules_only():
    silence = torch.zeros(1, 400)
    assert make(energy_floor=2.0)(silence)[0, 0, 0] == pytest.approx(math.log(2.0))
    assert make(energy_floor=2.0, frontend_rules="legacy")(silence)[0, 0, 0] == pytest.approx(math.log(1e-15))


def test_silence_shows_the_floor_of_each_release():
    silence = torch.zeros(1, 400)
    for audio_feat, legacy in (("logfb", 1e-10), ("log_spec", 1e-15)):
        old = make(audio_feat, use_energy=False, frontend_rules="legacy")(silence)
        new = make(audio_feat, use_energy=False)(silence)
        assert float(old[0, 0, 0]) == pytest.approx(math.log(legacy))
        assert float(new[0, 0, 0]) == pytest.approx(-14 * math.log(2))


def test_dither_is_added_in_training_only():
    feats = make(dither=0.01)
    x = torch.randn(1, 4000)
    assert torch.equal(feats(x), feats(x))
    feats.train()
    torch.manual_seed(1)
    first = feats(x)
    assert not torch.equal(first, feats(x))
    torch.manual_seed(1)
    assert torch.equal(first, feats(x))


def test_a_block_of_frames_is_as_good_as_all_of_them(monkeypatch):
    x = torch.randn(2, 9000)
    feats = make(use_energy=True)
    whole = feats(x)
    monkeypatch.setattr("hyperion_lite.layers.audio_feats._CPU_BLOCK", 512 * 2 * 7)
    torch.testing.assert_close(feats(x), whole)


def test_half_precision_and_autocast_do_not_degrade_features():
    x = torch.randn(1, 4000) * 0.1
    feats = make(num_filters=40)
    expected = feats(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(feats(x), expected)
    cast = make(num_filters=40).to(torch.bfloat16)
    assert cast._fb.dtype == cast.wav2win._window.dtype == torch.float32
    assert torch.equal(cast(x), expected)
    assert cast(x.to(torch.bfloat16)).dtype == torch.float32
    assert cast.double()(x).dtype == torch.float64


def test_tables_are_buffers_and_stored_ones_are_used():
    feats = make("mfcc", use_energy=False)
    assert set(feats.state_dict()) == {"wav2win._window", "_fb", "_dct", "_lifter"}
    assert not list(feats.parameters())
    other = {name: table * 2 for name, table in feats.state_dict().items()}
    x = torch.randn(1, 1000)
    before = feats(x)
    feats.load_state_dict(other)
    assert not torch.allclose(feats(x), before)
    assert "_lifter" not in make("mfcc", cepstral_lifter=0).state_dict()


def test_a_short_fft_is_raised_to_the_next_power_of_two():
    assert make("spec", fft_length=256).num_feats == 257
    assert make("spec", fft_length=400).num_feats == 201
    assert make("spec", fft_length=256, frame_length=32).num_feats == 257
    assert make(frame_length=12.5, frame_shift=6.25).geometry == FrameGeometry(200, 100)


def test_one_channel_is_accepted_and_masks_are_lengths():
    feats = make(use_energy=False)
    x = torch.randn(2, 1000)
    lengths = torch.tensor([1000, 700])
    mask = torch.arange(1000)[None] < lengths[:, None]
    by_lengths = feats(x, lengths)
    for out, out_lengths in (feats(x[:, None], lengths), feats(x, mask)):
        assert torch.equal(out, by_lengths[0]) and torch.equal(out_lengths, by_lengths[1])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 2, 1000), "channels"),
        (torch.zeros(1000), "batch axis"),
        (torch.zeros(1, 1000, dtype=torch.int16), "32768"),
        (torch.zeros(0, 1000), "empty"),
        ([0.0, 1.0], "list"),
    ],
)
def test_other_inputs_are_refused(x, message):
    with pytest.raises(ValueError, match=message):
        make()(x)


@pytest.mark.parametrize(
    "lengths", [torch.tensor([1001]), torch.tensor([0]), torch.tensor([0.5]), torch.tensor([9, 9])]
)
def test_wrong_lengths_are_refused(lengths):
    with pytest.raises(LengthsError, match="x_lengths"):
        make()(torch.randn(1, 1000), lengths)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"audio_feat": "logbf"}, "did you mean 'logfb'"),
        ({"window_type": "hann"}, "window_type"),
        ({"fb_type": "bark"}, "fb_type"),
        ({"num_filters": 300}, "num_filters = 300"),
        ({"num_filters": 0}, "num_filters = 0"),
        ({"audio_feat": "mfcc", "num_ceps": 24}, "num_ceps = 24"),
        ({"high_freq": 9000}, "high_freq = 9000"),
        ({"high_freq": -8000}, "0.0 Hz"),
        ({"low_freq": 5000, "high_freq": 4000}, "low_freq = 5000"),
        ({"frame_shift": 0}, "frame_shift"),
        ({"frame_length": 0.01}, "milliseconds"),
        ({"sample_frequency": 0}, "sample_frequency"),
        ({"dither": -1}, "dither"),
        ({"preemphasis_coeff": 1.5}, "preemphasis_coeff"),
        ({"frontend_rules": "auto"}, "frontend_rules"),
    ],
)
def test_impossible_settings_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        AudioFeatsFactory.create(**{"audio_feat": "logfb", **kwargs})


def test_kanbayashi_fixes_its_settings():
    options = make("kanbayashi_logfb", dither=1.0, use_energy=True, preemphasis_coeff=0.5).options
    assert (options.dither, options.use_energy, options.preemphasis_coeff, options.center) == (1e-5, False, 0.0, False)
    assert make("kanbayashi_logfb", frontend_rules="legacy").options.center


def test_filter_args_and_options_come_from_the_signature():
    from hyperion_lite.core.parser import ArgumentParser

    kept = AudioFeatsFactory.filter_args(audio_feat="logfb", num_filters=40, nonsense=1, frontend_rules="legacy")
    assert kept == {"audio_feat": "logfb", "num_filters": 40}
    parser = ArgumentParser()
    AudioFeatsFactory.add_class_args(parser, prefix="feats")
    args = parser.parse_args(["--feats.audio_feat=mfcc", "--feats.frame_shift=12.5"])
    assert AudioFeatsFactory.create(**vars(args.feats)).geometry.frame_shift == 200
