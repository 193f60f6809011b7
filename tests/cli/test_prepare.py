"""``hyperion-lite prepare``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperion_lite.cli.main import main
from hyperion_lite.data.manifests import HyperDataset
from tests.data.manifests.test_validate import EXPECTED, write_faulty, write_good
from tests.data.odd_audio import write_wav


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for speaker in "abcd":
        (tmp_path / "corpus" / speaker).mkdir(parents=True)
        for i in range(3):
            write_wav(tmp_path / "corpus" / speaker / f"{i}.wav", 0.25)
    return tmp_path / "corpus"


def test_folder_then_validate_then_stats(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "folder", str(corpus), str(tmp_path / "out"), "--no-progress"]) == 0
    printed = capsys.readouterr().out
    assert "12 segments of 12 recordings" in printed and "speaker: 4 classes" in printed
    assert main(["prepare", "validate", str(tmp_path / "out"), "--no-progress"]) == 0
    assert "no problems" in capsys.readouterr().out
    assert main(["prepare", "stats", str(tmp_path / "out")]) == 0
    assert "count" in capsys.readouterr().out
    assert main(["prepare", "stats", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["segments"]["count"] == 12


def test_a_progress_bar_is_shown_while_lengths_are_read(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "folder", str(corpus), str(tmp_path / "out")]) == 0
    assert "reading audio headers" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["speaker", "utterance"])
def test_a_validation_split(corpus: Path, tmp_path: Path, by: str) -> None:
    command = ["prepare", "folder", str(corpus), str(tmp_path / "out"), "--no-progress", "--format", "parquet"]
    assert main([*command, "--validation", "0.25", "--validation-by", by]) == 0
    train, validation = (HyperDataset.load(tmp_path / "out" / part) for part in ("train", "val"))
    assert len(train) == 9 and len(validation) == 3
    assert set(train.segments.ids).isdisjoint(validation.segments.ids)
    assert train.classes["speaker"].class_ids == list("abcd")


def test_a_validation_split_that_cannot_be(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["prepare", "folder", str(corpus), str(tmp_path / "out"), "--no-progress", "--validation", "2"]
    assert main(command) == 2
    assert "between 0 and 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_kaldi(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "wav.scp").write_text(f"r {corpus}/a/0.wav\n")
    (tmp_path / "k" / "utt2spk").write_text("r a\n")
    assert main(["prepare", "kaldi", str(tmp_path / "k"), str(tmp_path / "out"), "--no-progress"]) == 0
    assert HyperDataset.load(tmp_path / "out").segments["r"]["duration"] == 0.25
    (tmp_path / "k" / "wav.scp").write_text(f"r cat {corpus}/a/0.wav |\n")
    assert main(["prepare", "kaldi", str(tmp_path / "k"), str(tmp_path / "out2"), "--no-progress"]) == 2
    assert "shell command" in capsys.readouterr().err
    assert (
        main(["prepare", "kaldi", str(tmp_path / "k"), str(tmp_path / "out2"), "--no-progress", "--allow-pipes"]) == 0
    )


def test_lhotse(corpus: Path, tmp_path: Path) -> None:
    source = {"type": "file", "channels": [0], "source": f"{corpus}/a/0.wav"}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 4000, "duration": 0.25}
    supervision = {"id": "s", "recording_id": "r", "start": 0.0, "duration": 0.2, "speaker": "a"}
    (tmp_path / "r.jsonl").write_text(json.dumps(recording))
    (tmp_path / "s.jsonl").write_text(json.dumps(supervision))
    command = ["prepare", "lhotse", str(tmp_path / "r.jsonl"), str(tmp_path / "out")]
    assert main([*command, "--supervisions", str(tmp_path / "s.jsonl")]) == 0
    assert HyperDataset.load(tmp_path / "out").segments["s"]["speaker"] == "a"


def test_validate_lists_all_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_faulty(tmp_path)
    assert main(["prepare", "validate", str(tmp_path), "--no-progress"]) == 2
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(EXPECTED) + 1
    for kind, file, row in EXPECTED:
        assert any(line.startswith(f"{tmp_path / file}: row {row}: {kind}: ") for line in printed), (kind, file, row)
    assert printed[-1].startswith(f"{len(EXPECTED)} problems (") and "3 unreadable file" in printed[-1]
    assert main(["prepare", "validate", str(tmp_path), "--no-progress", "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)
    assert {(p["kind"], Path(p["file"]).name, p["row"]) for p in problems} == EXPECTED


def test_validate_single_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_good(tmp_path)
    command = ["prepare", "validate", "--segments", str(tmp_path / "segments.csv")]
    command += ["--recordings", str(tmp_path / "recordings.csv"), "--classes", f"speaker={tmp_path / 'speaker.csv'}"]
    command += [
        "--enrollments",
        str(tmp_path / "enroll.csv"),
        "--trials",
        str(tmp_path / "trials.csv"),
        "--no-progress",
    ]
    assert main(command) == 0
    (tmp_path / "trials.csv").write_text("m0 zz target\n")
    assert main(command) == 2
    assert "unknown trial segment" in capsys.readouterr().out


def test_missing_durations_are_filled_in(tmp_path: Path) -> None:
    write_good(tmp_path)
    (tmp_path / "recordings.csv").write_text("id,storage_path\n" + "".join(f"r{i},r{i}.wav\n" for i in range(3)))
    command = ["prepare", "validate", str(tmp_path), "--no-progress", "--fill-durations", str(tmp_path / "out")]
    assert main(command) == 0
    filled = HyperDataset.load(tmp_path / "out")
    assert filled.recordings is not None
    assert filled.recordings.column("duration").tolist() == [2.0] * 3
    assert filled.recordings.column("sample_freq").tolist() == [16000] * 3
    assert filled.segments["s3"]["duration"] == 1.5
    assert filled.trials["main"].num_trials == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate"], "give a data set"),
        (["validate", "x", "--segments", "y"], "not both"),
        (["validate", "--segments", "y", "--classes", "speaker.csv"], "NAME=FILE"),
        (["validate", "none"], "no data set none"),
        (["stats", "none"], "no data set none"),
        (["folder", "none", "out"], "no folder none"),
        (["kaldi", "none", "out"], "not a Kaldi data folder"),
        (["lhotse", "none.jsonl", "out"], "no manifest none"),
    ],
)
def test_wrong_use(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_skip_bad(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "a" / "bad.wav").write_text("no audio")
    command = ["prepare", "folder", str(corpus), str(tmp_path / "out"), "--no-progress"]
    assert main(command) == 2
    assert "bad.wav" in capsys.readouterr().err
    assert main([*command, "--skip-bad"]) == 0
    assert len(HyperDataset.load(tmp_path / "out").segments) == 12
