"""The loader: position consumed, epochs in persistent workers, random state, memory."""

from __future__ import annotations

import os
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.data.loader import LoaderFactory, make_loader
from hyperion_lite.data.rng import item_rng
from hyperion_lite.data.seg_sampler import SegSampler
from tests.contracts.sampler_tester import FakeDataset, epoch_of, fake_dataset, plain


class Noisy(FakeDataset):
    """Items are random numbers that depend on the key alone, and the process that made them."""

    def __init__(self) -> None:
        super().__init__(fake_dataset(40).segments)

    def __getitem__(self, key: Any) -> tuple[Any, ...]:
        rng = item_rng(1, key.epoch, key.segment_id, key.occurrence, "noise")
        return key.segment_id, float(rng.random()), os.getpid()


class Globals(FakeDataset):
    """Items are drawn from the global generators."""

    def __init__(self) -> None:
        super().__init__(fake_dataset(8).segments)

    def __getitem__(self, key: Any) -> tuple[Any, ...]:
        return os.getpid(), float(np.random.rand()), random.random(), float(torch.rand(()))


def sampler_of(dataset: FakeDataset, **more: Any) -> SegSampler:
    return SegSampler(dataset, max_batch_size=4, shuffle=True, **more)


def numbers(batches: Any) -> list[list[tuple[str, float]]]:
    return [[(id, value) for id, value, _ in batch] for batch in batches]


def test_batches_are_the_same_for_any_number_of_workers_and_after_a_resume() -> None:
    dataset = Noisy()
    epochs: dict[int, list[Any]] = {}
    for workers in (0, 2):
        loader = make_loader(dataset, sampler_of(dataset), workers)
        epochs[workers] = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            epochs[workers].append(numbers(loader))
    assert epochs[0] == epochs[2]
    assert {item for batch in epochs[0][0] for item in batch}.isdisjoint(
        item for batch in epochs[0][1] for item in batch
    )

    loader = make_loader(dataset, sampler_of(dataset), 2, 4)
    loader.set_epoch(2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed = make_loader(dataset, sampler_of(dataset))
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 2 and resumed.batch == 3
    assert numbers(resumed) == epochs[0][2][3:]


def test_workers_persist_and_get_the_epoch_through_the_keys() -> None:
    dataset = Noisy()
    loader = make_loader(dataset, sampler_of(dataset), 2)
    assert loader.num_workers == 2
    workers, values = [], []
    for epoch in range(2):
        loader.set_epoch(epoch)
        items = [item for batch in loader for item in batch]
        workers.append({pid for *_, pid in items})
        values.append({value for _, value, _ in items})
    assert workers[0] == workers[1] and os.getpid() not in workers[0]
    assert not values[0] & values[1]


def test_position_is_what_was_taken_even_in_the_middle_of_persistent_workers() -> None:
    dataset = fake_dataset(40)
    loader = make_loader(dataset, sampler_of(dataset), 2, 4)
    whole = plain(epoch_of(sampler_of(dataset), 0))
    for taken in (3, 1):
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        assert loader.batch == loader.state_dict()["batch"] == taken
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == whole[1:]
    assert loader.batch == len(loader) == len(whole)
    assert loader.account().num_batches == len(whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_a_newer_one_replaced_says_so(workers: int) -> None:
    dataset = fake_dataset(40)
    loader = make_loader(dataset, sampler_of(dataset), workers)
    whole = plain(epoch_of(sampler_of(dataset), 0))
    older, unused, newer = iter(loader), iter(loader), None
    for iterator in (older, unused):
        if iterator is unused:
            newer = iter(loader)
        with pytest.raises(RuntimeError, match="replaced by a newer one"):
            next(iterator)
    assert newer is not None and list(newer) == whole
    assert loader.batch == len(whole)


def test_state_at_the_end_of_an_epoch_leaves_nothing_of_it() -> None:
    dataset = fake_dataset(40)
    loader = make_loader(dataset, sampler_of(dataset))
    list(loader)
    resumed = make_loader(dataset, sampler_of(dataset))
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []
    resumed.set_epoch(1)
    assert list(resumed) == plain(epoch_of(sampler_of(dataset), 1))


def test_state_of_another_sampler_is_refused() -> None:
    dataset = fake_dataset(40)
    with pytest.raises(ValueError, match="max_batch_size was 4 and is 8"):
        make_loader(dataset, SegSampler(dataset, max_batch_size=8, shuffle=True)).load_state_dict(
            make_loader(dataset, sampler_of(dataset)).state_dict()
        )


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_leaves_the_random_state_of_training_alone(workers: int) -> None:
    dataset = fake_dataset(12)
    loader = make_loader(dataset, sampler_of(dataset), workers)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_have_different_seeded_global_generators() -> None:
    dataset = Globals()
    runs = []
    for _ in range(2):
        items = [item for batch in make_loader(dataset, SegSampler(dataset, max_batch_size=4), 2) for item in batch]
        runs.append([values for _, *values in items])
        for column in range(3):
            assert len({values[column] for values in runs[-1]}) == len(items)
    assert runs[0] == runs[1]


def test_data_set_learns_the_epoch_for_keys_without_one() -> None:
    dataset = fake_dataset(12)
    loader = make_loader(dataset, sampler_of(dataset))
    loader.set_epoch(4)
    assert dataset.epoch == 4
    other = fake_dataset(12)
    make_loader(other, sampler_of(other)).load_state_dict(loader.state_dict())
    assert other.epoch == 4


def test_collate_can_be_given() -> None:
    dataset = fake_dataset(12)
    loader = make_loader(dataset, sampler_of(dataset), collate_fn=len)
    assert list(loader) == [4, 4, 4]


def test_options_are_checked() -> None:
    dataset = fake_dataset(12)
    for options, message in (
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 2, "prefetch_factor": 0}, "prefetch_factor"),
        ({"pin_memory": "yes"}, "pin_memory"),
    ):
        with pytest.raises(ValueError, match=message):
            make_loader(dataset, sampler_of(dataset), **options)  # type: ignore[arg-type]


def test_options_on_the_command_line() -> None:
    parser = ArgumentParser(exit_on_error=False)
    LoaderFactory.add_class_args(parser, "data_loader")
    parsed = parser.parse_args(["--data-loader.num-workers", "3", "--data_loader.pin_memory", "auto"])
    options = LoaderFactory.filter_args(**parsed.data_loader)
    assert options["num_workers"] == 3 and options["pin_memory"] == "auto"
    assert set(options).isdisjoint({"dataset", "sampler", "collate_fn"})


def test_memory_stays_flat_over_epochs() -> None:
    dataset = fake_dataset(20_000)
    loader = make_loader(dataset, SegSampler(dataset, max_batch_size=500, shuffle=True))
    sizes = []
    tracemalloc.start()
    try:
        for epoch in range(6):
            loader.set_epoch(epoch)
            for _ in loader:
                pass
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes[2:]) - min(sizes[2:]) < 100_000
