"""The small parts of a trainer, alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hyperion_lite.core.layer_stack import repeated_blocks
from hyperion_lite.data.seg_sampler import SegSampler
from hyperion_lite.trainers.accumulation import UpdateBatches, steps_for
from hyperion_lite.trainers.batch_device import batch_size, to_device, without_repeats
from hyperion_lite.trainers.data_position import DataPosition
from hyperion_lite.trainers.distribution import Distribution
from hyperion_lite.trainers.metric_accumulator import MetricAccumulator, averages, merge
from hyperion_lite.trainers.rng_state import (
    apply_rng_state,
    collect_rng_state,
    kept_rng_state,
    pack_rng_states,
    state_of_rank,
)
from tests.trainers.runs import NoisyFrames, make_data
from tests.trainers.small_training import Batches, SmallClassifier, make_trainer

CPU = torch.device("cpu")


def draw() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]


def test_random_states_of_all_generators_come_back(tmp_path: Any) -> None:
    document = pack_rng_states([collect_rng_state(CPU)])
    expected = draw()
    torch.save(document, tmp_path / "rng_state.pth")
    draw()
    apply_rng_state(state_of_rank(torch.load(tmp_path / "rng_state.pth", weights_only=True), 0), CPU)
    assert draw() == expected
    with kept_rng_state(CPU):
        draw()
    second = draw()
    apply_rng_state(state_of_rank(document, 0), CPU)
    draw()
    assert draw() == second


def test_unknown_ranks_get_streams_of_their_own() -> None:
    document = pack_rng_states([collect_rng_state(CPU)])
    states = [state_of_rank(document, rank)["torch"] for rank in (0, 1, 2, 1)]
    assert not torch.equal(states[0], states[1]) and not torch.equal(states[1], states[2])
    assert torch.equal(states[1], states[3])
    with pytest.raises(ValueError, match="by rank"):
        state_of_rank({"a": 1}, 0)


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), min_size=1, max_size=12), st.integers(1, 3))
def test_metrics_are_averages_over_the_items_of_all_ranks(pairs: list[tuple[float, int]], ranks: int) -> None:
    accumulators = [MetricAccumulator() for _ in range(ranks)]
    for index, (value, count) in enumerate(pairs):
        accumulators[index % ranks].update({"loss": torch.tensor(value, dtype=torch.float64)}, count)
    expected = sum(v * n for v, n in pairs) / sum(n for _, n in pairs)
    result = averages(merge(a.state_dict() for a in accumulators))
    assert result["loss"] == pytest.approx(expected, abs=1e-12)
    assert MetricAccumulator().averages() == {}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 5))
def test_shares_of_an_update_add_up_to_one(sizes: list[int], steps: int) -> None:
    updates = UpdateBatches(iter([torch.zeros(n, 1) for n in sizes]), steps, Distribution(None, "ddp", CPU), batch_size)
    groups = list(updates)
    assert [m.num_items for group in groups for m in group] == sizes
    for group in groups:
        assert sum(m.share for m in group) == pytest.approx(1.0)
        assert [m.last for m in group] == [False] * (len(group) - 1) + [True]
    assert all(len(group) == steps for group in groups[:-1])


def test_micro_batches_of_an_effective_batch() -> None:
    assert [steps_for(64, size) for size in (64, 63.99, 32, 20, 100)] == [1, 1, 2, 4, 1]
    with pytest.raises(ValueError, match="positive"):
        steps_for(0, 4)


def test_effective_batch_size_is_that_of_all_ranks(tmp_path: Any) -> None:
    trainer = make_trainer(tmp_path, eff_batch_size=12, num_epochs=1)
    trainer.fit(make_data(num_items=42, batch_size=6))
    assert trainer.grad_acc_steps == 2
    assert trainer.global_step == 4


def test_only_tensors_go_to_the_device() -> None:
    batch = {"x": torch.zeros(2), "id": ["a", "b"], "n": 3, "more": [torch.ones(1), "t"], "pair": (torch.ones(1),)}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"].device.type == moved["more"][0].device.type == moved["pair"][0].device.type == "meta"
    assert moved["id"] is batch["id"] and moved["n"] == 3
    assert batch["x"].device.type == "cpu"


def test_repeats_do_not_count() -> None:
    batch = {
        "x": torch.arange(6).view(3, 2),
        "id": ["a", "b", "c"],
        "repeat": torch.tensor([False, True, False]),
        "n": 7,
    }
    kept = without_repeats(batch)
    assert kept["id"] == ["a", "c"] and kept["x"].tolist() == [[0, 1], [4, 5]] and kept["n"] == 7
    plain = {"x": torch.zeros(2), "repeat": torch.tensor([False, False])}
    assert without_repeats(plain) is plain
    with pytest.raises(ValueError, match="batch axis"):
        batch_size({"id": ["a"]})


def loaders() -> list[Any]:
    dataset = NoisyFrames(30, 0.0, torch.float32)
    sampler = SegSampler(dataset.segments, max_batch_size=6, shuffle=True)
    return [make_data(30), DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate), Batches(30, 6)]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_any_data_continues_in_the_middle(kind: int) -> None:
    whole = list(DataPosition(loaders()[kind]).begin(2, 0))
    position = DataPosition(loaders()[kind])
    begin = position.begin(2, 0)
    for _ in range(3):
        next(begin)
    state = position.state_dict(3)
    again = DataPosition(loaders()[kind])
    again.load_state_dict(state)
    rest = list(again.begin(2, 3))
    assert [b["id"] for b in rest] == [b["id"] for b in whole[3:]]
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(rest, whole[3:], strict=True))
    assert (state is None) == (kind == 2)


def test_repeated_blocks_are_the_entries_of_module_lists() -> None:
    model = SmallClassifier()
    assert repeated_blocks(model) == list(model.body)


def test_validation_sees_every_item_once_and_changes_nothing(tmp_path: Any) -> None:
    trainer = make_trainer(tmp_path)
    before = {k: v.clone() for k, v in trainer.module.state_dict().items()}
    data = Batches(num_items=10, batch_size=4)
    logs = trainer.validation_epoch(data)
    assert all(torch.equal(v, before[k]) for k, v in trainer.module.state_dict().items())
    trainer.module.eval()
    whole = trainer.validation_step(0, data.items(torch.arange(10)))
    assert whole[0] == 10
    assert logs["val_loss"] == pytest.approx(float(whole[1]["loss"]), abs=1e-6)
    assert logs["val_acc"] == pytest.approx(float(whole[1]["acc"]))
