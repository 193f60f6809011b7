"""Parts of a data set: every manifest follows the segments, and paths survive a move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hyperion_lite.data.manifests import EnrollmentMap, RecordingSet, SegmentSet, TrialKey, VADSet
from hyperion_lite.data.manifests.hyper_dataset import HyperDataset
from hyperion_lite.data.manifests.validate import validate_dataset


@pytest.fixture
def dataset(tmp_path: Path) -> HyperDataset:
    ids = [f"s{i}" for i in range(8)]
    segments = SegmentSet.from_rows([{"id": id, "duration": 2.0, "speaker": f"k{i % 4}"} for i, id in enumerate(ids)])
    recordings = RecordingSet.from_rows([{"id": id, "storage_path": f"{id}.wav", "duration": 2.0} for id in ids])
    folder = tmp_path / "whole"
    HyperDataset.from_segments(segments, recordings).save(folder)
    (folder / "frames").mkdir()
    for id in ids:
        np.save(folder / "frames" / f"{id}.npy", np.array([0, 1, 1]))
    VADSet.from_rows([{"id": id, "storage_path": f"frames/{id}.npy"} for id in ids]).save(folder / "vad.csv")
    EnrollmentMap.from_mapping({"k0": ["s0"], "k1": ["s1", "s5"], "k2": ["s2"]}).save(folder / "enrollments.csv")
    TrialKey.from_pairs([("k0", "s4", True), ("k1", "s6", False), ("k2", "s6", True)]).save(folder / "trials.csv")
    with open(folder / "dataset.yaml", "a") as file:
        file.write("vad: vad.csv\nenrollments: {main: enrollments.csv}\ntrials: {main: trials.csv}\n")
    return HyperDataset.load(folder)


def test_all_manifests_of_a_part_speak_of_its_segments(dataset: HyperDataset) -> None:
    part = dataset.filter(["s1", "s2", "s6"])
    assert part.recordings is not None and part.recordings.ids == ["s1", "s2", "s6"]
    assert part.vad is not None and part.vad.ids == ["s1", "s2", "s6"]
    assert part.enrollments["main"].pairs == [("k1", "s1"), ("k2", "s2")]
    assert list(part.trials["main"]) == [("k1", "s6"), ("k2", "s6")]
    assert part.trials["main"].target.tolist() == [False, True]  # type: ignore[attr-defined]
    assert part.classes["speaker"].class_ids == dataset.classes["speaker"].class_ids


def test_trials_of_segments_need_both(dataset: HyperDataset) -> None:
    trials = TrialKey.from_pairs([("s0", "s1", True), ("s0", "s2", False), ("s3", "s1", False)])
    part = HyperDataset(dataset.segments, trials={"pairs": trials}).filter(["s0", "s1"])
    assert list(part.trials["pairs"]) == [("s0", "s1")]


def test_both_parts_of_a_validation_split_are_valid(dataset: HyperDataset, tmp_path: Path) -> None:
    for name, part in zip(("train", "val"), dataset.split_validation(0.25), strict=True):
        part.save(tmp_path / name)
        assert validate_dataset(HyperDataset.load(tmp_path / name), read_audio=False) == []


def test_paths_of_speech_frames_survive_a_move(dataset: HyperDataset, tmp_path: Path) -> None:
    dataset.save(tmp_path / "elsewhere" / "below")
    moved = HyperDataset.load(tmp_path / "elsewhere" / "below")
    assert moved.vad is not None and moved.vad.intervals("s3").tolist() == [[0.01, 0.03]]
