"""Every fault of a data set is reported, at once, with file and row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from hyperion_lite.data.manifests import HyperDataset, RecordingSet, SegmentSet
from hyperion_lite.data.manifests.problems import Problem
from hyperion_lite.data.manifests.stats import dataset_stats
from hyperion_lite.data.manifests.validate import validate_dataset
from tests.data.odd_audio import RATE, write_wav


def write_good(folder: Path) -> None:
    for i in range(3):
        write_wav(folder / f"r{i}.wav", 2.0, seed=i)
    (folder / "recordings.csv").write_text(
        "id,storage_path,sample_freq,duration\n" + "".join(f"r{i},r{i}.wav,{RATE},2.0\n" for i in range(3))
    )
    (folder / "segments.csv").write_text(
        "id,recording,start,duration,speaker\ns0,r0,0,2,p0\ns1,r1,0,1,p1\ns2,r1,1,1,p1\ns3,r2,0.5,,p0\ns4,r2,1,1.015,p1\n"
    )
    (folder / "speaker.csv").write_text("id,class_idx\np0,0\np1,1\n")
    (folder / "enroll.csv").write_text("modelid,segmentid\nm0,s0\nm1,s1\n")
    (folder / "trials.csv").write_text("modelid,segmentid,targettype\nm0,s3,target\nm1,s2,target\nm0,s2,nontarget\n")
    (folder / "vad.csv").write_text("id,start,duration\ns0,0,1\n")
    (folder / "dataset.yaml").write_text(
        "recordings: recordings.csv\nsegments: segments.csv\nclasses: {speaker: speaker.csv}\n"
        "enrollments: {main: enroll.csv}\ntrials: {main: trials.csv}\nvad: vad.csv\n"
    )


def write_faulty(folder: Path) -> None:
    write_good(folder)
    write_wav(folder / "slow.wav", 1.0, rate=8000)
    (folder / "page.wav").write_text("<html>gone</html>")
    soundfile.write(folder / "none.wav", np.zeros(0), RATE)
    (folder / "recordings.csv").write_text(
        "id,storage_path,sample_freq,duration\n"
        f"r0,r0.wav,{RATE},2.0\n"
        f"r1,r1.wav,{RATE},2.0\n"
        f"r1,r1.wav,{RATE},2.0\n"  # row 3: duplicate id
        f"r2,r2.wav,{RATE},-2.0\n"  # row 4: negative duration
        f"r3,gone.wav,{RATE},1.0\n"  # row 5: missing file
        f"r4,page.wav,{RATE},1.0\n"  # row 6: not audio
        f"r5,slow.wav,{RATE},1.0\n"  # row 7: wrong rate
        f"r6,none.wav,{RATE},\n"  # row 8: no samples
        f"r7,touch ran |,{RATE},1.0\n"  # row 9: shell command
        f"r8,r0.wav,{RATE},1.0\n"  # row 10: wrong duration
        f"r9,r0.wav,{RATE},long\n"  # row 11: not a number
    )
    (folder / "segments.csv").write_text(
        "id,recording,start,duration,speaker\n"
        "s0,r0,0,2,p0\n"
        "s0,r0,0,2,p0\n"  # row 2: duplicate id
        "s1,zz,0,1,p1\n"  # row 3: unknown recording
        "s2,r1,1,1.5,p1\n"  # row 4: end past the recording
        "s3,r1,0,-1,p0\n"  # row 5: negative duration
        "s4,r1,0,0,p0\n"  # row 6: zero duration
        "s5,r1,0,1,p9\n"  # row 7: class not in the table
        "s6,r1,0,1,\n"  # row 8: no class
        "s7,r1\n"  # row 9: too few fields
        "s8,r1,-1,1,p0\n"  # row 10: negative start
        ",r1,0,1,p0\n"  # row 11: no id
        "s9,r0,2.5,,p0\n"  # row 12: starts past the end
    )
    (folder / "enroll.csv").write_text("modelid,segmentid\nm0,s0\nm0,s0\nm1,zz\n")
    (folder / "trials.csv").write_text(
        "modelid,segmentid,targettype\nm0,s2,target\nm0,zz,target\nm9,s2,nontarget\nm0,s2,target\nm1,zz,target\n"
    )
    (folder / "vad.csv").write_text("id,start,duration\ns0,0,1\nzz,0,1\ns1,0,0\n")


EXPECTED = {
    ("duplicate id", "recordings.csv", 3),
    ("bad duration", "recordings.csv", 4),
    ("unreadable file", "recordings.csv", 5),
    ("unreadable file", "recordings.csv", 6),
    ("wrong sample rate", "recordings.csv", 7),
    ("unreadable file", "recordings.csv", 8),
    ("shell command", "recordings.csv", 9),
    ("wrong duration", "recordings.csv", 10),
    ("bad value", "recordings.csv", 11),
    ("duplicate id", "segments.csv", 2),
    ("unknown recording", "segments.csv", 3),
    ("end past the recording", "segments.csv", 4),
    ("bad duration", "segments.csv", 5),
    ("bad duration", "segments.csv", 6),
    ("unknown class", "segments.csv", 7),
    ("unknown class", "segments.csv", 8),
    ("malformed row", "segments.csv", 9),
    ("bad start", "segments.csv", 10),
    ("bad value", "segments.csv", 11),
    ("end past the recording", "segments.csv", 12),
    ("duplicate enrolment", "enroll.csv", 2),
    ("unknown enrolment segment", "enroll.csv", 3),
    ("unknown trial segment", "trials.csv", 2),
    ("unknown trial model", "trials.csv", 3),
    ("duplicate trial", "trials.csv", 4),
    ("unknown segment", "vad.csv", 2),
    ("bad duration", "vad.csv", 3),
}


def found(problems: list[Problem]) -> set[tuple[str, str, int | None]]:
    return {(p.kind, Path(p.file).name, p.row) for p in problems}


def test_a_good_data_set_has_no_problems(tmp_path: Path) -> None:
    write_good(tmp_path)
    assert validate_dataset(HyperDataset.load(tmp_path), decode=True, progress=False) == []


def test_every_fault_is_found_at_once_with_file_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_faulty(tmp_path)
    monkeypatch.chdir(tmp_path)
    problems = validate_dataset(HyperDataset.load(tmp_path), progress=False)
    assert found(problems) == EXPECTED
    assert not (tmp_path / "ran").exists()
    for problem in problems:
        assert problem.message and str(problem).startswith(f"{problem.file}: row {problem.row}: {problem.kind}: ")


def test_faults_of_parquet_are_found_too(tmp_path: Path) -> None:
    write_good(tmp_path)
    segments = SegmentSet.from_file(tmp_path / "segments.csv")
    table = segments.with_column("duration", [-1.0, 1.0, 5.0, 1.0, 1.0])
    table.save(tmp_path / "segments.parquet")
    dataset = HyperDataset(tmp_path / "segments.parquet", tmp_path / "recordings.csv")
    assert found(validate_dataset(dataset, progress=False)) == {
        ("bad duration", "segments.parquet", 1),
        ("end past the recording", "segments.parquet", 3),
    }


def test_the_tolerance_and_the_rate_are_options(tmp_path: Path) -> None:
    write_good(tmp_path)
    dataset = HyperDataset.load(tmp_path)
    assert found(validate_dataset(dataset, end_tolerance=0.01, progress=False)) == {
        ("end past the recording", "segments.csv", 5)
    }
    rates = validate_dataset(dataset, sample_freq=8000, progress=False)
    assert found(rates) == {("wrong sample rate", "recordings.csv", row) for row in (1, 2, 3)}


def test_without_opening_files_only_the_tables_are_checked(tmp_path: Path) -> None:
    write_good(tmp_path)
    (tmp_path / "r0.wav").unlink()
    dataset = HyperDataset.load(tmp_path)
    assert validate_dataset(dataset, read_audio=False) == []
    assert found(validate_dataset(dataset, progress=False)) == {("unreadable file", "recordings.csv", 1)}


def test_damage_inside_a_file_is_found_by_decoding(tmp_path: Path) -> None:
    write_good(tmp_path)
    audio = np.zeros(2 * RATE)
    audio[5000] = np.nan
    soundfile.write(tmp_path / "r1.wav", audio, RATE, subtype="FLOAT")
    dataset = HyperDataset.load(tmp_path)
    assert validate_dataset(dataset, progress=False) == []
    problems = validate_dataset(dataset, decode=True, progress=False)
    assert found(problems) == {("unreadable file", "recordings.csv", 2)} and "NaN" in problems[0].message


def test_missing_and_malformed_files_are_problems_among_others(tmp_path: Path) -> None:
    write_good(tmp_path)
    (tmp_path / "speaker.csv").write_text("id,class_idx\np0,0\np1,5\n")
    (tmp_path / "trials.csv").write_text("modelid,label\nm0,target\n")
    (tmp_path / "enroll.csv").unlink()
    (tmp_path / "vad.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "recordings.csv").write_text("name,storage_path\nx,y\n")
    assert found(validate_dataset(HyperDataset.load(tmp_path), progress=False)) == {
        ("bad class table", "speaker.csv", None),
        ("malformed file", "trials.csv", None),
        ("missing file", "enroll.csv", None),
        ("malformed file", "vad.csv", None),
        ("malformed file", "recordings.csv", None),
    }


def test_a_malformed_row_of_a_list_does_not_hide_the_other_rows(tmp_path: Path) -> None:
    write_good(tmp_path)
    (tmp_path / "trials.csv").write_text(
        "modelid,segmentid,targettype\nm0,s3,perhaps\nmX,s3,target\n,s2,target\n,s2,target\nm0,sX,\nm0,,target\n"
    )
    (tmp_path / "enroll.csv").write_text("modelid,segmentid\nm0,s0\n,s1\n,s1\nm0,sX\n")
    assert found(validate_dataset(HyperDataset.load(tmp_path), progress=False)) == {
        *{("malformed row", "trials.csv", row) for row in (1, 3, 4, 5, 6)},
        *{("malformed row", "enroll.csv", row) for row in (2, 3)},
        ("unknown trial model", "trials.csv", 2),
        ("unknown trial segment", "trials.csv", 5),
        ("unknown enrolment segment", "enroll.csv", 4),
    }
    lists = {"trials.csv": "m0 s3 target\nm0 s3\nmX s2 target\nm0 s2 x\n", "enroll.csv": "m0 s0\nm1\nm2 s1 sX\n"}
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
    assert found(validate_dataset(HyperDataset.load(tmp_path), progress=False)) == {
        ("malformed row", "trials.csv", 2),
        ("malformed row", "trials.csv", 4),
        ("unknown trial model", "trials.csv", 3),
        ("malformed row", "enroll.csv", 2),
        ("unknown enrolment segment", "enroll.csv", 4),
    }


def test_a_class_table_without_a_column(tmp_path: Path) -> None:
    write_good(tmp_path)
    dataset = HyperDataset(tmp_path / "segments.csv", classes={"language": tmp_path / "speaker.csv"})
    assert found(validate_dataset(dataset)) == {("missing column", "segments.csv", None)}


def test_manifests_in_memory_can_be_checked() -> None:
    segments = SegmentSet.from_rows([{"id": "a", "recording": "r", "duration": 3.0}])
    recordings = RecordingSet.from_rows([{"id": "r", "storage_path": "r.wav", "duration": 1.0}])
    problems = validate_dataset(HyperDataset(segments, recordings), read_audio=False)
    assert found(problems) == {("end past the recording", "segments", 1)}


def test_stats(tmp_path: Path) -> None:
    write_good(tmp_path)
    stats = dataset_stats(HyperDataset.load(tmp_path))
    assert stats["segments"]["count"] == 5 and stats["segments"]["unknown_duration"] == 1
    assert stats["segments"]["hours"] == pytest.approx(5.015 / 3600)
    assert stats["segments"]["duration_percentiles"]["100"] == 2.0
    assert stats["recordings"]["sample_freq"] == {RATE: 3} and stats["recordings"]["unused"] == 0
    assert stats["classes"]["speaker"] == {
        "in_table": 2,
        "in_segments": 2,
        "segments_without": 0,
        "segments_per_class": {"min": 2, "median": 2.5, "max": 3},
    }
    assert stats["trials"]["main"] == {"trials": 3, "models": 2, "segments": 2, "target": 2, "nontarget": 1}
    assert stats["enrollments"]["main"] == {"models": 2, "segments": 2}
