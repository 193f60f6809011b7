"""Cutting items into batches, bucketing them, and dealing them to ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.data import batch_packing
from hyperion_lite.data.batch_buckets import argsort_lengths, bucket_order, pack_by_length, shuffle_batches
from hyperion_lite.data.batch_limits import BatchOptions, EmptySamplerError, Limits, items_per_rank, resolve_limits
from hyperion_lite.data.batch_packing import Packing, cut, pack, pack_in_order
from hyperion_lite.data.batch_split import deal

lengths_of_items = st.lists(st.floats(1.0, 20.0), min_size=1, max_size=80).map(np.array)


def limits(size: int | None = None, length: float | None = None, step: int = 1, smallest: int = 1) -> Limits:
    return Limits(size, length, smallest, step, length, None)


def cut_one_by_one(lengths: np.ndarray, limit: Limits) -> list[int]:
    """The definition: take items as long as the batch with the next one is within the limits."""
    offsets, begin = [0], 0
    while begin < len(lengths):
        size, longest = 0, 0.0
        while begin + size < len(lengths) and size < limit.max_items:
            longest = max(longest, lengths[begin + size])
            if limit.length is not None and (size + 1) * longest > limit.length * (1 + 1e-9):
                break
            size += 1
        if begin + size < len(lengths) and limit.length is not None:
            size = max(1, size // limit.step * limit.step)
        begin += size
        offsets.append(begin)
    return offsets


@settings(max_examples=150, deadline=None)
@given(
    lengths_of_items,
    st.none() | st.integers(1, 12),
    st.none() | st.floats(20.0, 120.0),
    st.integers(1, 4),
    st.integers(3, 90),
)
def test_cuts_are_those_of_the_definition(
    lengths: np.ndarray, size: int | None, length: float | None, step: int, block: int
) -> None:
    limit = limits(size or (None if length else 5), length, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_packing, "_BLOCK", block)
        assert cut(lengths, limit).tolist() == cut_one_by_one(lengths, limit)


@settings(max_examples=80, deadline=None)
@given(
    lengths_of_items,
    st.none() | st.integers(2, 12),
    st.floats(5.0, 120.0),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_packing_places_or_counts_every_item(
    lengths: np.ndarray, size: int | None, length: float, training: bool, drop_last: bool, seed: int
) -> None:
    limit = Limits(size, length, 2 if training else 1, 1, length / (2 if training else 1), None)
    rng = np.random.default_rng(seed)
    by_length = argsort_lengths(lengths)
    for packing in (
        pack_in_order(lengths, limit, rng, training, drop_last),
        pack_in_order(lengths, limit, None, training, drop_last),
        pack_by_length(lengths, by_length, 3, limit, rng, training, drop_last),
        pack_by_length(lengths, by_length, 3, limit, None, training, drop_last),
    ):
        placed = packing.order[: packing.offsets[-1]]
        assert len(np.unique(placed)) == len(placed)
        assert len(placed) + sum(packing.dropped.values()) == len(lengths)
        for begin, end in zip(packing.offsets[:-1], packing.offsets[1:], strict=True):
            batch = lengths[packing.order[begin:end]]
            assert len(batch) * batch.max() <= length * (1 + 1e-8)
            assert size is None or len(batch) <= size
        if training and len(placed) > 1 and size is None:
            # only a last batch that nobody can lend an item to may have one
            sizes = np.diff(packing.offsets)
            assert (sizes == 1).sum() <= 1
            assert packing.last[sizes == 1].all()


def test_last_batch_of_one_takes_over_an_item_while_training() -> None:
    lengths = np.full(9, 3.0)
    order = np.arange(9)
    assert np.diff(pack(order, lengths, limits(4), True, False).offsets).tolist() == [4, 3, 2]
    assert np.diff(pack(order, lengths, limits(4), False, False).offsets).tolist() == [4, 4, 1]
    dropped = pack(order, lengths, limits(4), True, True)
    assert np.diff(dropped.offsets).tolist() == [4, 4]
    assert dropped.dropped == {"last batch incomplete": 1}


def test_full_last_batch_is_not_dropped() -> None:
    assert pack(np.arange(8), np.full(8, 3.0), limits(4), True, True).dropped == {}
    assert pack(np.arange(8), np.full(8, 3.0), limits(None, 12.5), True, True).dropped == {}
    assert pack(np.arange(7), np.full(7, 3.0), limits(None, 12.5), True, True).dropped == {"last batch incomplete": 3}


def test_shuffled_batches_are_the_same_batches() -> None:
    rng = np.random.default_rng(0)
    packing = Packing(rng.permutation(20), np.array([0, 3, 4, 11, 20]), np.array([False, True, False, False]), {})
    shuffled = shuffle_batches(packing, rng)

    def content(p: Packing) -> set[tuple[tuple[int, ...], bool]]:
        return {
            (tuple(p.order[p.offsets[i] : p.offsets[i + 1]].tolist()), bool(p.last[i])) for i in range(p.num_batches)
        }

    assert content(shuffled) == content(packing)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.1, 3600.0), max_size=60).map(np.array), st.integers(1, 8), st.integers(0, 5))
def test_bucket_order_is_a_permutation(lengths: np.ndarray, num_buckets: int, seed: int) -> None:
    by_length = argsort_lengths(lengths)
    ordered = lengths[by_length] if len(lengths) else lengths
    assert (ordered[1:] >= ordered[:-1] * (1 - 1e-3)).all()
    order = bucket_order(by_length, lengths, num_buckets, limits(4), np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(lengths)))


@pytest.mark.parametrize("num_buckets", [1, 10, 30])
@pytest.mark.parametrize("num_segments", [3000, 30_000])
def test_buckets_leave_little_padding(num_buckets: int, num_segments: int) -> None:
    lengths = np.random.default_rng(0).uniform(2.0, 20.0, num_segments)
    by_length = argsort_lengths(lengths)
    epochs = [
        pack_by_length(lengths, by_length, num_buckets, limits(None, 200.0), np.random.default_rng(e), True, False)
        for e in (1, 2)
    ]
    for packing in epochs:
        padded = lengths[packing.order]
        longest = np.maximum.reduceat(padded, packing.offsets[:-1])
        assert 1 - padded.sum() / (longest * np.diff(packing.offsets)).sum() <= 0.03
    # the same segments do not meet again
    together = [
        {frozenset(p.order[p.offsets[i] : p.offsets[i + 1]].tolist()) for i in range(p.num_batches)} for p in epochs
    ]
    assert len(together[0] & together[1]) < 0.01 * len(together[0])


@settings(max_examples=150, deadline=None)
@given(lengths_of_items, st.integers(1, 8), st.integers(1, 2), st.booleans(), st.booleans())
def test_dealing_gives_every_rank_a_like_part(
    lengths: np.ndarray, world_size: int, per_rank: int, last: bool, sort: bool
) -> None:
    parts = [deal(lengths, world_size, rank, per_rank, last, sort) for rank in range(world_size)]
    sizes = [len(positions) for positions, _ in parts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= per_rank
    if last:
        assert max(sizes) == min(sizes)
    own = np.concatenate([positions[: len(positions) - repeats] for positions, repeats in parts])
    assert sorted(own.tolist()) == list(range(len(lengths)))
    repeated = sum(repeats for _, repeats in parts)
    assert repeated == 0 or last or len(lengths) < world_size * per_rank
    # every rank's longest item is among the longest of the batch, and whoever has an item more has no longer ones
    heads = [lengths[positions].max() for positions, _ in parts]
    if len(lengths) >= world_size:
        assert min(heads) >= np.sort(lengths)[::-1][world_size - 1]
    cost = [size * head for size, head in zip(sizes, heads, strict=True)]
    assert max(cost) <= (max(sizes)) * lengths.max()
    if not sort:
        for positions, repeats in parts:
            kept = positions[: len(positions) - repeats]
            assert (np.diff(kept) > 0).all()


def test_limits_are_global_and_shared() -> None:
    options = BatchOptions(max_batch_size=10, max_batch_length=100.0, max_batches_per_epoch=9)
    assert resolve_limits(options, 1, False) == Limits(10, 100.0, 1, 1, pytest.approx(100.0), 9)
    assert resolve_limits(options, 4, False) == Limits(8, 100.0, 1, 1, pytest.approx(25.0), 2)
    assert resolve_limits(options, 4, True).smallest == 2
    for few in (BatchOptions(max_batch_size=3), BatchOptions(max_batch_size=8, max_batches_per_epoch=3)):
        with pytest.raises(EmptySamplerError, match="4 ranks"):
            resolve_limits(few, 4, True)


def test_single_items_have_to_be_asked_for() -> None:
    assert items_per_rank(BatchOptions(max_batch_size=16), 4, True) == 2
    assert items_per_rank(BatchOptions(max_batch_size=4), 4, True) == 1
    assert items_per_rank(BatchOptions(min_batch_size=4, max_batch_size=16), 4, True) == 1
    assert items_per_rank(BatchOptions(min_batch_size=8, max_batch_size=16), 4, True) == 2
    assert items_per_rank(BatchOptions(max_batch_size=16), 4, False) == 1


def test_size_multiple_keeps_ranks_within_their_share() -> None:
    lengths = np.random.default_rng(3).uniform(2.0, 20.0, 500)
    limit = resolve_limits(BatchOptions(max_batch_length=400.0, size_multiple=4), 4, True)
    packing = pack_by_length(lengths, argsort_lengths(lengths), 5, limit, np.random.default_rng(0), True, False)
    for index in np.flatnonzero(~packing.last):
        batch = lengths[packing.order[packing.offsets[index] : packing.offsets[index + 1]]]
        for rank in range(4):
            positions, _ = deal(batch, 4, rank, 2, False, True)
            assert len(positions) * batch[positions].max() <= 100.0 * (1 + 1e-6)
