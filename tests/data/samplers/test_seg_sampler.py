"""What is particular to batches of whole segments."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.data.bucketing_seg_sampler import BucketingSegSampler
from hyperion_lite.data.hyper_sampler import EmptySamplerError
from hyperion_lite.data.manifests import SegmentSet
from hyperion_lite.data.seg_sampler import SegSampler
from tests.contracts.sampler_tester import FakeDataset, FakeSegments, SamplerCase, fake_dataset, originals


def segments_of(*durations: float) -> FakeDataset:
    return FakeDataset(FakeSegments({"id": [f"s{i}" for i in range(len(durations))], "duration": list(durations)}))


def sizes(sampler: SegSampler) -> list[int]:
    return [len(batch) for batch in sampler]


def test_without_shuffle_manifest_order_is_kept() -> None:
    sampler = SegSampler(segments_of(1, 3, 2, 5, 4), max_batch_size=2, sort_by_length=False)
    assert list(sampler) == [["s0", "s1"], ["s2", "s3"], ["s4"]]


def test_batches_are_sorted_by_decreasing_length() -> None:
    sampler = SegSampler(segments_of(1, 3, 2, 5, 4), max_batch_size=3)
    assert list(sampler) == [["s1", "s2", "s0"], ["s3", "s4"]]


def test_length_limit_counts_padding() -> None:
    sampler = SegSampler(segments_of(2, 2, 2, 8, 2, 2), max_batch_length=16.0, sort_by_length=False)
    assert list(sampler) == [["s0", "s1", "s2"], ["s3", "s4"], ["s5"]]


def test_min_batch_size_alone_is_the_size() -> None:
    assert sizes(SegSampler(segments_of(*[3.0] * 7), min_batch_size=3)) == [3, 3, 1]


def test_no_limit_gives_single_segments() -> None:
    assert sizes(SegSampler(segments_of(1, 2, 3))) == [1, 1, 1]


@pytest.mark.parametrize("count", [5, 9, 13, 17])
def test_training_batches_of_one_are_avoided(count: int) -> None:
    for world_size in (1, 2):
        ranks = [
            SegSampler(segments_of(*[3.0] * count), max_batch_size=4, shuffle=True, rank=r, num_replicas=world_size)
            for r in range(world_size)
        ]
        parts = [list(sampler) for sampler in ranks]
        assert min(len(batch) for part in parts for batch in part) == 2
        assert sum(not k.repeat for part in parts for batch in part for k in batch) == count


def test_single_segments_can_be_asked_for() -> None:
    assert sizes(SegSampler(segments_of(1, 2, 3), max_batch_size=1, shuffle=True)) == [1, 1, 1]
    assert 1 in sizes(SegSampler(segments_of(9, 9, 9), min_batch_size=1, max_batch_length=10.0, shuffle=True))


def test_segments_that_fit_only_alone_are_left_out_of_training_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    dataset = segments_of(2, 2, 2, 9, 2, 30)
    with caplog.at_level(logging.WARNING):
        sampler = SegSampler(dataset, max_batch_length=16.0, shuffle=True)
    assert "2 of 6 segments do not fit" in caplog.text and "min_batch_size=1" in caplog.text
    assert {k for batch in sampler for k in batch} == {"s0", "s1", "s2", "s4"}
    assert sampler.account().dropped == {"too long for the batch limits": 2}
    with pytest.raises(EmptySamplerError, match=r"2 segments do not fit .*raise max_batch_length to 60 or more"):
        SegSampler(dataset, max_batch_length=16.0, shuffle=True, sample_all_segments=True)
    assert len([k for batch in SegSampler(dataset, max_batch_length=60.0, shuffle=True) for k in batch]) == 6


def test_nothing_fits() -> None:
    with pytest.raises(EmptySamplerError, match="no segment fits"):
        SegSampler(segments_of(5, 6), max_batch_length=4.0)


def test_drop_last_that_leaves_nothing_is_an_error() -> None:
    with pytest.raises(EmptySamplerError, match="last batch incomplete"):
        SegSampler(segments_of(1, 2, 3), max_batch_size=8, drop_last=True)


def test_drop_last_drops_and_counts() -> None:
    sampler = SegSampler(fake_dataset(61), max_batch_size=8, drop_last=True, shuffle=True)
    assert sizes(sampler) == [8] * 7
    assert sampler.account().dropped == {"last batch incomplete": 5}


def test_sample_all_segments_keeps_its_promise() -> None:
    sampler = SegSampler(
        fake_dataset(61), max_batch_size=8, drop_last=True, max_batches_per_epoch=2, sample_all_segments=True
    )
    assert len({k for batch in sampler for k in batch}) == 61


def test_epoch_end_is_logged_by_rank_0_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hyperion_lite.data.hyper_sampler"):
        list(SegSampler(fake_dataset(10), max_batch_size=4, rank=1, num_replicas=2))
        assert not caplog.records
        list(SegSampler(fake_dataset(10), max_batch_size=4, rank=0, num_replicas=2))
    assert "epoch 0: 3 batches, 10 items from 10 of 10 segments" in caplog.text


def test_size_that_ranks_do_not_divide_is_rounded_down_and_cannot_be_resumed_elsewhere() -> None:
    dataset = fake_dataset(61)
    one = SegSampler(dataset, max_batch_size=10, rank=0, num_replicas=1)
    four = [SegSampler(dataset, max_batch_size=10, rank=r, num_replicas=4) for r in range(4)]
    assert {len(batch) for batch in four[0]} == {2}
    with pytest.raises(ValueError, match="batches of 10 items for 1 ranks, which 4 ranks cannot share"):
        four[0].load_state_dict(one.state_dict())
    # the other way round the interrupted epoch is finished with its 8 items a batch
    four[0].set_epoch(1, 2)
    one.load_state_dict(four[0].state_dict())
    rest = list(one)
    assert len(rest[0]) == 8
    one.set_epoch(2)
    assert len(next(iter(one))) == 10


def test_length_limit_that_more_ranks_cannot_share_refuses_the_state() -> None:
    dataset = segments_of(*[10.0] * 40)
    saved = SegSampler(dataset, max_batch_length=40.0, rank=0, num_replicas=1).state_dict()
    SegSampler(dataset, max_batch_length=40.0, rank=0, num_replicas=4).load_state_dict(saved)
    eight = SegSampler(dataset, max_batch_length=80.0, rank=0, num_replicas=8)
    wide = SegSampler(dataset, max_batch_length=80.0, rank=0, num_replicas=1)
    eight.load_state_dict(wide.state_dict())
    with pytest.raises(EmptySamplerError, match=r"no segment fits max_batch_length=40\.0 shared by 8 rank"):
        SegSampler(dataset, max_batch_length=40.0, rank=0, num_replicas=8)
    mixed = segments_of(*[10.0] * 40, 2.0, 2.0)
    state = SegSampler(mixed, max_batch_length=40.0, rank=0, num_replicas=1).state_dict()
    with pytest.raises(ValueError, match=r"at most 4 ranks.*max_batch_length=80"):
        SegSampler(mixed, max_batch_length=40.0, rank=0, num_replicas=8).load_state_dict(state)


def test_pandas_and_segment_sets_give_the_same_plan() -> None:
    dataset = fake_dataset(40)
    frame = pd.DataFrame(dataset.segments._columns)
    table = SegmentSet.from_pandas(frame)
    plans = [list(BucketingSegSampler(source, max_batch_length=90.0)) for source in (dataset, frame, table)]
    assert plans[0] == plans[1] == plans[2]
    assert type(plans[2][0][0].segment_id) is str


def test_what_has_no_segments_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot find segments in a list"):
        SegSampler([1, 2], max_batch_size=2)


def test_base_that_cannot_be_bucketed() -> None:
    for base in ("random_seg_chunk_sampler", "bucketing_seg_sampler", "nonsense", dict):
        with pytest.raises(ValueError, match="base sampler"):
            BucketingSegSampler(fake_dataset(), base_sampler=base, max_batch_size=4)  # type: ignore[arg-type]
    assert BucketingSegSampler(fake_dataset(), base_sampler=SegSampler, max_batch_size=4).get_config()[
        "base_sampler"
    ] == (  # type: ignore[arg-type]
        "seg_sampler"
    )
    with pytest.raises(ValueError, match="num_buckets must be at least 1"):
        BucketingSegSampler(fake_dataset(), num_buckets=0, max_batch_size=4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.5, 30.0), min_size=1, max_size=50),
    st.none() | st.integers(1, 20),
    st.none() | st.floats(30.0, 300.0),
    st.booleans(),
    st.booleans(),
    st.integers(1, 5),
    st.integers(0, 3),
    st.sampled_from([SegSampler, BucketingSegSampler]),
)
def test_any_manifest_and_limits(
    durations: list[float],
    size: int | None,
    length: float | None,
    shuffle: bool,
    drop_last: bool,
    world_size: int,
    epoch: int,
    make: type[SegSampler],
) -> None:
    options = {"max_batch_size": size, "max_batch_length": length, "shuffle": shuffle, "drop_last": drop_last}
    case = SamplerCase(make, options, dataset=segments_of(*durations))
    try:
        samplers = case.ranks(world_size)
        parts = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            parts.append(list(sampler))
    except EmptySamplerError:
        return
    account = samplers[0].account()
    # without limits batches have one segment, or two while training
    size = size or (None if length else 2 if shuffle else 1)
    assert {len(part) for part in parts} == {len(samplers[0])} == {account.num_batches}
    used = sum((originals(batch) for part in parts for batch in part), start=originals([]))
    assert max(used.values()) == 1
    assert sum(used.values()) + sum(account.dropped.values()) == len(durations)
    assert account.repeated == sum(k.repeat for part in parts for batch in part for k in batch)
    for part in parts:
        for batch in part:
            assert size is None or len(batch) <= max(1, size // world_size)
            assert not shuffle or len(batch) > 1 or (size or 2 * world_size) < 2 * world_size
    middle = account.num_batches // 2
    samplers[0].set_epoch(epoch, middle)
    assert list(samplers[0]) == parts[0][middle:]


def test_large_epochs_keep_one_plan_only() -> None:
    sampler = SegSampler(fake_dataset(5000), max_batch_size=50, shuffle=True)
    plans = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        plans.append(sampler.plan())
        assert sampler._plan_cache is not None and sampler._plan_cache[1] is plans[-1]
    assert not np.array_equal(plans[0].batch(0).segments, plans[1].batch(0).segments)


@pytest.mark.parametrize("position", [{"epoch": 1.5}, {"epoch": "1"}, {"epoch": 1, "batch": 0.5}, {"epoch": -1}])
def test_a_position_that_is_no_whole_number_is_refused(position: dict) -> None:
    sampler = SegSampler(segments_of(1, 3, 2), max_batch_size=2)
    with pytest.raises(ValueError, match=r"epoch|batch"):
        sampler.set_epoch(**position)
    assert sampler.epoch == 0 and sampler.start_batch == 0
    sampler.set_epoch(np.int64(2), batch=np.int32(1))
    assert sampler.epoch == 2 and type(sampler.epoch) is int
