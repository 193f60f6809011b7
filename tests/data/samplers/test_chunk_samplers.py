"""What is particular to random chunks and to chunks that cover segments."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.data.chunk_options import ChunkOptions, place
from hyperion_lite.data.class_weighted_random_seg_chunk_sampler import ClassWeightedRandomSegChunkSampler
from hyperion_lite.data.hyper_sampler import EmptySamplerError
from hyperion_lite.data.random_seg_chunk_sampler import RandomSegChunkSampler
from hyperion_lite.data.seg_chunk_sampler import SegChunkSampler
from hyperion_lite.data.segment_cuts import SegmentCuts
from tests.contracts.sampler_tester import (
    FakeDataset,
    FakeSegments,
    SamplerCase,
    epoch_of,
    fake_dataset,
    originals,
    plain,
)


def segments_of(*durations: float) -> FakeDataset:
    return FakeDataset(FakeSegments({"id": [f"s{i}" for i in range(len(durations))], "duration": list(durations)}))


def test_each_segment_gives_its_number_of_chunks() -> None:
    dataset = fake_dataset(50)
    fixed = RandomSegChunkSampler(dataset, 2.0, 4.0, max_batch_length=80.0, num_chunks_per_seg_epoch=3)
    counts = Counter(k.segment_id for batch in fixed for k in batch)
    assert counts == dict.fromkeys(dataset.segments.ids, 3)
    assert {(k.segment_id, k.occurrence) for batch in fixed for k in batch} == {
        (id, n) for id in dataset.segments.ids for n in range(3)
    }
    auto = RandomSegChunkSampler(dataset, 2.0, 4.0, max_batch_length=80.0)
    counts = Counter(k.segment_id for batch in auto for k in batch)
    for id, duration in zip(dataset.segments.ids, dataset.segments.column("duration"), strict=True):
        assert counts[id] == max(1, round(duration / 3.0))


def test_fraction_of_the_segments_changes_from_epoch_to_epoch() -> None:
    sampler = RandomSegChunkSampler(fake_dataset(60), 2.0, max_batch_size=6, num_chunks_per_seg_epoch=0.5)
    first = {k.segment_id for batch in sampler for k in batch}
    sampler.set_epoch(1)
    second = {k.segment_id for batch in sampler for k in batch}
    assert len(first) == len(second) == 30 and first != second


def test_chunks_of_a_batch_have_one_length_and_fill_the_budget() -> None:
    sampler = RandomSegChunkSampler(fake_dataset(200, low=5.0), 2.0, 4.0, max_batch_length=80.0)
    batches = list(sampler)
    lengths = [{k.duration for k in batch} for batch in batches]
    assert all(len(one) == 1 for one in lengths)
    drawn = np.array([next(iter(one)) for one in lengths])
    assert drawn.min() < 2.2 and drawn.max() > 3.8
    for batch, length in zip(batches[:-1], drawn, strict=False):
        assert len(batch) == int(80.0 / length) or batch is batches[-2]
    assert sampler.account().padded_share == pytest.approx(0.0, abs=1e-12)


def test_maximum_length_sampling_takes_the_longest_chunks() -> None:
    sampler = RandomSegChunkSampler(fake_dataset(30, low=5.0), 2.0, 4.0, max_batch_size=8, length_sampling="maximum")
    assert {k.duration for batch in sampler for k in batch} == {4.0}


def test_starts_are_spread_over_the_segment() -> None:
    sampler = RandomSegChunkSampler(segments_of(*[10.0] * 4), 2.0, max_batch_size=50, num_chunks_per_seg_epoch=500)
    starts = np.array([k.start for batch in sampler for k in batch])
    assert len(np.unique(starts)) == len(starts)
    assert np.abs(np.histogram(starts, 8, (0.0, 8.0))[0] - 250).max() < 80


@pytest.mark.parametrize("make", [RandomSegChunkSampler, SegChunkSampler])
def test_short_segments_follow_the_policy(make: type) -> None:
    dataset = segments_of(1.0, 6.0, 6.0, 0.5)
    options = {"min_chunk_length": 2.0, "max_chunk_length": 3.0, "max_batch_length": 30.0}
    dropping = make(dataset, **options)
    assert {k.segment_id for batch in dropping for k in batch} == {"s1", "s2"}
    assert dropping.account().dropped == {"shorter than min_chunk_length": 2}
    assert dropping.account().short == 0
    for policy in ("whole", "pad"):
        sampler = make(dataset, short_policy=policy, **options)
        keys = [k for batch in sampler for k in batch]
        short = {k.segment_id: k for k in keys if k.duration < 2.0}
        assert {id: (k.start, k.duration) for id, k in short.items()} == {"s0": (0.0, 1.0), "s3": (0.0, 0.5)}
        assert all((k.pad_to is not None and 2.0 <= k.pad_to <= 3.0) == (policy == "pad") for k in keys)
        assert sampler.account().short == 2 and sampler.account().dropped == {}
    with pytest.raises(EmptySamplerError, match="short_policy"):
        make(segments_of(1.0, 0.5), **options)


@pytest.mark.parametrize("make", [RandomSegChunkSampler, SegChunkSampler])
def test_bad_chunk_options(make: type) -> None:
    dataset = fake_dataset()
    for options, message in (
        ({"min_chunk_length": 0.0}, "min_chunk_length must be positive"),
        ({"min_chunk_length": float("nan")}, "min_chunk_length must be positive"),
        ({"min_chunk_length": 4.0, "max_chunk_length": 2.0}, "must not be below"),
        ({"min_chunk_length": 4.0, "length_sampling": "normal"}, "length_sampling must be"),
        ({"min_chunk_length": 4.0, "short_policy": "loop"}, "short_policy must be"),
    ):
        with pytest.raises(ValueError, match=message):
            make(dataset, max_batch_size=8, **options)
    with pytest.raises(EmptySamplerError, match=r"leaves too little for chunks.*raise it to"):
        make(dataset, min_chunk_length=4.0, max_batch_length=10.0, rank=0, num_replicas=4)


def test_bad_numbers_of_chunks() -> None:
    for number in (0, -1.0, float("nan"), float("inf"), "many"):
        with pytest.raises(ValueError, match="positive number or 'auto'"):
            RandomSegChunkSampler(fake_dataset(), 2.0, max_batch_size=8, num_chunks_per_seg_epoch=number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size of the batches is missing"):
        RandomSegChunkSampler(fake_dataset(), 2.0)


def test_min_batch_size_alone_counts_the_longest_chunks() -> None:
    sampler = RandomSegChunkSampler(fake_dataset(200, low=5.0), 2.0, 4.0, min_batch_size=10)
    sizes = [len(batch) for batch in sampler][:-2]
    assert min(sizes) >= 10 and max(sizes) > 15


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.3, 60.0), min_size=1, max_size=30).map(np.array),
    st.floats(0.5, 5.0),
    st.floats(1.0, 3.0),
    st.none() | st.integers(0, 5),
)
def test_cut_segments_covers_each_segment(lengths: np.ndarray, minimum: float, ratio: float, seed: int | None) -> None:
    chunks = ChunkOptions.create(minimum, minimum * ratio)
    rng = None if seed is None else np.random.default_rng(seed)
    cuts_of = SegmentCuts(lengths, chunks, rng)
    segment, durations, starts, number = cuts_of.take(np.arange(len(cuts_of)))
    assert starts is not None and number is not None
    assert (cuts_of.lengths <= durations).all() and (cuts_of.lengths >= durations * (1 - 1e-6)).all()
    found = defaultdict(list)
    for s, start, duration, n in zip(segment, starts, durations, number, strict=True):
        assert n == len(found[s])
        found[s].append((start, duration))
    assert len(found) == len(lengths)
    for s, cuts in found.items():
        end = 0.0
        for start, duration in cuts:
            assert start <= end + 1e-9  # no gap
            assert duration <= chunks.maximum * (1 + 1e-6)
            assert duration >= min(chunks.minimum, lengths[s]) * (1 - 1e-6)
            end = start + duration
        assert end == pytest.approx(lengths[s])


def test_chunks_that_cover_move_between_epochs_but_not_in_number() -> None:
    sampler = SegChunkSampler(fake_dataset(), 2.0, 4.0, max_batch_length=90.0, shuffle=True)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append({(k.segment_id, k.occurrence): (k.start, k.duration) for batch in sampler for k in batch})
    assert epochs[0].keys() == epochs[1].keys()
    assert epochs[0] != epochs[1]
    assert SegChunkSampler(fake_dataset(), 5.0, max_batch_size=8).account().segments_used == sum(
        fake_dataset().segments.column("duration") >= 5.0
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=20).map(np.array), st.floats(1e-3, 100.0), st.integers(0, 9))
def test_placed_chunks_end_inside(lengths: np.ndarray, length: float, seed: int) -> None:
    starts, durations = place(np.random.default_rng(seed), lengths, length)
    assert (starts >= 0).all() and (durations <= lengths).all()
    assert (starts + durations <= lengths).all()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0.5, 30.0), min_size=1, max_size=25),
    st.sampled_from(["drop", "pad", "whole"]),
    st.sampled_from(["uniform", "maximum"]),
    st.floats(1.0, 5.0),
    st.floats(1.0, 3.0),
    st.none() | st.integers(1, 20),
    st.none() | st.floats(10.0, 200.0),
    st.integers(1, 5),
    st.integers(0, 2),
    st.sampled_from([RandomSegChunkSampler, SegChunkSampler, ClassWeightedRandomSegChunkSampler]),
)
def test_any_manifest_and_limits(
    durations: list[float],
    short_policy: str,
    length_sampling: str,
    minimum: float,
    ratio: float,
    size: int | None,
    length: float | None,
    world_size: int,
    epoch: int,
    make: Any,
) -> None:
    dataset = segments_of(*durations)
    dataset.segments._columns["class_id"] = [f"c{i % 3}" for i in range(len(durations))]
    options = {
        "min_chunk_length": minimum,
        "max_chunk_length": minimum * ratio,
        "max_batch_size": size or (None if length else 6),
        "max_batch_length": length,
        "short_policy": short_policy,
        "length_sampling": length_sampling,
        "shuffle": True,
    }
    case = SamplerCase(make, options, dataset=dataset)
    try:
        samplers = case.ranks(world_size)
        parts = [epoch_of(sampler, epoch) for sampler in samplers]
    except EmptySamplerError:
        return
    account = samplers[0].account()
    assert {len(part) for part in parts} == {len(samplers[0])} == {account.num_batches}
    keys = [k for part in parts for batch in part for k in batch]
    assert account.num_items == sum(not k.repeat for k in keys)
    assert account.repeated == sum(k.repeat for k in keys)
    assert account.short == sum(k.duration < minimum * (1 - 1e-6) for k in keys if not k.repeat)
    assert max(sum((originals(batch) for part in parts for batch in part), start=originals([])).values()) == 1
    for step in zip(*parts, strict=True):
        sizes = [len(batch) for batch in step]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) > 1 or (options["max_batch_size"] or 100) < 2 * world_size
    middle = account.num_batches // 2
    assert plain(epoch_of(samplers[0], epoch, middle)) == plain(parts[0][middle:])
