"""Class weights, groups of a batch, and hard prototypes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hyperion_lite.data.class_weighted_random_seg_chunk_sampler import ClassWeightedRandomSegChunkSampler
from hyperion_lite.data.hyper_sampler import EmptySamplerError
from hyperion_lite.data.manifests import ClassInfo, SegmentSet
from tests.contracts.sampler_tester import FakeDataset, FakeSegments, epoch_of, fake_dataset, plain

OPTIONS: dict[str, Any] = {"min_chunk_length": 2.0, "max_batch_size": 20, "class_name": "speaker"}


def speakers(dataset: FakeDataset) -> dict[str, str]:
    return dict(zip(dataset.segments.ids, dataset.segments.column("speaker").tolist(), strict=True))


def class_info(weights: list[float]) -> ClassInfo:
    return ClassInfo.from_pandas(
        pd.DataFrame(
            {"id": [f"spk{i}" for i in range(len(weights))], "class_idx": range(len(weights)), "weights": weights}
        )
    )


def frequencies(sampler: ClassWeightedRandomSegChunkSampler, dataset: FakeDataset) -> np.ndarray:
    of = speakers(dataset)
    counts = Counter(of[k.segment_id] for epoch in range(10) for b in epoch_of(sampler, epoch) for k in b)
    values = np.array([counts[f"spk{i}"] for i in range(len(set(of.values())))], dtype=float)
    return values / values.sum()


def test_classes_are_drawn_by_weight() -> None:
    dataset = fake_dataset(200, num_classes=4)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    table = class_info(weights.tolist())
    for exponent, expected in ((1.0, weights), (0.0, np.full(4, 0.25)), (0.5, weights**0.5 / (weights**0.5).sum())):
        sampler = ClassWeightedRandomSegChunkSampler(dataset, table, weight_exponent=exponent, **OPTIONS)
        assert np.abs(frequencies(sampler, dataset) - expected).max() < 0.02
    uniform = ClassWeightedRandomSegChunkSampler(dataset, table, weight_mode="uniform", **OPTIONS)
    assert np.abs(frequencies(uniform, dataset) - 0.25).max() < 0.02


def test_data_prior_is_the_total_length() -> None:
    dataset = FakeDataset(
        FakeSegments(
            {
                "id": [f"s{i}" for i in range(60)],
                "duration": [4.0] * 30 + [8.0] * 30,
                "speaker": ["spk0"] * 30 + ["spk1"] * 30,
            }
        )
    )
    sampler = ClassWeightedRandomSegChunkSampler(dataset, weight_mode="data-prior", **OPTIONS)
    assert np.abs(frequencies(sampler, dataset) - [1 / 3, 2 / 3]).max() < 0.02


def test_segments_of_a_class_are_drawn_by_length_or_weight() -> None:
    table = {
        "id": [f"s{i}" for i in range(3)],
        "duration": [4.0, 8.0, 4.0],
        "speaker": ["spk0", "spk0", "spk1"],
        "weights": [3.0, 1.0, 1.0],
    }
    dataset = FakeDataset(FakeSegments(table))
    for mode, ratio in (("uniform", 1.0), ("data-prior", 2.0), ("custom", 1 / 3)):
        sampler = ClassWeightedRandomSegChunkSampler(
            dataset, seg_weight_mode=mode, num_chunks_per_seg_epoch=2000, **OPTIONS
        )
        counts = Counter(k.segment_id for batch in sampler for k in batch)
        assert counts["s1"] / counts["s0"] == pytest.approx(ratio, rel=0.15)


def test_a_batch_is_made_of_groups_of_distinct_classes() -> None:
    dataset = fake_dataset(140, num_classes=14)
    of = speakers(dataset)
    sampler = ClassWeightedRandomSegChunkSampler(dataset, num_segs_per_class=2, num_chunks_per_seg=2, **OPTIONS)
    for batch in sampler:
        per_class = Counter(of[k.segment_id] for k in batch)
        assert per_class == dict.fromkeys(per_class, 4) and len(per_class) == 5
        assert set(Counter(k.segment_id for k in batch).values()) == {2}
        assert len({k.start for k in batch}) == len(batch)
    keys = [(k.segment_id, k.occurrence) for batch in sampler for k in batch]
    assert len(set(keys)) == len(keys)


def test_small_classes_give_segments_again() -> None:
    dataset = fake_dataset(7, num_classes=7)
    sampler = ClassWeightedRandomSegChunkSampler(dataset, num_segs_per_class=3, **{**OPTIONS, "max_batch_size": 12})
    for batch in sampler:
        assert set(Counter(k.segment_id for k in batch).values()) == {3}


def test_classes_without_usable_segments_are_never_drawn() -> None:
    dataset = fake_dataset(70)
    duration = dataset.segments.column("duration")
    duration[np.arange(70) % 7 == 2] = 1.0
    dataset.segments._columns["duration"] = duration
    sampler = ClassWeightedRandomSegChunkSampler(dataset, **OPTIONS)
    of = speakers(dataset)
    assert {of[k.segment_id] for batch in sampler for k in batch} == {f"spk{i}" for i in range(7) if i != 2}


def test_class_tables_of_a_data_set_and_of_segment_sets() -> None:
    dataset = fake_dataset(70)
    weights = [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    dataset.class_infos = {"speaker": class_info(weights)}
    table = SegmentSet.from_pandas(pd.DataFrame(dataset.segments._columns))
    ours = ClassWeightedRandomSegChunkSampler(dataset, **OPTIONS)
    theirs = ClassWeightedRandomSegChunkSampler(table, class_info(weights), **OPTIONS)
    assert plain(ours) == plain(theirs)
    assert "spk0" not in {speakers(dataset)[k.segment_id] for batch in ours for k in batch}


def test_wrong_classes_and_weights_are_named() -> None:
    dataset = fake_dataset(70)
    with pytest.raises(ValueError, match=r"segment 'seg00006' .* has speaker 'spk6', which is not in the class table"):
        ClassWeightedRandomSegChunkSampler(dataset, class_info([1.0] * 6), **OPTIONS)
    with pytest.raises(ValueError, match="no column 'speakers', did you mean 'speaker'"):
        ClassWeightedRandomSegChunkSampler(dataset, **{**OPTIONS, "class_name": "speakers"})
    with pytest.raises(ValueError, match=r"weight_mode must be one of .*did you mean 'uniform'"):
        ClassWeightedRandomSegChunkSampler(dataset, weight_mode="uniforms", **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_segs_per_class must be at least 1"):
        ClassWeightedRandomSegChunkSampler(dataset, num_segs_per_class=0, **OPTIONS)
    with pytest.raises(EmptySamplerError, match=r"a batch holds 20 .* but a group has 24"):
        ClassWeightedRandomSegChunkSampler(dataset, num_segs_per_class=24, **OPTIONS)
    missing = fake_dataset(70)
    missing.segments._columns["speaker"][3] = None
    with pytest.raises(ValueError, match=r"segment 'seg00003' .* has no speaker"):
        ClassWeightedRandomSegChunkSampler(missing, **OPTIONS)


def affinity(seed: int, classes: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(classes, classes)).astype(np.float32)


@pytest.fixture(name="mining")
def _mining() -> ClassWeightedRandomSegChunkSampler:
    return make_mining()


def make_mining(**more: Any) -> ClassWeightedRandomSegChunkSampler:
    return ClassWeightedRandomSegChunkSampler(
        fake_dataset(120, num_classes=12), num_hard_prototypes=3, **OPTIONS, **more
    )


def test_hard_prototypes_meet_in_a_batch(mining: ClassWeightedRandomSegChunkSampler) -> None:
    before = len(mining)
    matrix = affinity(0)
    mining.set_hard_prototypes(torch.from_numpy(matrix))
    assert len(mining) == before
    table = mining.hard_prototypes
    assert table is not None and table[:, 0].tolist() == list(range(12))
    best = np.argsort(-np.where(np.eye(12, dtype=bool), np.inf, matrix), axis=1)[:, :3]
    assert (table == best).all()
    numbers = {
        id: mining.class_segments.class_ids.index(name)
        for id, name in speakers(fake_dataset(120, num_classes=12)).items()
    }
    for batch in mining:
        classes = [numbers[k.segment_id] for k in batch]
        for group in range(0, len(classes), 3):
            assert classes[group : group + 3] == table[classes[group]].tolist()


def test_new_prototypes_wait_for_the_next_epoch(mining: ClassWeightedRandomSegChunkSampler) -> None:
    mining.set_hard_prototypes(affinity(0))
    whole = plain(mining)
    following = epoch_of(make_mining(affinity_matrix=affinity(1)), 1)
    iterator = iter(mining)
    taken = [next(iterator) for _ in range(2)]
    mining.set_hard_prototypes(affinity(1))
    state = mining.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert plain(taken) + plain(iterator) == whole
    assert plain(epoch_of(mining, 1)) == plain(following)

    resumed = make_mining()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert plain(resumed) == whole[2:]
    assert plain(epoch_of(resumed, 1)) == plain(following)


def test_prototypes_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "affinity.npy", affinity(0))
    from_file = make_mining(affinity_matrix=str(tmp_path / "affinity.npy"))
    from_array = make_mining(affinity_matrix=affinity(0))
    assert plain(from_file) == plain(from_array)
    assert from_file.get_config()["affinity_matrix"] == str(tmp_path / "affinity.npy")
    assert from_array.get_config()["affinity_matrix"] is None


def test_wrong_affinities() -> None:
    with pytest.raises(ValueError, match=r"must be \(12, 12\)"):
        make_mining(affinity_matrix=affinity(0, 5))
    with pytest.raises(ValueError, match="num_hard_prototypes of at least 2"):
        ClassWeightedRandomSegChunkSampler(fake_dataset(), affinity_matrix=affinity(0, 7), **OPTIONS)
    with pytest.raises(ValueError, match="more than the 7 classes"):
        ClassWeightedRandomSegChunkSampler(
            fake_dataset(), num_hard_prototypes=8, affinity_matrix=affinity(0, 7), **OPTIONS
        )
