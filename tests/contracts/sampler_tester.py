"""The contract of samplers, checked on any of them.

A test module describes a sampler (how it is made, what it promises) and :class:`SamplerTester` checks the whole contract on it.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from hyperion_lite.data.hyper_sampler import HyperSampler
from hyperion_lite.data.keys import ChunkKey, SegmentKey
from hyperion_lite.data.loader import make_loader

Batches = list[list[Any]]


class FakeSegments:
    """The little of a segment table that samplers use."""

    file = "fake.csv"

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns
        self.ids = list(columns["id"])
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> np.ndarray:
        return np.asarray(self._columns[name])


class FakeDataset:
    """A data set whose items are their keys."""

    def __init__(self, segments: FakeSegments, class_infos: dict[str, Any] | None = None) -> None:
        self.segments = segments
        self.class_infos = class_infos or {}
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, key: Any) -> tuple[Any, int, int, bool]:
        return (str(key) if isinstance(key, str) else tuple(key)), key.epoch, key.occurrence, key.repeat

    @staticmethod
    def collate(items: list[Any]) -> list[Any]:
        return items


def fake_dataset(
    num_segments: int = 61, seed: int = 0, low: float = 2.0, high: float = 20.0, num_classes: int = 7
) -> FakeDataset:
    """Segments of random lengths and classes."""
    rng = np.random.default_rng(seed)
    return FakeDataset(
        FakeSegments(
            {
                "id": [f"seg{i:05d}" for i in range(num_segments)],
                "duration": rng.uniform(low, high, num_segments),
                "speaker": [f"spk{i % num_classes}" for i in range(num_segments)],
            }
        )
    )


@dataclass
class SamplerCase:
    """A sampler under test.

    Attributes:
        make: makes it from a data set and options.
        options: its options.
        covers: each segment occurs exactly once an epoch.
        equal_lengths: no batch needs padding.
        world_sizes: numbers of ranks that divide its limits, so that they share every plan.
        padded_budget: ``max_batch_length``, or None.
        training: whether single-item batches are forbidden.
        workers: numbers of worker processes and prefetch factors to read with.
    """

    make: Callable[..., HyperSampler]
    options: dict[str, Any]
    covers: bool = False
    world_sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    padded_budget: float | None = None
    training: bool = True
    workers: tuple[tuple[int, int | None], ...] = ((0, None),)
    dataset: FakeDataset = field(default_factory=fake_dataset)

    def sampler(self, **more: Any) -> HyperSampler:
        return self.make(self.dataset, **{**self.options, **more})

    def ranks(self, world_size: int, **more: Any) -> list[HyperSampler]:
        return [self.sampler(rank=rank, num_replicas=world_size, **more) for rank in range(world_size)]


def epoch_of(sampler: Any, epoch: int, batch: int = 0) -> Batches:
    """All batches of an epoch from one on."""
    sampler.set_epoch(epoch, batch)
    return list(sampler)


def plain(batches: Any) -> list[Any]:
    """Keys with all they carry, as plain values that compare completely."""
    return [
        [(tuple(k) if isinstance(k, tuple) else str(k), k.epoch, k.occurrence, k.repeat) for k in b] for b in batches
    ]


def originals(batch: list[Any]) -> Counter[Any]:
    return Counter((tuple(k) if isinstance(k, tuple) else str(k), k.occurrence) for k in batch if not k.repeat)


class SamplerTester:
    """Inherit, and parametrise ``case``; every method checks one clause of the contract."""

    epochs = (0, 1, 5)

    def test_keys_are_ids_or_chunks_inside_their_segment(self, case: SamplerCase) -> None:
        lengths = dict(zip(case.dataset.segments.ids, case.dataset.segments.column("duration"), strict=True))
        for key in (k for batch in epoch_of(case.sampler(), 3) for k in batch):
            assert isinstance(key, (SegmentKey, ChunkKey))
            assert key.epoch == 3
            assert key.segment_id in lengths
            if isinstance(key, ChunkKey):
                assert key.start >= 0 and key.duration > 0
                assert key.start + key.duration <= lengths[key.segment_id] + 1e-9
            again = pickle.loads(pickle.dumps(key))
            assert again == key and type(again) is type(key) and plain([[again]]) == plain([[key]])

    def test_length_is_exact(self, case: SamplerCase) -> None:
        sampler = case.sampler()
        for epoch in self.epochs:
            sampler.set_epoch(epoch)
            assert len(sampler) == len(list(sampler)) > 1

    def test_epoch_is_a_function_of_seed_and_epoch(self, case: SamplerCase) -> None:
        first, second = case.sampler(), case.sampler()
        later = plain(epoch_of(second, 5))
        assert plain(epoch_of(first, 0)) == plain(epoch_of(second, 0))
        assert plain(epoch_of(first, 5)) == later
        keys = [[k if isinstance(k, str) else tuple(k) for k in b] for b in epoch_of(first, 0)]
        others = [[k if isinstance(k, str) else tuple(k) for k in b] for b in epoch_of(first, 1)]
        assert (keys != others) == first.shuffle
        if first.shuffle:
            assert plain(epoch_of(case.sampler(seed=99), 0)) != plain(epoch_of(first, 0))

    def test_each_segment_once_where_promised(self, case: SamplerCase) -> None:
        if not case.covers:
            pytest.skip("this sampler promises no coverage")
        for world_size in case.world_sizes:
            for epoch in self.epochs:
                counts: Counter[str] = Counter()
                for sampler in case.ranks(world_size):
                    counts.update(k.segment_id for b in epoch_of(sampler, epoch) for k in b if not k.repeat)
                assert counts == dict.fromkeys(case.dataset.segments.ids, 1)

    def test_all_ranks_deal_the_same_global_plan(self, case: SamplerCase) -> None:
        for epoch in self.epochs:
            reference = [originals(batch) for batch in epoch_of(case.sampler(), epoch)]
            for world_size in case.world_sizes:
                parts = [epoch_of(sampler, epoch) for sampler in case.ranks(world_size)]
                merged = [sum((originals(part) for part in step), Counter()) for step in zip(*parts, strict=True)]
                assert merged == reference, f"epoch {epoch}, {world_size} ranks"

    def test_ranks_have_equal_counts_and_compatible_sizes(self, case: SamplerCase) -> None:
        lengths = dict(zip(case.dataset.segments.ids, case.dataset.segments.column("duration"), strict=True))
        for world_size in range(1, 9):
            samplers = case.ranks(world_size)
            parts = [epoch_of(sampler, 2) for sampler in samplers]
            assert len({len(part) for part in parts}) == 1
            assert {len(sampler) for sampler in samplers} == {len(parts[0])}
            for step in zip(*parts, strict=True):
                sizes = [len(part) for part in step]
                assert max(sizes) - min(sizes) <= 1
                assert min(sizes) >= (2 if case.training else 1)
                self._check_costs(case, step, lengths, world_size)

    def _check_costs(self, case: SamplerCase, step: Any, lengths: dict[str, float], world_size: int) -> None:
        limit = case.options.get("max_batch_size")
        longest = [max(k.duration if isinstance(k, ChunkKey) else lengths[k] for k in part) for part in step]
        for part, length in zip(step, longest, strict=True):
            if limit is not None:
                assert len(part) <= max(limit // world_size, 1)
            if case.padded_budget is not None:
                assert (len(part) - 1) * length <= case.padded_budget / world_size * (1 + 1e-6)

    def test_resume_at_every_batch_equals_the_uninterrupted_epoch(self, case: SamplerCase) -> None:
        for rank, world_size in ((0, 1), (1, 2)):
            sampler = case.sampler(rank=rank, num_replicas=world_size)
            for epoch in self.epochs:
                whole = plain(epoch_of(sampler, epoch))
                for batch in range(len(whole) + 1):
                    assert plain(epoch_of(case_copy := sampler, epoch, batch)) == whole[batch:], (
                        case_copy,
                        epoch,
                        batch,
                    )

    def test_position_applies_to_the_next_iterator_only(self, case: SamplerCase) -> None:
        sampler = case.sampler()
        whole = plain(epoch_of(sampler, 1))
        sampler.set_epoch(1, 2)
        assert plain(list(sampler)) == whole[2:]
        assert plain(list(sampler)) == whole

    def test_state_round_trip_at_every_batch(self, case: SamplerCase) -> None:
        source = case.sampler()
        for epoch in self.epochs:
            whole = plain(epoch_of(source, epoch))
            source.set_epoch(epoch)
            iterator = iter(source)
            for position in range(len(whole) + 1):
                state = source.state_dict()
                assert json.loads(json.dumps(state)) == state
                kept = copy.deepcopy(state)
                target = case.sampler()
                target.load_state_dict(state)
                target.load_state_dict(state)
                assert state == kept
                assert target.state_dict() == state
                assert plain(list(target)) == whole[position:]
                next(iterator, None)

    def test_resumed_run_continues_into_later_epochs(self, case: SamplerCase) -> None:
        source, target = case.sampler(), case.sampler()
        source.set_epoch(2)
        next(iter(source))
        target.load_state_dict(source.state_dict())
        list(target)
        assert plain(epoch_of(target, 3)) == plain(epoch_of(source, 3))

    def test_resume_under_another_world_size_continues_the_global_plan(self, case: SamplerCase) -> None:
        whole = [originals(batch) for batch in epoch_of(case.sampler(), 1)]
        for old, new in ((1, 2), (2, 1), (2, 4), (4, 2)):
            if old not in case.world_sizes or new not in case.world_sizes:
                continue
            state = case.sampler(rank=0, num_replicas=old)
            state.set_epoch(1, 1)
            saved = state.state_dict()
            parts = []
            for sampler in case.ranks(new):
                sampler.load_state_dict(saved)
                parts.append(list(sampler))
            merged = [sum((originals(part) for part in step), Counter()) for step in zip(*parts, strict=True)]
            assert merged == whole[1:]

    def test_state_of_another_configuration_is_refused_by_name(self, case: SamplerCase) -> None:
        state = case.sampler().state_dict()
        with pytest.raises(ValueError, match="seed was 1234 and is 77"):
            case.sampler(seed=77).load_state_dict(state)
        other = SamplerCase(case.make, case.options, dataset=fake_dataset(60))
        with pytest.raises(ValueError, match="num_segments was 61 and is 60"):
            other.sampler().load_state_dict(state)
        longer = SamplerCase(case.make, case.options, dataset=fake_dataset(seed=1))
        with pytest.raises(ValueError, match="segments was"):
            longer.sampler().load_state_dict(state)
        with pytest.raises(ValueError, match="not the state of a sampler"):
            case.sampler().load_state_dict({"epoch": 1})

    def test_account_agrees_with_what_is_yielded(self, case: SamplerCase) -> None:
        for world_size in (1, 3):
            samplers = case.ranks(world_size)
            keys = [k for sampler in samplers for batch in epoch_of(sampler, 4) for k in batch]
            account = samplers[0].account()
            assert account == samplers[-1].account()
            assert account.num_batches == len(samplers[0])
            assert account.num_items == sum(not k.repeat for k in keys)
            assert account.repeated == sum(k.repeat for k in keys)
            assert account.segments_used == len({k.segment_id for k in keys})
            assert account.segments_total == len(case.dataset.segments)
            assert 0 <= account.padded_share < 1

    def test_errors(self, case: SamplerCase) -> None:
        for world_size in (0, -1):
            with pytest.raises(ValueError, match="rank"):
                case.sampler(rank=0, num_replicas=world_size)
        with pytest.raises(ValueError, match="rank"):
            case.sampler(rank=2, num_replicas=2)
        with pytest.raises(ValueError, match="positive"):
            case.sampler(max_batch_size=0)
        with pytest.raises(ValueError, match="positive"):
            case.sampler(max_batch_length=float("nan"))
        with pytest.raises(ValueError, match="lower"):
            case.sampler(min_batch_size=100, max_batch_size=10)
        with pytest.raises(ValueError, match="no column 'durations', did you mean 'duration'"):
            case.sampler(length_name="durations")
        sampler = case.sampler()
        with pytest.raises(ValueError, match="count from 0"):
            sampler.set_epoch(-1)
        with pytest.raises(ValueError, match="count from 0"):
            sampler.set_epoch(0, -1)
        sampler.set_epoch(0, 10_000)
        with pytest.raises(ValueError, match="batches; it cannot begin with batch 10000"):
            iter(sampler)

    @pytest.mark.parametrize("value", [float("nan"), 0.0, -3.0, float("inf")])
    def test_unusable_durations_are_named(self, case: SamplerCase, value: float) -> None:
        dataset = fake_dataset()
        dataset.segments._columns["duration"][7] = value
        with pytest.raises(ValueError, match="seg00007"):
            case.make(dataset, **case.options)

    def test_budgets_that_leave_a_rank_without_a_batch(self, case: SamplerCase) -> None:
        from hyperion_lite.data.hyper_sampler import EmptySamplerError

        options = {
            k: v for k, v in case.options.items() if k not in ("max_batch_size", "max_batch_length", "min_batch_size")
        }
        for limits in (
            {"max_batch_size": 3},
            {"max_batch_length": 3.0},
            {"max_batch_size": 48, "max_batches_per_epoch": 3},
        ):
            with pytest.raises(EmptySamplerError, match=r"[Rr]aise"):
                case.make(case.dataset, **options, **limits, rank=0, num_replicas=4)
        with pytest.raises(EmptySamplerError, match="no segments"):
            case.make(fake_dataset(0), **case.options)

    def test_max_batches_per_epoch_is_a_prefix_shared_by_all_ranks(self, case: SamplerCase) -> None:
        whole = plain(epoch_of(case.sampler(), 1))
        assert plain(epoch_of(case.sampler(max_batches_per_epoch=3), 1)) == whole[:3]
        for sampler in case.ranks(2, max_batches_per_epoch=4):
            assert len(epoch_of(sampler, 1)) == len(sampler) == 2
        assert sum(case.sampler(max_batches_per_epoch=3).account().dropped.values()) > 0 or not case.covers

    def test_configuration_rebuilds_the_sampler(self, case: SamplerCase) -> None:
        sampler = case.sampler()
        config = sampler.get_config()
        assert json.loads(json.dumps(config)) == config
        rebuilt = type(sampler)(case.dataset, **config)
        assert rebuilt.get_config() == config
        assert plain(epoch_of(rebuilt, 1)) == plain(epoch_of(sampler, 1))

    @pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
    def test_loader_resumes_with_what_was_not_consumed(self, case: SamplerCase) -> None:
        whole = [plain(epoch_of(case.sampler(), epoch)) for epoch in (1, 2)]
        for workers, prefetch in case.workers:
            position = len(whole[0]) // 2
            first = make_loader(case.dataset, case.sampler(), workers, prefetch)
            first.set_epoch(1)
            iterator = iter(first)
            taken = [next(iterator) for _ in range(position)]
            state = first.state_dict()
            assert state["batch"] == first.batch == position
            assert taken == whole[0][:position]
            del iterator, first

            second = make_loader(case.dataset, case.sampler(), workers, prefetch)
            second.load_state_dict(state)
            assert list(second) == whole[0][position:]
            second.set_epoch(2)
            assert list(second) == whole[1]

    def test_plain_data_loader_takes_it_as_batch_sampler(self, case: SamplerCase) -> None:
        whole = plain(epoch_of(case.sampler(), 1))
        for workers in sorted({min(workers, 2) for workers, _ in case.workers}):
            sampler = case.sampler()
            loader = DataLoader(
                case.dataset, batch_sampler=sampler, num_workers=workers, collate_fn=case.dataset.collate
            )
            sampler.set_epoch(1, 1)
            assert list(loader) == whole[1:]
            assert len(loader) == len(whole)
