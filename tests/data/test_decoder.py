"""The decoder reads what soundfile reads, and searches for a place once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.decoder import Decoder
from tests.data.odd_audio import RATE, signal

FORMATS = {"wav": "GSM610", "flac": "PCM_16", "ogg": "VORBIS", "mp3": "MPEG_LAYER_III", "aiff": "PCM_24"}


def write(folder: Path, suffix: str) -> Path:
    path = folder / f"speech.{suffix}"
    soundfile.write(path, signal(2.0), RATE, subtype=FORMATS[suffix])
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_reading_in_pieces_is_reading_at_once(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix)
    with soundfile.SoundFile(path) as plain:
        expected, seekable = plain.read(plain.frames, dtype="float32"), plain.seekable()
    with Decoder(path) as decoder:
        assert decoder.seekable() == seekable
        into = np.empty(700, np.float32)
        pieces = [decoder.read(1, dtype="float32"), decoder.read(4095, dtype="float32"), decoder.read(700, out=into)]
        assert pieces[-1] is into and decoder.seekable() == seekable
        if seekable:
            assert decoder.tell() == 4796
            pieces.append(decoder.read(dtype="float32"))
        else:
            pieces.append(decoder.read(len(expected), dtype="float32"))
        assert decoder.read(10, dtype="float32").size == 0
    np.testing.assert_allclose(np.concatenate(pieces), expected, atol=1e-6)


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3"])
def test_a_range_is_searched_for_once(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, suffix)
    seek, calls = soundfile.SoundFile.seek, []

    def counting(self: soundfile.SoundFile, frames: int, whence: int = 0) -> int:
        calls.append((frames, whence))
        return seek(self, frames, whence)

    monkeypatch.setattr(soundfile.SoundFile, "seek", counting)
    assert len(AudioReader().read(path, 0.5, 0.25).audio) == 4000
    assert len(calls) <= 1
