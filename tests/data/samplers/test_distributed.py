"""Two processes train over every sampler with uneven data: none waits for a batch that the other does not have."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hyperion_lite.data.hyper_sampler import HyperSampler
from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from tests.contracts.sampler_tester import FakeDataset, fake_dataset
from tests.two_ranks import in_two_ranks

OPTIONS: dict[str, Any] = {
    "min_chunk_length": 2.0,
    "max_chunk_length": 4.0,
    "max_batch_length": 90.0,
    "shuffle": True,
    "class_name": "speaker",
}


class _Lengths(FakeDataset):
    def __getitem__(self, key: Any) -> torch.Tensor:  # type: ignore[override]
        row = self.segments.ids.index(key if isinstance(key, str) else key[0])
        return torch.tensor([float(self.segments.column("duration")[row]), float(key.repeat)])

    @staticmethod
    def collate(items: list[Any]) -> torch.Tensor:  # type: ignore[override]
        return torch.stack(items)


def _train(sampler: HyperSampler, dataset: Any) -> list[int]:
    model = nn.Linear(2, 1)
    loader = make_loader(dataset, sampler)
    counts = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        steps = 0
        for batch in loader:
            model.zero_grad()
            model(batch).mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # waits for the other rank
                parameter.data -= 1e-3 * parameter.grad
            steps += 1
        assert steps == len(loader)
        counts.append(steps)
    return counts


def _train_all(rank: int) -> dict[str, list[int]]:
    data = fake_dataset(37)
    dataset = _Lengths(data.segments, data.class_infos)
    steps = {}
    for sampler_type in SegSamplerFactory.sampler_types:
        sampler = SegSamplerFactory.create(dataset, sampler_type, **OPTIONS)  # type: ignore[arg-type]
        assert (sampler.rank, sampler.world_size) == (rank, 2)
        steps[sampler_type] = _train(sampler, dataset)
    return steps


def test_two_processes_over_every_sampler() -> None:
    first, second = in_two_ranks(_train_all)
    assert first == second and list(first) == list(SegSamplerFactory.sampler_types)
    assert min(min(counts) for counts in first.values()) > 1
