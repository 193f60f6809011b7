"""A long job: batches of like length, failures reported, interruptions continued, policies kept apart."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import soundfile as sf
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.cli.main import main
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.synthetic_voices import make_voice, synthesise
from hyperion_lite.extraction.batching import BatchLimits, group_by_length, padded_share
from hyperion_lite.extraction.embedding_files import Embeddings, read_embeddings, write_embeddings
from hyperion_lite.extraction.extractor import EmbeddingExtractor, Utterance
from hyperion_lite.extraction.inputs import list_utterances
from hyperion_lite.extraction.policy import EmbeddingPolicy, policy_of_model
from hyperion_lite.extraction.scoring import cosine_scores
from hyperion_lite.extraction.store import EmbeddingStore
from tests.models.small_models import build

POLICY = EmbeddingPolicy("Wav2XVector", "abcd", "model.pth", "modern", 16000.0)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.pth"
    build("wav2-ecapa").save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """Good files of many kinds, and bad ones."""
    root = tmp_path / "wavs"
    (root / "sub").mkdir(parents=True)
    voice = make_voice(0)
    wave = synthesise(voice, 0.8)
    sf.write(root / "plain.wav", wave, 16000)
    sf.write(root / "sub" / "other.flac", synthesise(voice, 0.5, seed=1), 16000)
    sf.write(root / "lossy.ogg", wave, 16000)
    sf.write(root / "lossy.mp3", wave, 16000)
    sf.write(root / "low.wav", synthesise(voice, 0.6, 8000), 8000)
    high = synthesise(voice, 0.6, 44100)
    sf.write(root / "stereo.wav", np.stack([high, 0.5 * high], 1), 44100)
    sf.write(root / "silent.wav", np.zeros(8000, np.float32), 16000)
    (root / "empty.wav").touch()
    (root / "text.wav").write_text("not audio\n")
    (root / "cut.wav").write_bytes((root / "plain.wav").read_bytes()[:4000])
    sf.write(root / "short.wav", wave[:50], 16000)
    (root / "notes.txt").write_text("ignored")
    return root


GOOD = ["lossy.mp3", "lossy.ogg", "low", "plain", "silent", "stereo", "sub-other"]
BAD = ["cut", "empty", "short", "text"]


def run(model_path, source, output, *options):
    return main(
        ["extract", "--model", str(model_path), "--input", str(source), "--output", str(output), "--quiet", *options]
    )


def test_good_files_are_embedded_and_bad_ones_reported(model_path, folder, tmp_path, capsys):
    assert run(model_path, folder, tmp_path / "out.npz") == 2
    captured = capsys.readouterr()
    found = read_embeddings(tmp_path / "out.npz")
    assert sorted(found.ids) == GOOD
    assert found.vectors.shape == (len(GOOD), 12) and np.isfinite(found.vectors).all()
    assert found.policy.frontend_rules == "modern"
    for name in BAD:
        assert f"failed: {name}: " in captured.err
    assert "silent" in captured.err
    assert f"{len(GOOD)} embedded, 0 done before, {len(BAD)} failed" in captured.out
    assert not (tmp_path / "out.npz.parts").exists()


def test_embeddings_are_those_of_the_model(model_path, folder, tmp_path):
    from hyperion_lite import Wav2XVector

    run(model_path, folder, tmp_path / "out.npz")
    found = read_embeddings(tmp_path / "out.npz")
    model = Wav2XVector.auto_load(model_path)
    reader = AudioReader(16000, channel_policy="mean")
    for utterance in list_utterances(folder):
        if utterance.id in found.ids:
            wave = torch.from_numpy(reader.read(utterance.source).audio)[None]
            with torch.no_grad():
                expected = model.extract_embed(wave)[0].numpy()
            error = np.linalg.norm(found.vectors[found.ids.index(utterance.id)] - expected) / np.linalg.norm(expected)
            assert error <= 1e-5


def test_folding_batch_norms_changes_little(model_path, folder, tmp_path):
    run(model_path, folder, tmp_path / "a.npz")
    run(model_path, folder, tmp_path / "b.npz", "--fold-batch-norm")
    a, b = read_embeddings(tmp_path / "a.npz"), read_embeddings(tmp_path / "b.npz")
    assert np.linalg.norm(a.vectors - b.vectors) <= 1e-5 * np.linalg.norm(a.vectors)


def test_all_good_files_exit_with_0(model_path, folder, tmp_path):
    for name in BAD:
        next(folder.glob(f"{name}.*")).unlink()
    assert run(model_path, folder, tmp_path / "out.npz") == 0


@pytest.mark.parametrize("output", ["out.npz", "out.parquet", "ark,scp:out"])
def test_every_output_reads_back_and_continues(model_path, folder, tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    run(model_path, folder, "first.npz")
    run(model_path, folder, output)
    expected, found = read_embeddings("first.npz"), read_embeddings(output)
    assert found.ids == expected.ids and found.policy == expected.policy
    assert np.array_equal(found.vectors, expected.vectors)
    sf.write(folder / "new.wav", synthesise(make_voice(3), 0.5), 16000)
    run(model_path, folder, output)
    assert set(read_embeddings(output).ids) == {*expected.ids, "new"}


def test_kaldi_index_points_into_the_archive(model_path, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(model_path, folder, "ark,scp:a.ark,b.scp")
    by_index, whole = read_embeddings("b.scp"), read_embeddings("a.ark")
    assert by_index.ids == whole.ids and np.array_equal(by_index.vectors, whole.vectors)


def test_an_interrupted_job_continues_where_it_was(model_path, folder, tmp_path, monkeypatch):
    calls = 0
    real = EmbeddingExtractor._forward

    def interrupted(self, waves):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(self, waves)

    monkeypatch.setattr(EmbeddingExtractor, "_forward", interrupted)
    assert run(model_path, folder, tmp_path / "out.npz") == 130
    assert not (tmp_path / "out.npz").exists()
    monkeypatch.setattr(EmbeddingExtractor, "_forward", real)
    computed = []
    monkeypatch.setattr(EmbeddingExtractor, "_forward", lambda self, waves: computed.extend(waves) or real(self, waves))
    assert run(model_path, folder, tmp_path / "out.npz") == 2
    assert sorted(read_embeddings(tmp_path / "out.npz").ids) == GOOD
    assert 0 < len(computed) < len(GOOD)


def test_policies_are_not_mixed(model_path, folder, tmp_path, capsys):
    run(model_path, folder, tmp_path / "a.npz")
    assert run(model_path, folder, tmp_path / "a.npz", "--chunk-length", "5") == 2
    assert "chunk_length: 5.0 / 0.0" in capsys.readouterr().err
    run(model_path, folder, tmp_path / "b.npz", "--frontend-rules", "legacy")
    assert main(["score", str(tmp_path / "a.npz"), "--test", str(tmp_path / "b.npz"), "--pair", "low", "low"]) == 2
    assert "not comparable" in capsys.readouterr().err
    assert run(model_path, folder, tmp_path / "a.npz", "--chunk-length", "5", "--overwrite") == 2
    assert read_embeddings(tmp_path / "a.npz").policy.chunk_length == 5.0


def test_every_kind_of_input_names_the_same_files(folder, tmp_path):
    paths = {u.id: u.source for u in list_utterances(folder)}
    assert sorted(paths) == sorted(GOOD + BAD)
    (tmp_path / "wav.scp").write_text("".join(f"{i} {p}\n" for i, p in paths.items()))
    (tmp_path / "list.txt").write_text("".join(f"{i} {p}\n" for i, p in paths.items()))
    with (tmp_path / "table.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "storage_path"), *paths.items()])
    for name in ("wav.scp", "list.txt", "table.csv"):
        found = {u.id: u.source for u in list_utterances(tmp_path / name)}
        assert {k: v if isinstance(v, str) else v["storage_path"] for k, v in found.items()} == paths
    (tmp_path / "bare.txt").write_text("".join(f"{p}\n" for p in paths.values()))
    assert [u.source for u in list_utterances(tmp_path / "bare.txt")] == list(paths.values())


def test_a_data_set_gives_its_segments(folder, tmp_path):
    (tmp_path / "recordings.csv").write_text(f"id,storage_path\nr,{folder / 'plain.wav'}\n")
    (tmp_path / "segments.csv").write_text("id,recording,start,duration\ns1,r,0.1,0.3\ns2,r,0.4,0.2\n")
    (tmp_path / "dataset.yaml").write_text("recordings: recordings.csv\nsegments: segments.csv\n")
    found = list_utterances(tmp_path / "dataset.yaml")
    assert [(u.id, u.start, u.duration) for u in found] == [("s1", 0.1, 0.3), ("s2", 0.4, 0.2)]


def test_pipes_are_refused(tmp_path):
    (tmp_path / "wav.scp").write_text("a touch /tmp/never |\n")
    with pytest.raises(ValueError, match="must not run a shell"):
        list_utterances(tmp_path / "wav.scp")


@pytest.mark.parametrize(("name", "message"), [("nowhere", "no input at"), ("x.docx", "cannot tell what kind")])
def test_other_inputs_are_refused(tmp_path, name, message):
    if "." in name:
        (tmp_path / name).touch()
    with pytest.raises((FileNotFoundError, ConfigError), match=message):
        list_utterances(tmp_path / name)


def test_one_bad_item_does_not_spoil_its_batch(tmp_path, monkeypatch):
    model = build("wav2-ecapa")
    for i in range(3):
        sf.write(tmp_path / f"{i}.wav", synthesise(make_voice(i), 0.5), 16000)
    real = type(model).extract_embed

    def fails_for_batches(self, x, **options):
        if x.size(0) > 1:
            raise ValueError("some item")
        return real(self, x, **options)

    monkeypatch.setattr(type(model), "extract_embed", fails_for_batches)
    store = EmbeddingStore(str(tmp_path / "out.npz"), POLICY)
    utterances = [Utterance(str(i), str(tmp_path / f"{i}.wav")) for i in range(3)]
    summary = EmbeddingExtractor(model, AudioReader(16000)).run(utterances, store)
    assert summary.written == 3 and not summary.failures


def test_ids_must_be_distinct(tmp_path):
    store = EmbeddingStore(str(tmp_path / "out.npz"), POLICY)
    with pytest.raises(ValueError, match="'a' occurs twice"):
        EmbeddingExtractor(build("wav2-ecapa"), AudioReader(16000)).run(
            [Utterance("a", "x"), Utterance("a", "y")], store
        )


def test_the_policy_follows_the_weights():
    first, second = build("wav2-ecapa", 0), build("wav2-ecapa", 1)
    assert policy_of_model(first, "x").differences(policy_of_model(first.copy(), "y")) == []
    assert policy_of_model(first, "x").differences(policy_of_model(second, "x"))


def test_the_policy_names_the_layer_whether_it_was_asked_for_or_not():
    model = build("wav2-res2basic-dropout")
    assert policy_of_model(model, "x").embed_layer == 0
    assert policy_of_model(model, "x", embed_layer=0) == policy_of_model(model, "x")
    assert policy_of_model(model, "x", embed_layer=-1).embed_layer == 1
    assert policy_of_model(build("wav2-dino"), "x").embed_layer is None


@pytest.mark.parametrize(
    ("options", "message"), [(["--embed-layer", "7"], "embed_layer must be"), (["--chunk-length", "0.01"], "at least")]
)
def test_options_that_the_model_cannot_have_stop_the_job_at_once(
    model_path, folder, tmp_path, capsys, options, message
):
    assert run(model_path, folder, tmp_path / "out.npz", *options) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "failed: " not in captured.err and not captured.out


@given(st.lists(st.floats(0.5, 20.0), max_size=60), st.floats(20.0, 200.0), st.integers(1, 20))
def test_batches_hold_every_item_once_within_the_limits(durations, max_seconds, max_items):
    limits = BatchLimits(max_seconds, 0.03, max_items)
    batches = group_by_length(durations, limits)
    assert sorted(i for b in batches for i in b) == list(range(len(durations)))
    for batch in batches:
        longest = max(durations[i] for i in batch)
        assert len(batch) <= max_items
        assert len(batch) == 1 or longest * len(batch) <= max_seconds + 1e-9
        assert 1 - sum(durations[i] for i in batch) / (longest * len(batch)) <= 0.03 + 1e-9
    assert padded_share(durations, batches) <= 0.03 + 1e-9


def test_cosine_scores(tmp_path):
    embeddings = Embeddings(["a", "b", "z"], np.array([[1, 0], [1, 1], [0, 0]], np.float32), None)
    write_embeddings(str(tmp_path / "x.npz"), embeddings)
    found = read_embeddings(tmp_path / "x.npz")
    assert cosine_scores(found, found, [("a", "b"), ("a", "a"), ("a", "z")]) == pytest.approx([0.5**0.5, 1.0, 0.0])
    with pytest.raises(KeyError, match="no embedding for 'c'"):
        cosine_scores(found, found, [("a", "c")])


def test_scores_of_a_labelled_trial_list(tmp_path, capsys):
    vectors = np.array([[1, 0], [0.9, 0.1], [0, 1]], np.float32)
    write_embeddings(str(tmp_path / "x.npz"), Embeddings(["a", "b", "c"], vectors, None))
    (tmp_path / "trials").write_text("a b target\na c nontarget\n")
    assert main(["score", str(tmp_path / "x.npz"), "--trials", str(tmp_path / "trials")]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == "modelid,segmentid,score" and len(captured.out.splitlines()) == 3
    assert "EER 0.00 %" in captured.err


@pytest.mark.parametrize("content", [b"no", b"", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00"])
@pytest.mark.parametrize("name", ["x.npz", "x.parquet"])
def test_other_files_are_no_embeddings(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="is no file of embeddings"):
        read_embeddings(tmp_path / name)


def test_a_second_job_on_one_output_is_refused(tmp_path):
    with EmbeddingStore(str(tmp_path / "out.npz"), POLICY) as first:
        first.add(["a"], np.ones((1, 3)))
        with pytest.raises(ConfigError, match="another job is writing"):
            EmbeddingStore(str(tmp_path / "out.npz"), POLICY)
        assert first.finish(["a"]) == 1
    with EmbeddingStore(str(tmp_path / "out.npz"), POLICY) as second:
        assert second.done() == {"a"}


def test_a_terminated_job_keeps_what_it_has(model_path, folder, tmp_path, monkeypatch):
    import os
    import signal

    calls = 0
    real = EmbeddingExtractor._forward

    def terminated(self, waves):
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, waves)

    monkeypatch.setattr(EmbeddingExtractor, "_forward", terminated)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        run(model_path, folder, tmp_path / "out.npz")
    assert left.value.code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert len(list((tmp_path / "out.npz.parts").glob("part-*.npz"))) == 1


def test_mistakes_of_the_whole_job_come_before_the_work(model_path, folder, tmp_path, capsys):
    (tmp_path / "t.csv").write_text(f"id,storage_path\na b,{folder / 'plain.wav'}\n")
    (tmp_path / "dir.npz").mkdir()
    (tmp_path / "empty.txt").write_text("# nothing\n")
    for source, output, options, message in (
        (tmp_path / "t.csv", f"ark:{tmp_path / 'o.ark'}", [], "cannot be empty or hold spaces"),
        (folder, tmp_path / "dir.npz", [], "it exists and is no file"),
        (folder, tmp_path / "o.npz", ["--chunk-length", "inf"], "chunk_length"),
        (folder, tmp_path / "o.npz", ["--chunk-length", "0.01"], "chunk_length"),
        (folder, tmp_path / "o.npz", ["--embed-layer", "9"], "embed_layer"),
        (folder, tmp_path / "o.npz", ["--batch-seconds", "-1"], "--batch-seconds"),
        (tmp_path / "empty.txt", tmp_path / "o.npz", [], "lists no utterances"),
    ):
        assert run(model_path, source, output, *options) == 2
        captured = capsys.readouterr()
        assert message in captured.err and "failed:" not in captured.err


@pytest.mark.parametrize("damage", ["cut", "policy", "rows"])
def test_damaged_embeddings_are_reported(tmp_path, damage, capsys):
    path = tmp_path / "x.npz"
    write_embeddings(str(path), Embeddings(["a", "b"], np.ones((2, 3), np.float32), POLICY))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:300])
    elif damage == "policy":
        np.savez(path, ids=np.array(["a"]), embeddings=np.ones((1, 3)), policy=np.array("[1]"))
    else:
        np.savez(path, ids=np.array(["a", "b", "c"]), embeddings=np.ones((2, 3)), policy=np.array("{}"))
    assert main(["score", str(path), "--pair", "a", "a"]) == 2
    assert "hyperion-lite score: error: " in capsys.readouterr().err


def test_a_named_pipe_is_a_bad_file(model_path, folder, tmp_path, capsys):
    import os

    os.mkfifo(folder / "pipe.wav")
    assert run(model_path, folder, tmp_path / "out.npz") == 2
    assert "failed: pipe: " in capsys.readouterr().err


def test_want_of_memory_is_reported_for_the_item(tmp_path, monkeypatch):
    model = build("wav2-ecapa")
    for name, seconds in (("long", 0.9), ("short", 0.5)):
        sf.write(tmp_path / f"{name}.wav", synthesise(make_voice(0), seconds), 16000)
    real = type(model).extract_embed

    def limited(self, x, **options):
        if x.numel() > 10_000:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, x, **options)

    monkeypatch.setattr(type(model), "extract_embed", limited)
    store = EmbeddingStore(str(tmp_path / "out.npz"), POLICY)
    utterances = [Utterance(n, str(tmp_path / f"{n}.wav")) for n in ("long", "short")]
    summary = EmbeddingExtractor(model, AudioReader(16000)).run(utterances, store)
    assert summary.written == 1 and summary.failures[0][0] == "long" and "--chunk-length" in summary.failures[0][1]
