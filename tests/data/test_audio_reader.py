"""Ranges, formats, channels and rates of the audio reader."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.core.errors import AudioFileError, ConfigError
from hyperion_lite.data.audio_errors import AudioContentError, AudioRangeError
from hyperion_lite.data.audio_reader import AudioInfo, AudioReader
from hyperion_lite.data.resample import resample, resample_part, resampled_length, source_range
from tests.data.odd_audio import RATE, signal, write_wav

FORMATS = [
    ("wav", "PCM_U8", None),
    ("wav", "PCM_16", None),
    ("wav", "PCM_24", None),
    ("wav", "PCM_32", None),
    ("wav", "FLOAT", None),
    ("wav", "DOUBLE", None),
    ("wav", "ALAW", None),
    ("wav", "ULAW", None),
    ("wav", "GSM610", None),
    ("flac", "PCM_16", None),
    ("flac", "PCM_24", None),
    ("ogg", "VORBIS", None),
    ("opus", "OPUS", "OGG"),
    ("mp3", "MPEG_LAYER_III", None),
    ("aiff", "PCM_16", None),
    ("au", "ULAW", None),
    ("sph", "PCM_16", "NIST"),
    ("rf64", "PCM_16", "RF64"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audio")


@pytest.fixture(scope="module")
def wav(folder: Path) -> Path:
    path = folder / "three.wav"
    write_wav(path, 3.0)
    return path


@pytest.mark.parametrize(("suffix", "subtype", "format_"), FORMATS)
def test_a_range_is_the_same_part_of_the_whole_file(
    folder: Path, suffix: str, subtype: str, format_: str | None
) -> None:
    path = folder / f"{subtype}.{suffix}"
    soundfile.write(path, signal(2.5), RATE, subtype=subtype, format=format_)
    reader = AudioReader()
    info, whole = reader.info(path), reader.read(path)
    assert (info.sample_freq, info.channels, whole.sample_freq) == (RATE, 1, RATE)
    assert len(whole.audio) == info.num_samples == round(info.duration * RATE)
    assert whole.audio.dtype == np.float32 and whole.audio.ndim == 1
    assert abs(info.duration - 2.5) < 0.021
    for start, duration in ((0.0, 0.5), (0.3, 1.0), (1.00003, 0.25), (2.0, 0.5), (0.1, 2.3)):
        part = reader.read(path, start, duration).audio
        first = round(start * RATE)
        assert len(part) == round(duration * RATE)
        # the decoder of Opus carries state from one packet to the next
        tolerance = 1e-3 if subtype == "OPUS" else 1e-6
        np.testing.assert_allclose(part, whole.audio[first : first + len(part)], atol=tolerance)


@pytest.mark.parametrize("seconds", [0.4, 1.0, 2.5, 7.3])
@pytest.mark.parametrize("rate", [8000, 16000, 48000])
def test_the_end_of_a_vorbis_file_is_exact(folder: Path, seconds: float, rate: int) -> None:
    # seeking into the last page lands beside the sample asked for
    path = folder / f"v{seconds}-{rate}.ogg"
    soundfile.write(path, signal(seconds, rate), rate, subtype="VORBIS")
    whole = AudioReader().read(path).audio
    for start in np.linspace(0, 0.98, 15) * seconds:
        first = round(start * rate)
        np.testing.assert_allclose(AudioReader().read(path, start).audio, whole[first:], atol=1e-6)


def test_a_short_range_of_a_long_file_decodes_only_that(folder: Path) -> None:
    path = folder / "long.flac"
    soundfile.write(path, np.zeros(RATE * 600, np.float32), RATE)
    decoded = []
    original = soundfile.SoundFile.read

    def counting(self, frames=-1, *args, **kwargs):  # type: ignore[no-untyped-def]
        out = original(self, frames, *args, **kwargs)
        decoded.append(len(out))
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soundfile.SoundFile, "read", counting)
        AudioReader().read(path, 500.0, 2.0)
        AudioReader(target_sample_freq=8000).read(path, 500.0, 2.0)
    assert decoded[0] == 2 * RATE
    assert 2 * RATE < decoded[1] < 2.2 * RATE


@given(st.integers(0, 3 * RATE - 1), st.integers(1, 3 * RATE))
def test_every_range_inside_has_exactly_its_samples(wav: Path, first: int, count: int) -> None:
    count = min(count, 3 * RATE - first)
    whole = AudioReader().read(wav).audio
    part = AudioReader().read(wav, first / RATE, count / RATE).audio
    np.testing.assert_array_equal(part, whole[first : first + count])


@given(st.floats(0.0, 2.9), st.floats(0.01, 3.0))
def test_a_range_that_fits_in_seconds_fits_in_samples(wav: Path, start: float, duration: float) -> None:
    duration = min(duration, 3.0 - start)
    part = AudioReader(end_tolerance=0.0).read(wav, start, duration).audio
    assert len(part) == round(duration * RATE)


@given(
    st.sampled_from([5000, 8000, 11025, 11127, 16000, 22254, 44100, 48000, 96000]),
    st.sampled_from([8000, 16000, 22050]),
    st.integers(1, 30_000),
    st.data(),
)
def test_a_part_of_a_converted_recording_is_that_part_of_the_whole(
    source: int, target: int, length: int, data: st.DataObject
) -> None:
    audio = signal(length / source, source, seed=length)[:length]
    whole = resample(audio, source, target)
    total = resampled_length(len(audio), source, target)
    assert len(whole) == total == int(np.floor(len(audio) * target / source + 0.5))
    if total == 0:
        return
    first = data.draw(st.integers(0, total - 1))
    count = data.draw(st.integers(1, total - first))
    where = source_range(first, count, len(audio), source, target)
    part = resample_part(audio[where.start : where.stop], where, count, source, target)
    np.testing.assert_allclose(part, whole[first : first + count], atol=1e-5)


@pytest.mark.parametrize(("rate", "target"), [(44100, 16000), (8000, 16000), (11127, 16000), (128000, 16000)])
def test_ranges_of_a_file_of_another_rate(folder: Path, rate: int, target: int) -> None:
    path = folder / f"r{rate}.wav"
    write_wav(path, 2.0, rate)
    reader = AudioReader(target_sample_freq=target)
    whole = reader.read(path)
    assert whole.sample_freq == target and len(whole.audio) == 2 * target
    for start, duration in ((0.0, 0.5), (0.7, 0.6), (1.5, 0.5)):
        part = reader.read(path, start, duration)
        first = round(start * target)
        assert part.sample_freq == target and len(part.audio) == round(duration * target)
        np.testing.assert_allclose(part.audio, whole.audio[first : first + len(part.audio)], atol=1e-5)


def test_a_tone_keeps_its_frequency_and_level_when_converted(folder: Path) -> None:
    path = folder / "tone.wav"
    t = np.arange(44100) / 44100
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * 440 * t), 44100, subtype="FLOAT")
    audio = AudioReader(target_sample_freq=16000).read(path).audio
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(audio[500:-500], expected[500:-500], atol=1e-3)


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize("channels", [1, 3])
def test_plain_wav_gives_the_samples_of_the_library(tmp_path: Path, subtype: str, channels: int) -> None:
    path = tmp_path / "p.wav"
    write_wav(path, 0.5, channels=channels, subtype=subtype)
    expected, _ = soundfile.read(path, dtype="float32", always_2d=True)
    assert AudioReader().info(path) == AudioInfo(RATE, RATE // 2, channels, 0.5, f"WAV/{subtype}")
    for channel in range(channels):
        found = AudioReader(channel_policy=channel).read(path, 0.1, 0.3).audio
        np.testing.assert_array_equal(found, expected[1600:6400, channel])
        assert found.flags.writeable


class TestRanges:
    def test_the_end_can_be_passed_by_the_tolerance_and_is_cut_there(self, wav: Path) -> None:
        assert len(AudioReader().read(wav, 2.0, 1.005).audio) == RATE

    def test_further_past_the_end_is_an_error_with_id_and_numbers(self, wav: Path) -> None:
        with pytest.raises(AudioRangeError, match=r"'seg1'.*three\.wav.*1\.2.*0\.2 s past the end.*lasts 3 s"):
            AudioReader().read(wav, 2.0, 1.2, id="seg1")

    def test_the_tolerance_is_an_option(self, wav: Path) -> None:
        with pytest.raises(AudioRangeError):
            AudioReader(end_tolerance=0.0).read(wav, 2.0, 1.005)
        assert len(AudioReader(end_tolerance=0.5).read(wav, 2.0, 1.4).audio) == RATE

    @pytest.mark.parametrize("end", [None, -1])
    def test_no_duration_and_an_end_of_minus_one_mean_to_the_end(self, wav: Path, end: float | None) -> None:
        assert len(AudioReader().read(wav, 1.0, end=end).audio) == 2 * RATE
        assert len(AudioReader().read(wav, 1.0, float("nan"), end=None).audio) == 2 * RATE

    def test_end_instead_of_duration(self, wav: Path) -> None:
        assert len(AudioReader().read(wav, 1.0, end=1.5).audio) == RATE // 2
        with pytest.raises(ValueError, match="not both"):
            AudioReader().read(wav, 1.0, 0.5, end=1.5)

    @pytest.mark.parametrize(
        ("start", "duration"),
        [
            (-0.1, 1.0),
            (3.0, 1.0),
            (5.0, None),
            (0.0, 0.0),
            (0.0, -1.0),
            (float("nan"), 1.0),
            (0.0, float("inf")),
            (0.0, 1e-6),
        ],
    )
    def test_impossible_ranges(self, wav: Path, start: float, duration: float | None) -> None:
        with pytest.raises(AudioRangeError, match=r"three\.wav"):
            AudioReader().read(wav, start, duration)


class TestChannels:
    @pytest.fixture
    def stereo(self, tmp_path: Path) -> Path:
        write_wav(tmp_path / "stereo.wav", 0.5, channels=2, subtype="FLOAT")
        return tmp_path / "stereo.wav"

    def test_several_channels_are_refused_unless_a_policy_says_what_to_do(self, stereo: Path) -> None:
        with pytest.raises(AudioContentError, match="has 2 channels; set channel_policy"):
            AudioReader().read(stereo)

    def test_mean_and_index(self, stereo: Path) -> None:
        raw, _ = soundfile.read(stereo, dtype="float32")
        np.testing.assert_allclose(AudioReader(channel_policy="mean").read(stereo).audio, raw.mean(axis=1), atol=1e-7)
        for channel in (0, 1):
            np.testing.assert_array_equal(AudioReader(channel_policy=channel).read(stereo).audio, raw[:, channel])
        resampled = AudioReader(channel_policy=1, target_sample_freq=8000).read(stereo).audio
        np.testing.assert_allclose(resampled, resample(np.ascontiguousarray(raw[:, 1]), RATE, 8000), atol=1e-6)

    def test_a_channel_that_is_not_there(self, stereo: Path, wav: Path) -> None:
        for path in (stereo, wav):
            with pytest.raises(AudioContentError, match="channel 2"):
                AudioReader(channel_policy=2).read(path)

    def test_the_channel_of_a_recording_row_goes_before_the_policy(self, stereo: Path) -> None:
        raw, _ = soundfile.read(stereo, dtype="float32")
        row = {"id": "r", "storage_path": str(stereo), "sample_freq": RATE, "channel": 1}
        np.testing.assert_array_equal(AudioReader().read(row).audio, raw[:, 1])


class TestRows:
    def test_a_row_of_a_manifest(self, wav: Path) -> None:
        row = {"id": "rec", "storage_path": str(wav), "sample_freq": RATE, "duration": 3.0}
        assert len(AudioReader().read(row, 1.0, 0.5).audio) == RATE // 2
        assert AudioReader().info(row).num_samples == 3 * RATE

    def test_a_rate_that_differs_from_the_manifest_is_refused_unless_converted(self, wav: Path) -> None:
        row = {"id": "rec", "storage_path": str(wav), "sample_freq": 8000}
        with pytest.raises(AudioContentError, match=r"'rec'.*16000 samples a second, the manifest says 8000"):
            AudioReader().read(row)
        assert AudioReader(target_sample_freq=8000).read(row).sample_freq == 8000


def test_wav_scale(wav: Path) -> None:
    plain, scaled = AudioReader().read(wav).audio, AudioReader(wav_scale=32768.0).read(wav).audio
    np.testing.assert_allclose(scaled, plain * 32768.0)
    assert scaled.dtype == np.float32


@pytest.mark.parametrize(
    "options",
    [
        {"target_sample_freq": 0},
        {"channel_policy": "left"},
        {"channel_policy": -1},
        {"channel_policy": True},
        {"end_tolerance": -1.0},
        {"truncated": "ignore"},
    ],
)
def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        AudioReader(**options)  # type: ignore[arg-type]


def test_the_configuration_rebuilds_the_reader_and_it_can_be_sent_to_a_process(wav: Path) -> None:
    reader = AudioReader(target_sample_freq=8000, channel_policy="mean")
    again = AudioReader(**reader.get_config())
    sent = pickle.loads(pickle.dumps(reader))
    assert again.get_config() == sent.get_config() == reader.get_config()
    np.testing.assert_array_equal(sent.read(wav).audio, reader.read(wav).audio)


def test_errors_survive_the_way_between_processes(tmp_path: Path) -> None:
    with pytest.raises(AudioFileError) as caught:
        AudioReader().read(tmp_path / "none.wav", id="seg")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.id) == (type(caught.value), str(caught.value), "seg")
