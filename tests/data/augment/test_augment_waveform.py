from __future__ import annotations

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import ConfigError, MissingDependencyError
from hyperion_lite.data.augment.codec import CODECS, Codec, CodecAugment, apply_codec
from hyperion_lite.data.augment.signal import power
from hyperion_lite.data.augment.simple import ChunkDropAugment, FreqDropAugment, GainAugment
from hyperion_lite.data.augment.speed import SpeedAugment


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(n: int, scale: float = 0.1, seed: int = 0) -> np.ndarray:
    return (scale * rng(seed).standard_normal(n)).astype(np.float32)


def band_limited(n: int, fs: int, low: float, high: float) -> np.ndarray:
    spectrum, freqs = np.fft.rfft(rng().standard_normal(n)), np.fft.rfftfreq(n, 1 / fs)
    spectrum[(freqs < low) | (freqs > high)] = 0
    x = np.fft.irfft(spectrum, n)
    return (0.1 * x / x.std()).astype(np.float32)


def band_power(x: np.ndarray, fs: int, low: float, high: float) -> float:
    spectrum, freqs = np.abs(np.fft.rfft(x)) ** 2, np.fft.rfftfreq(x.size, 1 / fs)
    return float(spectrum[(freqs >= low) & (freqs <= high)].sum())


AUGMENTERS = [
    GainAugment(),
    FreqDropAugment(),
    ChunkDropAugment(),
    SpeedAugment(),
    CodecAugment([name for name, codec in CODECS.items() if codec.available]),
]


@pytest.mark.parametrize("augmenter", AUGMENTERS, ids=lambda a: a.type_name)
@given(n=st.integers(1, 700), seed=st.integers(0, 50), scale=st.sampled_from([0.0, 1e-6, 0.1, 3.0]))
@settings(max_examples=25, deadline=None)
def test_any_waveform_stays_finite_and_the_draw_is_repeatable(augmenter, n, seed, scale):
    x = noise(n, scale)
    x.flags.writeable = False
    y, info = augmenter(x, 16000, rng(seed))
    again, info_again = augmenter(x, 16000, rng(seed))
    assert y.dtype == np.float32 and y.ndim == 1 and y.size >= 1 and np.isfinite(y).all()
    assert np.array_equal(y, again) and info == info_again
    if augmenter.type_name != "speed":
        assert y.size == n


