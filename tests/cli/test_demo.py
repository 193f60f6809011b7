"""The demo, with fewer voices and steps than usual."""

import json

import numpy as np
import pytest

from hyperion_lite.cli import demo_task
from hyperion_lite.cli.main import main
from hyperion_lite.data.manifests import HyperDataset
from hyperion_lite.data.synthetic_voices import Occasion, make_voice, synthesise


@pytest.fixture
def small(monkeypatch):
    for name, value in (("TRAIN_UTTERANCES", 4), ("TEST_UTTERANCES", 2), ("_FEWEST_STEPS", 5), ("_MOST_STEPS", 5)):
        monkeypatch.setattr(demo_task, name, value)


def test_demo_trains_loads_extracts_scores_and_tells(small, tmp_path, capsys):
    assert main(["demo", "--json", "--output", str(tmp_path / "demo")]) == 0
    output = capsys.readouterr().out.strip().splitlines()
    result = json.loads(output[-1])
    assert set(result) == {"eer_untrained", "eer_trained", "seconds"}
    assert 0 <= result["eer_trained"] <= 0.5 and result["seconds"] > 0
    assert f"EER {100 * result['eer_trained']:.1f} %" in "\n".join(output)
    assert (tmp_path / "demo" / "det.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demo" / "exp" / "report.md").is_file()
    # the audio was only needed on the way
    assert not list((tmp_path / "demo").glob("voices-*"))


def test_untrained_network_is_far_from_knowing_the_voices(tmp_path, monkeypatch):
    from hyperion_lite.metrics import equal_error_rate

    monkeypatch.setattr(demo_task, "TRAIN_UTTERANCES", 1)
    demo_task.write_voices(tmp_path)
    demo_task.make_model().save(tmp_path / "model")
    found = demo_task.verify(tmp_path / "model", tmp_path / "test", tmp_path / "out.npz")
    assert 0.3 <= equal_error_rate(found.target, found.nontarget) <= 0.48


def test_data_only_writes_data_sets(small, tmp_path, capsys):
    assert main(["demo", "--data-only", str(tmp_path)]) == 0
    train, test = (HyperDataset.load(tmp_path / name) for name in ("train", "test"))
    assert len(train) == 12 * 4 and len(test) == 12 * 2
    assert list(train.classes["speaker"].class_ids) == list(test.classes["speaker"].class_ids)
    assert "--config builtin:demo" in capsys.readouterr().out


def test_seconds_have_to_be_positive(capsys):
    assert main(["demo", "--seconds", "0"]) == 2
    assert "--seconds must be positive" in capsys.readouterr().err


def test_voices_are_the_same_for_the_same_seed_and_differ_otherwise():
    occasion = Occasion.draw(np.random.default_rng(3))
    first, second = (synthesise(make_voice(2), 0.7, 8000, 5, occasion) for _ in range(2))
    assert first.dtype == np.float32 and first.shape == (5600,) and np.array_equal(first, second)
    assert not np.array_equal(first, synthesise(make_voice(2), 0.7, 8000, 6, occasion))
    assert np.abs(synthesise(make_voice(2), 0.7, 8000)).max() == pytest.approx(0.5)


@pytest.mark.parametrize("index", range(6))
def test_a_voice_has_its_pitch(index):
    voice = make_voice(index)
    audio = synthesise(voice, 2.0, 16000, seed=1)
    # cepstrum: the period of the pulses stands out
    spectrum = np.log(np.abs(np.fft.rfft(audio * np.hanning(len(audio)))) + 1e-9)
    frames = np.lib.stride_tricks.sliding_window_view(audio, 1024)[::512] * np.hanning(1024)
    cepstra = np.fft.irfft(np.log(np.abs(np.fft.rfft(frames, 4096)) + 1e-6)).mean(axis=0)
    lags = np.arange(16000 // 300, 16000 // 60)
    found = 16000 / lags[np.argmax(cepstra[lags])]
    assert np.isfinite(spectrum).all()
    assert found == pytest.approx(voice.pitch, rel=0.2)


def test_level_and_noise_of_an_occasion():
    quiet = synthesise(make_voice(0), 1.0, 8000, 1, Occasion(level_db=-20.0))
    assert np.abs(quiet).max() == pytest.approx(0.05, rel=1e-3)
    clean, noisy = (synthesise(make_voice(0), 1.0, 8000, 1, Occasion(noise_db=db)) for db in (None, -20.0))
    ratio = 10 * np.log10(np.mean((noisy - clean) ** 2) / np.mean(clean**2))
    assert ratio == pytest.approx(-20.0, abs=0.5)
