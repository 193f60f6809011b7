"""Damaged, mislabelled and odd files: what is refused and what is harmless."""

from __future__ import annotations

import gzip
import os
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import AudioFileError
from hyperion_lite.data.audio_errors import (
    AudioContentError,
    AudioMissingError,
    AudioReadError,
    AudioTruncatedError,
    PipeRefusedError,
)
from hyperion_lite.data.audio_reader import AudioReader
from tests.data.odd_audio import RATE, signal, wav_bytes, write_wav

SAMPLES = (signal(1.0) * 32767).astype(np.int16)

NOT_AUDIO = {
    "empty": (b"", "empty"),
    "html": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "HTML page"),
    "text": (b"this is not audio\n", "text, beginning with 'this is not audio'"),
    "json": (b'{"error": "not found"}', "JSON text"),
    "xml": (b"<?xml version='1.0'?><Error>AccessDenied</Error>", "XML document"),
    "gzip": (gzip.compress(wav_bytes(SAMPLES)), "gzip"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git-LFS pointer"),
    "zip": (b"PK\x03\x04" + bytes(100), "ZIP archive"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(50), "PNG"),
    "mp4": (b"\x00\x00\x00\x20ftypM4A " + bytes(80), "M4A"),
    "zeros": (bytes(5000), "only zero bytes"),
    "noise": (np.random.default_rng(0).bytes(4000), "unknown data of 4000 bytes"),
    "utf8": ("Übergrößenträger\n".encode() * 400, "text, beginning with 'Übergröß"),
    "avi": (b"RIFF\x10\x00\x00\x00AVI LIST" + bytes(50), "'AVI '"),
}


@pytest.mark.parametrize("case", NOT_AUDIO)
def test_the_error_says_what_the_file_really_is(tmp_path: Path, case: str) -> None:
    content, phrase = NOT_AUDIO[case]
    path = tmp_path / f"{case}.wav"
    path.write_bytes(content)
    with pytest.raises(AudioFileError) as caught:
        AudioReader().read(path, id="seg7")
    message = str(caught.value)
    assert phrase in message and "'seg7'" in message and f"{case}.wav" in message
    assert isinstance(caught.value, AudioReadError) and caught.value.id == "seg7"


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(AudioMissingError, match=r"'s'.*gone\.wav: no such file") as caught:
        AudioReader().read(tmp_path / "gone.wav", id="s")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, AudioFileError)
    with pytest.raises(AudioReadError, match="is a folder"):
        AudioReader().read(tmp_path)


def test_headerless_audio(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(1000))
    with pytest.raises(AudioReadError, match="headerless"):
        AudioReader().read(tmp_path / "a.raw")


