"""Audio at 44.1 kHz, or in stereo, went into a model for 16 kHz mono without a word.

Right: it is converted where the reader was told the rate, mixed where it was told how, and refused with both numbers otherwise.
"""

from __future__ import annotations

import numpy as np
import pytest
import soundfile as sf
import torch

from hyperion_lite.cli.main import main
from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.audio_errors import AudioContentError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.synthetic_voices import make_voice, synthesise
from hyperion_lite.extraction.embedding_files import read_embeddings
from tests.data.audio_files import write_table
from tests.models.small_models import build


@pytest.fixture
def stereo(tmp_path):
    voice = synthesise(make_voice(0), 0.5, 44100)
    sf.write(tmp_path / "stereo.wav", np.stack([voice, 0.5 * voice], axis=1), 44100)
    return tmp_path / "stereo.wav"


def test_the_reader_refuses_or_converts(stereo) -> None:
    with pytest.raises(AudioContentError, match="2 channels"):
        AudioReader(target_sample_freq=16000).read(stereo)
    audio, rate = AudioReader(target_sample_freq=16000, channel_policy="mean").read(stereo)
    assert (rate, audio.shape) == (16000, (8000,))


def test_a_data_set_with_another_rate_than_its_table(stereo) -> None:
    row = {"id": "r", "storage_path": str(stereo), "sample_freq": 16000, "duration": 0.5}
    table = write_table(stereo.parent / "recordings.csv", [row])
    with pytest.raises(AudioContentError, match=r"44100.*16000|16000.*44100"):
        AudioDataset(table, channel_policy=0)["r"]
    assert AudioDataset(table, channel_policy=0, target_sample_freq=16000)["r"]["audio"].shape == (8000,)


def test_extraction_brings_files_to_the_rate_of_the_model(stereo, tmp_path) -> None:
    model = build("wav2-ecapa")
    model.save(tmp_path / "m.pth")
    out = tmp_path / "out.npz"
    arguments = ["--model", str(tmp_path / "m.pth"), "--input", str(stereo.parent), "--output", str(out)]
    assert main(["extract", *arguments, "--quiet"]) == 0
    audio = torch.from_numpy(AudioReader(16000, "mean").read(stereo).audio)
    with torch.inference_mode():
        expected = model.extract_embed(audio[None])[0].numpy()
    found = read_embeddings(out)
    assert found.vectors.shape == (1, model.embed_dim)
    np.testing.assert_allclose(found.vectors[0], expected, rtol=1e-4, atol=1e-5)


def test_a_model_refuses_stereo_unless_its_configuration_says_how() -> None:
    model = build("wav2-ecapa")
    with pytest.raises(ValueError, match="2 channels"):
        model.extract_embed(torch.randn(1, 2, 16000))
    mixing = type(model).from_config({**model.get_config(), "channel_policy": "mean"}).eval()
    x = torch.randn(1, 2, 8000)
    with torch.inference_mode():
        assert torch.equal(mixing.extract_embed(x), mixing.extract_embed(x.mean(1)))