@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if codec.available])
@pytest.mark.parametrize("fs", [8000, 16000, 44100])
def test_codecs_keep_the_voice_band_and_its_timing(name, fs):
    x = band_limited(fs, fs, 300, 2000)
    x[: fs // 4] = 0
    y = apply_codec(x, fs, name, 0.3)
    assert y.shape == x.shape and y.dtype == np.float32
    spectrum = np.fft.rfft(y, 2 * fs) * np.conj(np.fft.rfft(x, 2 * fs))
    assert np.argmax(np.fft.irfft(spectrum)) == 0
    assert abs(10 * np.log10(power(y) / power(x))) < 2.5
    assert np.corrcoef(x, y)[0, 1] > (0.7 if name == "gsm" else 0.95)


@pytest.mark.parametrize("name", ["narrowband", "mulaw", "alaw", "gsm", "adpcm"])
def test_telephone_codecs_leave_only_the_8_khz_band(name):
    x = noise(32000)
    y = apply_codec(x, 16000, name)
    assert band_power(y, 16000, 4100, 8000) < 1e-4 * band_power(x, 16000, 4100, 8000)


def test_companding_is_that_of_g711(tmp_path):
    x = noise(4000)
    for name, coding in (("mulaw", "ULAW"), ("alaw", "ALAW")):
        sf.write(tmp_path / "x.wav", x, 8000, subtype=coding)
        assert np.array_equal(apply_codec(x, 8000, name), sf.read(tmp_path / "x.wav", dtype="float32")[0])


def test_loud_audio_is_not_clipped_by_the_codec():
    x = 5 * np.sin(np.arange(8000) * 0.3).astype(np.float32)
    y = apply_codec(x, 8000, "mulaw")
    assert np.abs(y - x).max() < 0.2


def test_stronger_compression_is_heard():
    x = noise(16000)
    errors = [np.mean((apply_codec(x, 16000, "opus", c) - x) ** 2) for c in (0.1, 0.9)]
    assert errors[0] < errors[1]


def test_a_codec_that_the_installation_lacks_is_named(monkeypatch):
    monkeypatch.setitem(CODECS, "mp3", Codec("MP9", "NONE", (8000,)))
    with pytest.raises(MissingDependencyError, match=r"'mp3'.*pip install"):
        CodecAugment(["mp3"])


@pytest.mark.parametrize(
    ("cls", "config", "match"),
    [
        (CodecAugment, {"codecs": ["mulow"]}, "did you mean 'mulaw'"),
        (CodecAugment, {"codecs": []}, "codecs"),
        (CodecAugment, {"compression": 1.0}, "compression"),
        (GainAugment, {"gain_db": [6, -6]}, "gain_db"),
        (FreqDropAugment, {"num_taps": 100}, "num_taps"),
        (FreqDropAugment, {"freq": [0, 2]}, "freq"),
        (FreqDropAugment, {"num_bands": 0}, "num_bands"),
        (ChunkDropAugment, {"max_proportion": 1.5}, "max_proportion"),
        (ChunkDropAugment, {"duration": -1}, "duration"),
        (SpeedAugment, {"speeds": []}, "speeds"),
        (SpeedAugment, {"speeds": [0.9, 0.9]}, "speeds"),
        (SpeedAugment, {"speeds": [0.0]}, "speeds"),
        (GainAugment, {"gain": 3}, "did you mean 'gain_db'"),
    ],
)
def test_wrong_settings_are_config_errors(cls, config, match):
    with pytest.raises(ConfigError, match=match):
        cls.from_config(config)


@pytest.mark.parametrize("augmenter", AUGMENTERS, ids=lambda a: a.type_name)
def test_the_configuration_rebuilds_the_augmenter(augmenter):
    twin = type(augmenter).from_config(augmenter.get_config())
    assert twin.get_config() == augmenter.get_config()
    x = noise(500)
    assert np.array_equal(twin(x, 16000, rng(3))[0], augmenter(x, 16000, rng(3))[0])


def test_gain_is_what_it_says():
    x = noise(100)
    y, info = GainAugment([-6, -6])(x, 16000, rng())
    assert info == {"gain_db": -6.0} and abs(10 * np.log10(power(y) / power(x)) + 6) < 1e-5


def test_dropped_bands_are_gone_and_the_rest_is_untouched():
    fs, x = 16000, noise(64000)
    y, info = FreqDropAugment(num_bands=1, freq=0.5, width=0.1)(x, fs, rng())
    assert info["bands"] == [[3600.0, 4400.0]]
    inner = (3600 + 120, 4400 - 120)
    assert band_power(y, fs, *inner) < 1e-4 * band_power(x, fs, *inner)
    kept = np.fft.rfft(y - x)[: (3300 * 4)]
    assert np.abs(kept).max() < 0.05 * np.abs(np.fft.rfft(x)).max()


def test_dropped_chunks_are_zero_and_within_the_limit():
    x = np.ones(16000, np.float32)
    for seed in range(20):
        y, info = ChunkDropAugment([1, 9], [0.05, 0.3], max_proportion=0.4)(x, 16000, rng(seed))
        zero = np.zeros(16000, bool)
        for start, stop in info["chunks"]:
            zero[start:stop] = True
        assert np.array_equal(y == 0, zero) and zero.mean() <= 0.4


def test_speeds_make_new_classes_in_the_order_they_are_written():
    augmenter = SpeedAugment([1.1, 1.0, 0.9], new_classes=["speaker"])
    assert augmenter.class_multiplier == 3 and augmenter.new_classes == ["speaker"]
    shifts = {}
    for seed in range(30):
        _, info = augmenter(noise(100), 16000, rng(seed))
        shifts[info["speed"]] = info["class_shift"]
    assert shifts == {1.0: 0, 1.1: 1, 0.9: 2}
    assert SpeedAugment([1.1, 1.0]).class_multiplier == 1
