"""Utterances below one analysis window (25 ms), and last windows of 2 ms, ended in an assertion deep inside a library.

Right: the model refuses them with its minimum; extraction reports them by id and length, embeds the rest and says so in its exit
code; a last part of an utterance that is shorter than a window is no problem.
"""

from __future__ import annotations

import pytest
import soundfile as sf
import torch

from hyperion_lite.cli.main import main
from hyperion_lite.core.errors import TooShortError
from hyperion_lite.extraction.embedding_files import read_embeddings
from tests.data.audio_files import waveform
from tests.models.small_models import build


def test_below_one_window() -> None:
    model = build("wav2-basic-strided")
    for length in (1, 80, 399, model.min_samples - 1):
        if length < model.min_samples:
            with pytest.raises(TooShortError, match=f"item 0 .* {length} samples at 16000 Hz, the minimum is"):
                model.extract_embed(torch.randn(1, length))


def test_a_last_window_of_two_milliseconds() -> None:
    model = build("wav2-basic-strided")
    windows = model.extract_embed_slidwin(torch.randn(1, 16000 + 32), win_length=0.5, win_shift=0.5)
    assert windows.embeddings.size(1) == int(windows.num_windows[0]) >= 2
    assert torch.isfinite(windows.embeddings).all()
    assert float(windows.times[0, -1, 1]) == pytest.approx(1.002)


def test_extraction_reports_the_short_ones(tmp_path, capsys) -> None:
    build("wav2-basic-strided").save(tmp_path / "m.pth")
    (tmp_path / "wavs").mkdir()
    for name, length in (("long", 8000), ("click", 32)):
        sf.write(tmp_path / "wavs" / f"{name}.wav", waveform(0, length), 16000)
    out = tmp_path / "out.npz"
    arguments = ["--model", str(tmp_path / "m.pth"), "--input", str(tmp_path / "wavs"), "--output", str(out)]
    assert main(["extract", *arguments, "--quiet"]) == 2
    assert list(read_embeddings(out).ids) == ["long"]
    assert "failed: click: too short: 32 samples at 16000 Hz, the model needs" in capsys.readouterr().err
