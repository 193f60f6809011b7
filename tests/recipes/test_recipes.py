"""The recipes: every stage on made-up voices, and the parts that real data goes through."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import soundfile

from hyperion_lite.data.manifests import SegmentSet

RECIPES = Path(__file__).resolve().parent.parent.parent / "recipes"
# so that the tests run from a checkout that is not installed, too
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(RECIPES.parent)}


def load(path):
    spec = importlib.util.spec_from_file_location(f"recipe_{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus():
    return load(RECIPES / "real_voices" / "corpus.py")


@pytest.fixture(scope="module")
def stages():
    return load(RECIPES / "stages.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["real_voices"], ["voxceleb"], ["voxceleb", "--model", "resnet34"], ["finetune_real_voices"]],
    ids=" ".join,
)
def test_every_stage_runs_on_made_up_voices(arguments, tmp_path):
    name, *options = arguments
    command = [sys.executable, str(RECIPES / name / "run.py"), "--smoke", "--root", str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    table = next(tmp_path.rglob("results.md")).read_text()
    rates = [float(cell) for line in table.splitlines()[2:] for cell in line.split("|")[4:-1]]
    assert rates and all(0 <= rate <= 0.5 for rate in rates)
    assert len(list(tmp_path.rglob("checkpoint_*/trainer_state.json"))) >= 2


def test_voxceleb_needs_its_corpora():
    command = [sys.executable, str(RECIPES / "voxceleb" / "run.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 2 and "needs --voxceleb1, --voxceleb2" in done.stderr


def test_trials_stay_within_a_source(stages):
    labels = ["a-1", "a-1", "a-2", "b-1", "b-1", "b-2", "c-1"]
    table = pa.table({"id": [f"u{i}" for i in range(7)], "speaker": labels})
    keys = stages.trials_by_source(SegmentSet(table))
    # one utterance makes no trial
    assert set(keys) == {"a", "b"}
    assert set(keys["a"]) == {("u0", "u1"), ("u0", "u2"), ("u1", "u2")}
    assert keys["a"].num_targets == keys["b"].num_targets == 1


def test_long_lists_are_thinned_evenly(stages):
    ids = [f"a-{i}" for i in range(40)]
    key = stages.all_pairs(ids, [i % 4 for i in range(40)])
    thinned = stages.thinned(key, 100)
    assert thinned.num_targets == 50 and thinned.num_nontargets == 50
    truth = dict(zip(key, key.target, strict=True))
    assert all(truth[pair] == target for pair, target in zip(thinned, thinned.target, strict=True))


def test_silence_around_a_clip_is_cut(corpus):
    rate = corpus.SAMPLE_FREQ
    tone = 0.5 * np.sin(np.arange(rate) * 0.3).astype(np.float32)
    padded = np.concatenate([np.zeros(2 * rate, np.float32), tone, np.zeros(rate, np.float32)])
    kept = corpus.trim(padded)
    assert len(tone) <= len(kept) <= len(tone) + 0.25 * rate
    assert not len(corpus.trim(np.zeros(rate, np.float32))) and not len(corpus.trim(tone[:100]))


def test_one_clip_in_ten_is_held_out_by_its_content(corpus):
    rng = np.random.default_rng(0)
    clips = [rng.standard_normal(int(length)).astype(np.float32) for length in rng.integers(8000, 40000, 1000)]
    held = [corpus.is_held_out(clip) for clip in clips]
    assert 60 < sum(held) < 140
    assert held[:50] == [corpus.is_held_out(0.3 * clip) for clip in clips[:50]]


def make_package(root, name, files):
    for file, audio in files.items():
        path = root / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith(".als"):
            path.write_bytes(bytes(32) + np.uint8(128 + 100 * audio).tobytes())
        else:
            soundfile.write(path, audio, 11025)


def test_clips_become_utterances_of_their_speakers(corpus, tmp_path):
    rng = np.random.default_rng(1)

    def clip(seconds=1.0):
        return np.clip(0.2 * rng.standard_normal(round(seconds * 11025)), -1, 1)

    stamps = {f"stamps/s{i}_desc_de.ogg": clip() for i in range(30)}
    stamps |= {f"stamps/s{i}_desc.ogg": clip() for i in range(4)} | {"stamps/s0.ogg": clip()}
    make_package(tmp_path / "x", "tuxpaint-stamps-default", stamps)
    make_package(tmp_path / "x", "drascula", {f"audio/vb{i}.als": clip(1.6) for i in range(12)})
    (tmp_path / "out").mkdir()
    count = corpus.build_corpus(tmp_path / "x", tmp_path / "out", fewest=4, num_jobs=1)
    rows = [line.split(",") for line in (tmp_path / "out" / "utterances.csv").read_text().splitlines()[1:]]
    assert len(rows) == count > 15
    # four clips of the English stamps make two utterances, which is too few
    assert {row[1] for row in rows} == {"tuxpaint-de", "drascula-vonbraun"}
    for id, speaker, path, split, duration in rows:
        audio, rate = soundfile.read(tmp_path / "out" / path)
        assert rate == 16000 and len(audio) / rate == pytest.approx(float(duration), abs=1e-3)
        assert id.startswith(f"{split}-{speaker}") and len(audio) >= corpus.SHORTEST_UTTERANCE * rate


def test_joined_lists_hold_a_part_of_each(stages):
    ids = [f"{source}-{i}" for source in "ab" for i in range(12)]
    keys = [
        stages.all_pairs(ids[:12], [i % 3 for i in range(12)]),
        stages.all_pairs(ids[12:], [i % 3 for i in range(12)]),
    ]
    joined = stages.joined(keys, 20)
    assert len(joined) == 40 and joined.num_targets == 20
    assert {pair[0][0] for pair in joined} == {"a", "b"}
