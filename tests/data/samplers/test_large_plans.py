"""What makes plans of many millions of items: random orders by sorting, and batches cut in many places at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.data import lane_cut
from hyperion_lite.data.batch_limits import Limits
from hyperion_lite.data.batch_packing import pack_in_order
from hyperion_lite.data.class_weights import order_by_class
from hyperion_lite.data.random_order import random_order, row_offsets
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from tests.data.samplers.test_seg_sampler import segments_of


def test_a_random_order_is_a_permutation_that_the_generator_decides() -> None:
    first, again, other = (random_order(np.random.default_rng(seed), 5000) for seed in (1, 1, 2))
    assert first.dtype == np.int32 and np.array_equal(np.sort(first), np.arange(5000))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert len(random_order(np.random.default_rng(1), 0)) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1 << 15, (1 << 15) + 1, 100_001])
def test_a_random_order_is_that_of_the_upper_halves_of_random_numbers(count: int) -> None:
    keys = np.random.default_rng(count).integers(0, 2**64, size=count, dtype=np.uint64) >> np.uint64(32)
    order = random_order(np.random.default_rng(count), count)
    assert order.dtype == np.int32 and np.array_equal(order, np.argsort(keys, kind="stable"))


def test_every_place_of_a_random_order_is_as_likely() -> None:
    rng = np.random.default_rng(0)
    orders = np.stack([random_order(rng, 4) for _ in range(4000)])
    counts = np.stack([np.bincount(orders[:, place], minlength=4) for place in range(4)])
    assert np.abs(counts - 1000).max() < 150


def test_row_offsets_count_in_the_narrowest_type() -> None:
    assert row_offsets(np.array([2, 0, 3], np.int32)).tolist() == [0, 2, 2, 5]
    assert row_offsets(np.array([2, 0, 3], np.int32)).dtype == np.int32
    assert row_offsets(np.array([2**30, 2**30, 5], np.int32)).tolist()[-1] == 2**31 + 5


@given(st.lists(st.integers(0, 6), max_size=60))
@settings(max_examples=40, deadline=None)
def test_segments_by_class_are_in_the_order_of_a_stable_sort(classes: list[int]) -> None:
    array = np.array(classes, np.int32)
    assert np.array_equal(order_by_class(array, 7), np.argsort(array, kind="stable"))


@given(
    seed=st.integers(0, 10_000),
    spread=st.floats(0.0, 3.0),
    count=st.integers(256, 700),
    budget=st.floats(8.0, 120.0),
    size=st.none() | st.integers(1, 12),
    step=st.sampled_from([1, 2, 3]),
)
@settings(max_examples=60, deadline=None)
def test_lanes_lose_nothing_and_cut_as_one_would_from_left_to_right(
    seed: int, spread: float, count: int, budget: float, size: int | None, step: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = np.minimum(np.exp(spread * rng.standard_normal(count)), budget)
    order = rng.permutation(count)
    limits = Limits(size, budget, 1, step, None, None)
    shuffled, reordered = order.copy(), lengths[order]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_cut, "LANE", 64)
        offsets = lane_cut.cut_lanes(shuffled, reordered, limits)
    assert np.array_equal(np.sort(shuffled), np.arange(count)) and np.array_equal(reordered, lengths[shuffled])
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        batch = reordered[begin:end]
        assert end > begin
        assert len(batch) == 1 or len(batch) % step == 0
        assert len(batch) == 1 or len(batch) * batch.max() <= budget * (1 + 1e-9)
        assert size is None or len(batch) <= size
        if step == 1 and (size is None or len(batch) < size):
            # the item that followed in the order did not fit
            position = int(np.flatnonzero(order == shuffled[end - 1])[0]) + 1
            if position < count:
                assert (len(batch) + 1) * max(batch.max(), lengths[order[position]]) > budget * (1 - 1e-9)


def test_a_plan_of_many_items_is_cut_in_lanes_and_holds_each_item_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    cut_lanes = lane_cut.cut_lanes
    monkeypatch.setattr(
        "hyperion_lite.data.batch_packing.cut_lanes", lambda order, *rest: calls.append(1) or cut_lanes(order, *rest)
    )
    lengths = np.random.default_rng(0).uniform(2.0, 20.0, 4 * lane_cut.LANE + 17).astype(np.float32)
    limits = Limits(None, 400.0, 2, 1, None, None)
    packing = pack_in_order(lengths, limits, np.random.default_rng(1), True, False)
    assert calls == [1]
    assert np.array_equal(np.sort(packing.order), np.arange(len(lengths)))
    sizes = np.diff(packing.offsets)
    longest = np.maximum.reduceat(lengths[packing.order], packing.offsets[:-1])
    assert packing.offsets[-1] == len(lengths) and sizes.min() >= 2 and (sizes * longest <= 400.0 * (1 + 1e-6)).all()
    assert packing.last[-1] and not packing.last[:-2].any()


def test_a_position_in_a_plan_of_another_kind_is_refused() -> None:
    sampler = SegSamplerFactory.create(segments_of(*[1.0] * 8), "seg_sampler", max_batch_size=2)
    state = sampler.state_dict()
    assert state["config"]["plan_version"] >= 2
    older = {**state, "config": {**state["config"], "plan_version": 1}, "config_hash": "0" * 32}
    with pytest.raises(ValueError, match="plan_version was 1"):
        sampler.load_state_dict(older)
