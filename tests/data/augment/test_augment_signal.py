from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.augment.ranges import Range
from hyperion_lite.data.augment.reverb import reverberate
from hyperion_lite.data.augment.signal import convolve, fast_length, fit_length, mix, noise_gain, power
from hyperion_lite.data.augment.speed import change_speed


def signal(seed: int, n: int, scale: float = 0.1) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def measured_snr(x: np.ndarray, y: np.ndarray) -> float:
    added = y.astype(np.float64) - x
    return 10 * np.log10(np.mean(x.astype(np.float64) ** 2) / np.mean(added**2))


@given(st.integers(0, 99), st.integers(100, 4000), st.floats(-20, 40), st.floats(1e-4, 1), st.floats(1e-6, 1e3))
@settings(max_examples=60, deadline=None)
def test_the_measured_ratio_is_the_one_asked_for(seed, n, snr, speech_scale, noise_scale):
    x, noise = signal(seed, n, speech_scale), signal(seed + 1000, n, noise_scale)
    y = mix(x, noise, snr)
    assert y.dtype == np.float32
    assert abs(measured_snr(x, y) - snr) < 1e-3


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e20, 1e37])
def test_extreme_levels_stay_finite(scale):
    y = mix(signal(0, 500), signal(1, 500, scale), 10.0)
    assert np.isfinite(y).all() and abs(measured_snr(signal(0, 500), y) - 10) < 1e-3


def test_silence_has_no_ratio_and_leaves_the_signal_alone():
    x, zeros = signal(0, 100), np.zeros(100, np.float32)
    assert np.array_equal(mix(x, zeros, 5.0), x)
    assert np.array_equal(mix(zeros, x, 5.0), zeros)
    assert np.array_equal(mix(zeros, zeros, 5.0), zeros)
    assert noise_gain(1.0, 0.0, 0.0) == noise_gain(0.0, 1.0, 0.0) == power(np.zeros(0)) == 0.0


def test_mixing_does_not_change_its_inputs():
    x, noise = signal(0, 100), signal(1, 100)
    before = x.copy(), noise.copy()
    y = mix(x, np.zeros(100, np.float32), 5.0)
    y += 1
    mix(x, noise, 5.0)
    assert np.array_equal(x, before[0]) and np.array_equal(noise, before[1])


def test_fft_lengths_are_the_smallest_smooth_numbers():
    smooth = sorted(2**a * 3**b * 5**c for a in range(13) for b in range(8) for c in range(6))
    for n in range(1, 3000):
        assert fast_length(n) == next(s for s in smooth if s >= n)


@given(st.integers(1, 300), st.integers(1, 80), st.integers(0, 79))
@settings(max_examples=60, deadline=None)
def test_convolution_is_numpys(n, taps, delay):
    x, h = signal(n, n), signal(taps, taps)
    delay %= taps
    expected = fit_length(np.convolve(x.astype(float), h.astype(float))[delay:], n)
    assert np.abs(convolve(x, h, delay) - expected).max() < 1e-6


def test_reverberation_compensates_the_delay_and_keeps_length_and_energy():
    x = signal(0, 64000)
    rng = np.random.default_rng(1)
    h = np.zeros(4000, np.float32)
    h[700] = 1.0
    h[701:] = 0.05 * rng.standard_normal(3299) * np.exp(-np.arange(3299) / 600)
    y = reverberate(x, 7.0 * h)
    assert y.shape == x.shape and y.dtype == np.float32
    lag = np.argmax(np.correlate(y[:8000], x[1000:7000], "valid")) - 1000
    assert lag == 0
    assert abs(10 * np.log10(power(y) / power(x))) < 0.3
    assert np.allclose(reverberate(x, h), y, atol=1e-6)


def test_a_shifted_unit_impulse_is_no_room_at_all():
    x = signal(0, 1000)
    h = np.zeros(321, np.float32)
    h[100] = -0.3
    assert np.allclose(reverberate(x, h, "energy"), -x, atol=1e-7)
    assert np.allclose(reverberate(x, h, "peak"), -x, atol=1e-7)
    assert np.allclose(reverberate(x, h, "none"), -0.3 * x, atol=1e-7)


@given(st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.95, 1.0, 1.05, 1.1, 2.0]))
@settings(max_examples=60, deadline=None)
def test_speed_gives_the_exact_length(n, speed):
    y = change_speed(signal(n, n), speed)
    assert y.dtype == np.float32 and abs(y.size - n / speed) <= max(0.5, 1 - n / speed) + 1e-9


@pytest.mark.parametrize("speed", [0.9, 1.1, 1.3])
def test_speed_moves_a_tone_and_keeps_its_level(speed):
    fs, freq = 16000, 1000
    x = np.sin(2 * np.pi * freq * np.arange(fs) / fs).astype(np.float32)
    y = change_speed(x, speed)
    spectrum = np.abs(np.fft.rfft(y * np.hanning(y.size)))
    assert abs(np.argmax(spectrum) * fs / y.size - freq * speed) < 1.5
    expected = np.sin(2 * np.pi * freq * speed * np.arange(y.size) / fs)
    assert np.abs(y - expected)[500:-500].max() < 1e-3


@pytest.mark.parametrize(
    "value", ["3", [1, 2, 3], [], [2, 1], float("nan"), [0, float("inf")], True, None, [1, "x"], -1]
)
def test_bad_ranges_are_refused_by_name(value):
    with pytest.raises(ConfigError, match="snr"):
        Range.parse(value, "snr", minimum=0.0)


def test_ranges_cover_both_ends():
    rng = np.random.default_rng(0)
    counts = [Range.parse_count([2, 4], "n").count(rng) for _ in range(200)]
    assert set(counts) == {2, 3, 4}
    assert Range.parse(3, "x").uniform(rng) == 3.0
    values = [Range.parse((-1, 5), "x").uniform(rng) for _ in range(200)]
    assert -1 <= min(values) < 0 and 4 < max(values) <= 5
    with pytest.raises(ConfigError, match="whole"):
        Range.parse_count([1, 2.5], "n")  # type: ignore[list-item]
