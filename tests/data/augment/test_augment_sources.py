from __future__ import annotations

import pickle

import numpy as np
import pytest
import soundfile as sf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import AudioFileError, ConfigError
from hyperion_lite.data.audio_file import AudioFile
from hyperion_lite.data.augment.additive import BabbleAugment, MusicAugment, NoiseAugment
from hyperion_lite.data.augment.reverb import ReverbAugment, reverberate
from hyperion_lite.data.augment.signal import power
from hyperion_lite.data.augment.sources import AudioSource, SourceConfig
from tests.data.audio_files import waveform, write_recordings, write_table

FS = 8000


@pytest.fixture(scope="module")
def noises(tmp_path_factory) -> str:
    return write_recordings(tmp_path_factory.mktemp("noise"), [500, 4000, 80000], FS, "noise", seed=20)


def snr_of(x: np.ndarray, y: np.ndarray) -> float:
    return 10 * np.log10(power(x) / power(y.astype(np.float64) - x))


@given(n=st.integers(50, 9000), seed=st.integers(0, 99), snr=st.floats(-10, 40))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("cls", [NoiseAugment, MusicAugment, BabbleAugment])
def test_noise_of_any_length_is_added_at_the_ratio_that_was_drawn(noises, cls, n, seed, snr):
    augmenter = cls(snr=[snr - 3, snr + 3], recordings_file=noises)
    x = waveform(seed, n)
    y, info = augmenter(x, FS, np.random.default_rng(seed))
    assert y.dtype == np.float32 and y.shape == x.shape and snr - 3 <= info["snr"] <= snr + 3
    assert abs(snr_of(x, y) - info["snr"]) < 1e-3
    assert np.array_equal(augmenter(x, FS, np.random.default_rng(seed))[0], y)