class TestTruncated:
    @pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
    @pytest.mark.parametrize(
        ("suffix", "format_", "subtype"),
        [
            ("wav", "WAV", "PCM_16"),
            ("wav", "WAV", "FLOAT"),
            ("wav", "RF64", "PCM_16"),
            ("aiff", "AIFF", "PCM_16"),
            ("au", "AU", "PCM_16"),
            ("sph", "NIST", "PCM_16"),
            ("flac", "FLAC", "PCM_16"),
        ],
    )
    def test_a_cut_file_is_an_error_with_expected_and_found(
        self, tmp_path: Path, keep: float, suffix: str, format_: str, subtype: str
    ) -> None:
        path = tmp_path / f"cut.{suffix}"
        soundfile.write(path, signal(2.0), RATE, format=format_, subtype=subtype)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
        if format_ == "NIST" and len(content) * keep < 2000:
            pytest.skip("cut inside the header")
        with pytest.raises(AudioTruncatedError, match="truncated") as caught:
            AudioReader().read(path, id="seg")
        assert caught.value.id == "seg"

    def test_the_numbers_are_those_of_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.wav"
        path.write_bytes(wav_bytes(SAMPLES)[: 44 + 20_000])
        with pytest.raises(
            AudioTruncatedError, match=r"promises 32000 bytes .*\(16000 blocks\).* holds 20000 \(10000\)"
        ):
            AudioReader().read(path)

    def test_it_is_found_even_where_the_range_asked_for_is_there(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.wav"
        path.write_bytes(wav_bytes(SAMPLES)[: 44 + 20_000])
        with pytest.raises(AudioTruncatedError):
            AudioReader().read(path, 0.0, 0.1)

    def test_the_policy_can_accept_what_is_there(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.wav"
        path.write_bytes(wav_bytes(SAMPLES)[: 44 + 20_000])
        audio = AudioReader(truncated="accept").read(path).audio
        np.testing.assert_allclose(audio, SAMPLES[:10_000] / 32768, atol=1e-6)

    def test_a_missing_half_sample_is_no_truncation(self, tmp_path: Path) -> None:
        path = tmp_path / "half.wav"
        path.write_bytes(wav_bytes(SAMPLES)[:-1])
        assert len(AudioReader().read(path).audio) == len(SAMPLES) - 1


HARMLESS = {
    "riff size too small": wav_bytes(SAMPLES, riff_size=36),
    "riff size too large": wav_bytes(SAMPLES, riff_size=10**6),
    "riff size zero": wav_bytes(SAMPLES, riff_size=0),
    "junk after the data": wav_bytes(SAMPLES, tail=b"\x00junk after the data" * 40),
    "a list chunk after the data": wav_bytes(SAMPLES, tail=b"LIST" + struct.pack("<I", 4) + b"INFO"),
    "a chunk before the format": wav_bytes(SAMPLES, before=b"JUNK" + struct.pack("<I", 28) + bytes(28)),
    "a long chunk before the format": wav_bytes(SAMPLES, before=b"bext" + struct.pack("<I", 9000) + bytes(9000)),
    "streamed: all ones": wav_bytes(SAMPLES, data_size=0xFFFFFFFF, riff_size=0xFFFFFFFF),
    "streamed: largest signed": wav_bytes(SAMPLES, data_size=0x7FFFFFFF - 44, riff_size=0x7FFFFFFF - 8),
    "streamed: zero": wav_bytes(SAMPLES, data_size=0, riff_size=0),
    "big endian": wav_bytes(SAMPLES, order=">"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_harmless_headers_are_read_whole(tmp_path: Path, case: str) -> None:
    path = tmp_path / "odd.wav"
    path.write_bytes(HARMLESS[case])
    np.testing.assert_allclose(AudioReader().read(path).audio, SAMPLES / 32768, atol=1e-6)


def test_an_odd_data_size_without_its_pad_byte(tmp_path: Path) -> None:
    path = tmp_path / "odd.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 1, 8000, 0, "NONE", ""))
        file.writeframes(bytes(range(1, 102)))
    content = path.read_bytes()
    assert struct.unpack("<I", content[40:44])[0] == 101
    path.write_bytes(content[: 44 + 101])
    assert len(AudioReader().read(path).audio) == 101


@given(st.integers(0, 500), st.integers(-400, 400))
def test_truncation_is_seen_exactly_when_a_whole_sample_is_missing(
    tmp_path_factory: pytest.TempPathFactory, count: int, more: int
) -> None:
    # `more` bytes beyond (or short of) what the header promises
    path = tmp_path_factory.mktemp("wav") / "x.wav"
    content = wav_bytes(SAMPLES[:count])
    path.write_bytes(content + bytes(more) if more >= 0 else content[: max(44, len(content) + more)])
    missing = len(content) - path.stat().st_size
    reader = AudioReader()
    if count > 0 and missing >= 2:
        with pytest.raises(AudioTruncatedError):
            reader.read(path)
    elif count > 0 and (count > 1 or missing <= 0):
        assert len(reader.read(path).audio) == count - (1 if missing > 0 else 0)


@pytest.mark.parametrize(("suffix", "subtype"), [("wav", "PCM_16"), ("flac", "PCM_16"), ("ogg", "VORBIS")])
def test_a_file_without_samples(tmp_path: Path, suffix: str, subtype: str) -> None:
    path = tmp_path / f"none.{suffix}"
    soundfile.write(path, np.zeros(0, np.float32), RATE, subtype=subtype)
    with pytest.raises(AudioFileError, match=r"'seg'.*(0 samples|cannot be read)"):
        AudioReader().read(path, id="seg")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_nan_and_infinity(tmp_path: Path, value: float, subtype: str) -> None:
    audio = signal(1.0).astype(np.float64)
    audio[1234] = value
    path = tmp_path / "bad.wav"
    soundfile.write(path, audio, RATE, subtype=subtype)
    with pytest.raises(AudioContentError, match=r"'seg'.*NaN or infinity.*sample 1234"):
        AudioReader().read(path, id="seg")
    assert len(AudioReader().read(path, 0.5, 0.5).audio) == RATE // 2


def test_large_finite_values_whose_sum_overflows_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "loud.wav"
    soundfile.write(path, np.full(100, 3e38), RATE, subtype="FLOAT")
    assert np.isfinite(AudioReader().read(path).audio).all()


def test_an_mp3_called_wav_is_read_as_what_it_is(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.mp3", signal(1.0), RATE)
    os.rename(tmp_path / "a.mp3", tmp_path / "a.wav")
    assert AudioReader().info(tmp_path / "a.wav").format.startswith("MP3")


FUZZED = [
    ("wav", "WAV", "PCM_16"),
    ("wav", "WAV", "FLOAT"),
    ("wav", "WAV", "IMA_ADPCM"),
    ("wav", "RF64", "PCM_24"),
    ("aiff", "AIFF", "PCM_16"),
    ("au", "AU", "ULAW"),
    ("sph", "NIST", "PCM_16"),
    ("flac", "FLAC", "PCM_16"),
    ("ogg", "OGG", "VORBIS"),
    ("caf", "CAF", "PCM_16"),
]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], bytes]:
    folder, contents = tmp_path_factory.mktemp("fuzz"), {}
    for suffix, format_, subtype in FUZZED:
        path = folder / f"{format_}{subtype}.{suffix}"
        soundfile.write(path, signal(0.3), RATE, format=format_, subtype=subtype)
        contents[suffix, format_, subtype] = path.read_bytes()
    return contents


@settings(max_examples=150)
@given(
    st.sampled_from(FUZZED),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=6),
    st.floats(0.0, 1.0),
)
def test_damage_gives_audio_or_our_error_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    originals: dict[tuple[str, str, str], bytes],
    kind: tuple[str, str, str],
    changes: list[tuple[int, int]],
    keep: float,
) -> None:
    content = bytearray(originals[kind])
    for position, value in changes:
        content[position % len(content)] = value
    path = tmp_path_factory.getbasetemp() / f"fuzzed.{kind[0]}"
    path.write_bytes(content[: int(len(content) * keep)] if keep < 0.5 else content)
    reader = AudioReader(target_sample_freq=16000, channel_policy="mean")
    messages = []
    for arguments in ((0.0, None), (0.1, 0.05)):
        try:
            audio, rate = reader.read(path, *arguments, id="seg")
        except AudioFileError as error:
            messages.append(str(error))
        else:
            assert rate == 16000 and audio.ndim == 1 and audio.dtype == np.float32 and np.isfinite(audio).all()
    assert all("'seg'" in message and "fuzzed" in message for message in messages)


class TestPipes:
    def test_a_shell_command_is_refused_and_not_run(self, tmp_path: Path) -> None:
        mark = tmp_path / "ran"
        for command in (f"touch {mark} |", f"| touch {mark}", f" touch {mark}|  "):
            with pytest.raises(PipeRefusedError, match="shell command"):
                AudioReader().read(command, id="utt")
        assert not mark.exists()

    def test_it_runs_where_that_was_allowed(self, tmp_path: Path) -> None:
        write_wav(tmp_path / "a.wav", 0.5)
        audio = AudioReader(allow_pipes=True).read(f"cat {tmp_path / 'a.wav'} |", 0.1, 0.2).audio
        np.testing.assert_array_equal(audio, AudioReader().read(tmp_path / "a.wav", 0.1, 0.2).audio)

    def test_the_end_of_vorbis_from_a_command(self, tmp_path: Path) -> None:
        soundfile.write(tmp_path / "a.ogg", signal(2.5), RATE)
        part = AudioReader(allow_pipes=True).read(f"cat {tmp_path / 'a.ogg'} |", 2.2, 0.2).audio
        np.testing.assert_allclose(part, AudioReader().read(tmp_path / "a.ogg").audio[35200:38400], atol=1e-6)

    def test_what_goes_wrong_in_a_command_is_reported(self) -> None:
        with pytest.raises(AudioReadError, match="ended with code 3: oh no"):
            AudioReader(allow_pipes=True).read("echo oh no >&2; exit 3 |")
        with pytest.raises(AudioReadError, match="output of the command is not audio but text"):
            AudioReader(allow_pipes=True).read("echo hello |")


class TestKaldiArchives:
    def test_wav_items_of_an_archive(self, tmp_path: Path) -> None:
        kaldiio = pytest.importorskip("kaldiio")
        first, second = signal(1.0, seed=1), signal(2.0, seed=2)
        with kaldiio.WriteHelper(f"ark,scp:{tmp_path}/a.ark,{tmp_path}/a.scp") as writer:
            writer("one", (RATE, (first * 32767).astype(np.int16)))
            writer("two", (RATE, (second * 32767).astype(np.int16)))
        paths = dict(line.split() for line in (tmp_path / "a.scp").read_text().splitlines())
        reader = AudioReader()
        assert reader.info(paths["two"]).num_samples == 2 * RATE
        np.testing.assert_allclose(reader.read(paths["one"]).audio, first, atol=1e-4)
        np.testing.assert_allclose(
            reader.read(paths["two"], 0.5, 0.25).audio, second[RATE // 2 : RATE * 3 // 4], atol=1e-4
        )

    def test_flac_items_of_an_archive(self, tmp_path: Path) -> None:
        kaldiio = pytest.importorskip("kaldiio")
        audio = signal(1.0)
        kaldiio.save_ark(
            str(tmp_path / "a.ark"),
            {"zero": (RATE, np.zeros(77, np.int16)), "one": (RATE, (audio * 32767).astype(np.int16))},
            scp=str(tmp_path / "a.scp"),
            write_function="soundfile",
            write_kwargs={"format": "flac"},
        )
        path = (tmp_path / "a.scp").read_text().split()[3]
        np.testing.assert_allclose(
            AudioReader().read(path, 0.25, 0.5).audio, audio[RATE // 4 : RATE * 3 // 4], atol=1e-4
        )

    def test_features_are_no_audio(self, tmp_path: Path) -> None:
        kaldiio = pytest.importorskip("kaldiio")
        with kaldiio.WriteHelper(f"ark,scp:{tmp_path}/a.ark,{tmp_path}/a.scp") as writer:
            writer("one", np.zeros((10, 3), np.float32))
        path = (tmp_path / "a.scp").read_text().split()[1]
        with pytest.raises(AudioReadError, match=r"array of shape \(10, 3\)"):
            AudioReader().read(path)

    def test_a_pickled_item_is_refused_and_not_run(self, tmp_path: Path) -> None:
        pytest.importorskip("kaldiio")
        mark = tmp_path / "ran"
        payload = b"utt PKLcos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
        (tmp_path / "a.ark").write_bytes(payload)
        with pytest.raises(AudioReadError, match="pickled"):
            AudioReader().read(f"{tmp_path / 'a.ark'}:4")
        assert not mark.exists()

    @pytest.mark.parametrize("offset", [3, 10**6])
    def test_an_offset_that_hits_nothing(self, tmp_path: Path, offset: int) -> None:
        pytest.importorskip("kaldiio")
        (tmp_path / "a.ark").write_bytes(b"some text that is no archive at all, but long enough")
        with pytest.raises(AudioReadError, match=r"a\.ark"):
            AudioReader().read(f"{tmp_path / 'a.ark'}:{offset}", id="utt")

    def test_a_missing_archive(self, tmp_path: Path) -> None:
        with pytest.raises(AudioMissingError):
            AudioReader().read(f"{tmp_path / 'a.ark'}:4")

    def test_a_plain_file_whose_name_looks_like_a_position(self, tmp_path: Path) -> None:
        write_wav(tmp_path / "take.wav", 0.5)
        os.rename(tmp_path / "take.wav", tmp_path / "take:2")
        assert len(AudioReader().read(tmp_path / "take:2").audio) == RATE // 2


def test_names_that_no_file_can_have() -> None:
    with pytest.raises(AudioReadError, match=r"'utt': .* is no name of a file"):
        AudioReader().read("a\0b.wav", id="utt")


@pytest.mark.parametrize("offset", [100, 10**6, 10**30])
def test_an_offset_past_the_end_of_an_archive(tmp_path: Path, offset: int) -> None:
    (tmp_path / "a.ark").write_bytes(b"x" * 100)
    with pytest.raises(AudioReadError, match="at or past the end"):
        AudioReader().read(f"{tmp_path}/a.ark:{offset}")


@pytest.mark.parametrize(
    "options",
    [
        {"target_sample_freq": "x"},
        {"target_sample_freq": 0},
        {"target_sample_freq": True},
        {"target_sample_freq": 1.5},
        {"end_tolerance": "x"},
        {"end_tolerance": float("nan")},
        {"wav_scale": "x"},
    ],
)
def test_an_option_of_the_wrong_kind_is_named(options: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        AudioReader(**options)
