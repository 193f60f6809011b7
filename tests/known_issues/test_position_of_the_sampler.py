"""Resuming in the middle of an epoch repeated or lost segments: the sampler's own position is ahead of training by all that the
workers have read in advance; and putting a sampler back took hours, as it drew everything before the position again.

Right: the saved position is what training has consumed; the remaining batches come exactly, for any numbers of workers and
prefetched batches before and after; going to a position takes the same short time wherever it is.
"""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import Any

import pytest

from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from tests.contracts.sampler_tester import fake_dataset

OPTIONS: dict[str, Any] = {
    "min_chunk_length": 2.0,
    "max_chunk_length": 4.0,
    "max_batch_size": 4,
    "min_batch_size": 2,
    "shuffle": True,
    "class_name": "speaker",
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("sampler_type", ["seg_sampler", "random_seg_chunk_sampler"])
def test_the_remaining_batches_come_exactly(sampler_type: Any) -> None:
    dataset = fake_dataset(50)

    def loader(workers: int, prefetch: int | None) -> Any:
        return make_loader(dataset, SegSamplerFactory.create(dataset, sampler_type, **OPTIONS), workers, prefetch)

    plain = loader(0, None)
    plain.set_epoch(3)
    whole = list(plain)
    for before, after in (((2, 4), (0, None)), ((0, None), (2, 1)), ((1, 6), (2, 3))):
        first = loader(*before)
        first.set_epoch(3)
        assert list(islice(iter(first), 5)) == whole[:5]
        state = json.loads(json.dumps(first.state_dict()))
        assert (state["epoch"], state["batch"]) == (3, 5)
        second = loader(*after)
        second.load_state_dict(state)
        assert list(second) == whole[5:]


@pytest.mark.parametrize("sampler_type", SegSamplerFactory.sampler_types)
def test_any_position_is_reached_at_once(sampler_type: Any) -> None:
    dataset = fake_dataset(20_000)
    sampler = SegSamplerFactory.create(dataset, sampler_type, **OPTIONS)
    sampler.set_epoch(1)
    last = len(sampler) - 1
    next(iter(sampler))

    def seconds(batch: int) -> float:
        begin = time.perf_counter()
        sampler.set_epoch(1, batch)
        next(iter(sampler))
        return time.perf_counter() - begin

    near, far = (min(seconds(batch) for _ in range(5)) for batch in (1, last))
    assert last > 2000
    assert far < 10 * near + 0.01
