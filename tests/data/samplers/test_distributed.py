"""Two processes train over every sampler with uneven data: none waits for a batch that the other does not have."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hyperion_lite.data.hyper_sampler import HyperSampler
from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from tests.contracts.sampler_tester import FakeDataset, fake_dataset

OPTIONS: dict[str, Any] = {
    "min_chunk_length": 2.0,
    "max_chunk_length": 4.0,
    "max_batch_length": 90.0,
    "shuffle": True,
    "class_name": "speaker",
}
TIMEOUT = 120


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


def _rank(rank: int, rendezvous: str, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    try:
        data = fake_dataset(37)
        dataset = _Lengths(data.segments, data.class_infos)
        for sampler_type in SegSamplerFactory.sampler_types:
            sampler = SegSamplerFactory.create(dataset, sampler_type, **OPTIONS)  # type: ignore[arg-type]
            assert (sampler.rank, sampler.world_size) == (rank, 2)
            results.put((sampler_type, rank, _train(sampler, dataset)))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_two_processes_over_every_sampler(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_rank, args=(r, str(tmp_path / "rendezvous"), results)) for r in range(2)]
    for process in processes:
        process.start()
    try:
        found = [results.get(timeout=TIMEOUT) for _ in range(2 * len(SegSamplerFactory.sampler_types))]
        for process in processes:
            process.join(TIMEOUT)
            assert process.exitcode == 0
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    steps = {(sampler_type, rank): counts for sampler_type, rank, counts in found}
    for sampler_type in SegSamplerFactory.sampler_types:
        assert steps[sampler_type, 0] == steps[sampler_type, 1]
        assert min(steps[sampler_type, 0]) > 1