def test_what_is_added_is_the_recording_it_says(noises):
    augmenter = NoiseAugment(snr=0, recordings_file=noises)
    x = waveform(0, 2000)
    for seed in range(12):
        y, info = augmenter(x, FS, np.random.default_rng(seed))
        index = int(info["source"][-1])
        recording = waveform(20 + index, [500, 4000, 80000][index])
        added = y - x
        scaled = added / np.sqrt(power(added))
        longer = np.tile(recording, 2 + 2000 // recording.size)
        match = np.correlate(longer, scaled, "valid") / np.sqrt(2000) / np.sqrt(power(recording))
        assert match.max() > (0.999 if index < 2 else 0.97)


def test_only_the_stretch_that_is_needed_is_read(noises, monkeypatch):
    counts = []
    read = AudioFile.read
    monkeypatch.setattr(
        AudioFile, "read", lambda self, start, count, *more: counts.append(count) or read(self, start, count, *more)
    )
    source = AudioSource.open(SourceConfig(None, noises, None), "noise")
    for seed in range(30):
        source.draw(np.random.default_rng(seed), 600, FS)
    assert max(counts) <= 600 and 500 in counts


def test_long_noises_are_used_everywhere_and_all_are_chosen(noises):
    source = AudioSource.open(SourceConfig(None, noises, None), "noise")
    drawn = [source.draw(np.random.default_rng(seed), 1000, FS) for seed in range(60)]
    assert {name for _, name in drawn} == {"noise0", "noise1", "noise2"}
    assert len({x.tobytes() for x, name in drawn if name == "noise2"}) > 10


def test_sources_are_converted_to_the_rate_of_the_speech(tmp_path):
    path = tmp_path / "tone.wav"
    sf.write(path, 0.5 * np.sin(2 * np.pi * 1000 * np.arange(44100) / 44100), 44100)
    table = write_table(
        tmp_path / "r.csv", [{"id": "tone", "storage_path": str(path), "sample_freq": 44100, "duration": 1.0}]
    )
    tone, _ = AudioSource.open(SourceConfig(None, table, None), "noise").draw(np.random.default_rng(0), 8000, 16000)
    assert tone.size == 8000 and np.argmax(np.abs(np.fft.rfft(tone))) == 500


def test_segments_restrict_what_is_drawn(noises, tmp_path):
    segments = write_table(
        tmp_path / "s.csv", [{"id": "middle", "recording": "noise2", "start": 5.0, "duration": 0.25}]
    )
    source = AudioSource.open(SourceConfig(None, noises, segments), "noise")
    x, name = source.draw(np.random.default_rng(0), 2000, FS)
    assert name == "middle" and x == pytest.approx(waveform(22, 80000)[40000:42000], abs=1e-7)


def test_silence_on_either_side_gives_no_nan(tmp_path):
    sf.write(tmp_path / "silent.wav", np.zeros(4000), FS)
    table = write_table(
        tmp_path / "r.csv", [{"id": "silent", "storage_path": str(tmp_path / "silent.wav"), "duration": 0.5}]
    )
    x = waveform(0, 2000)
    for cls in (NoiseAugment, BabbleAugment):
        assert np.array_equal(cls(recordings_file=table)(x, FS, np.random.default_rng(0))[0], x)
    noise = write_recordings(tmp_path, [4000], FS, "n")
    zeros = np.zeros(2000, np.float32)
    assert not NoiseAugment(recordings_file=noise)(zeros, FS, np.random.default_rng(0))[0].any()


def test_babble_sums_as_many_voices_as_it_says_at_equal_power(noises):
    augmenter = BabbleAugment(snr=10, num_speakers=[2, 5], recordings_file=noises)
    counts = {len(augmenter(waveform(0, 300), FS, np.random.default_rng(seed))[1]["sources"]) for seed in range(40)}
    assert counts == {2, 3, 4, 5}


def test_reverberation_uses_the_response_it_names(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for index in range(3):
        h = rng.standard_normal(4000) * np.exp(-np.arange(4000) / 400) * 0.2
        h[100 * index] = 0.9
        sf.write(tmp_path / f"rir{index}.wav", h, FS, subtype="FLOAT")
        rows.append({"id": f"rir{index}", "storage_path": str(tmp_path / f"rir{index}.wav"), "duration": 0.5})
    augmenter = ReverbAugment(recordings_file=write_table(tmp_path / "rirs.csv", rows), max_duration=0.25)
    x = waveform(1, 5000)
    chosen = set()
    for seed in range(12):
        y, info = augmenter(x, FS, np.random.default_rng(seed))
        h = sf.read(tmp_path / f"{info['source']}.wav", dtype="float32")[0][:2000]
        assert np.array_equal(y, reverberate(x, h)) and y.shape == x.shape
        chosen.add(info["source"])
    assert len(chosen) == 3


def test_a_silent_impulse_response_is_named(tmp_path):
    sf.write(tmp_path / "z.wav", np.zeros(100), FS)
    table = write_table(tmp_path / "rirs.csv", [{"id": "dead-room", "storage_path": str(tmp_path / "z.wav")}])
    with pytest.raises(AudioFileError, match=r"dead-room.*rirs\.csv.*silent"):
        ReverbAugment(recordings_file=table)(waveform(0, 100), FS, np.random.default_rng(0))


def test_a_source_that_cannot_be_read_is_named(tmp_path):
    table = write_table(tmp_path / "r.csv", [{"id": "gone", "storage_path": str(tmp_path / "gone.wav"), "duration": 3}])
    with pytest.raises(AudioFileError, match=r"gone.*gone\.wav"):
        NoiseAugment(recordings_file=table)(waveform(0, 100), FS, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("cls", "config", "error", "match"),
    [
        (NoiseAugment, {}, ConfigError, "dataset_path"),
        (ReverbAugment, {}, ConfigError, "dataset_path"),
        (NoiseAugment, {"segments_file": "s.csv", "dataset_path": "x"}, ConfigError, "segments_file"),
        (NoiseAugment, {"recordings_file": "r.csv", "dataset_path": "x"}, ConfigError, "dataset_path"),
        (BabbleAugment, {"recordings_file": "none.csv"}, FileNotFoundError, "none.csv"),
        (BabbleAugment, {"num_speakers": [0, 2]}, ConfigError, "num_speakers"),
        (ReverbAugment, {"max_duration": 0}, ConfigError, "max_duration"),
        (ReverbAugment, {"normalization": "loud"}, ConfigError, "normalization"),
        (NoiseAugment, {"snr": [15, 0]}, ConfigError, "snr"),
    ],
)
def test_wrong_sources_are_refused(cls, config, error, match):
    with pytest.raises(error, match=match):
        cls.from_config(config)


def test_augmenters_with_sources_can_be_pickled(noises):
    augmenter = NoiseAugment(recordings_file=noises)
    copy = pickle.loads(pickle.dumps(augmenter))
    x = waveform(3, 700)
    assert np.array_equal(copy(x, FS, np.random.default_rng(1))[0], augmenter(x, FS, np.random.default_rng(1))[0])
