"""Training runs in processes of their own, which a test can start, kill and start again. Also a script: see :func:`main`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from hyperion_lite.data.loader import ResumableLoader, make_loader
from hyperion_lite.data.manifests import SegmentSet
from hyperion_lite.data.rng import item_rng
from hyperion_lite.data.seg_sampler import SegSampler
from tests.trainers.small_training import FEATS, NUM_CLASSES, SmallTrainer, make_trainer
from tests.two_ranks import CONTEXT, free_port, join_group


class NoisyFrames(torch.utils.data.Dataset):
    """Items by sampler key: frames of a class with noise that is new in every epoch, drawn by item as augmentation is."""

    def __init__(self, num_items: int, seconds_per_item: float, dtype: torch.dtype) -> None:
        ids = [f"seg{i:03d}" for i in range(num_items)]
        self.segments = SegmentSet.from_pandas(pd.DataFrame({"id": ids, "duration": np.full(num_items, 2.0)}))
        self.seconds_per_item = seconds_per_item
        self.dtype = dtype

    def __getitem__(self, key: Any) -> dict[str, Any]:
        time.sleep(self.seconds_per_item)
        label = int(str(key)[3:]) % NUM_CLASSES
        frames = item_rng(1, key.epoch, str(key), key.occurrence).standard_normal((FEATS, 5))
        frames[label] += 2.0
        return {"x": torch.from_numpy(frames).to(self.dtype), "y": label, "id": str(key), "repeat": key.repeat}

    def collate(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "x": torch.stack([item["x"] for item in items]),
            "y": torch.tensor([item["y"] for item in items]),
            "id": [item["id"] for item in items],
            "repeat": torch.tensor([item["repeat"] for item in items]),
        }


def make_data(
    num_items: int = 42,
    seconds_per_item: float = 0.0,
    batch_size: int = 6,
    shuffle: bool = True,
    dtype: str = "float32",
) -> ResumableLoader:
    dataset = NoisyFrames(num_items, seconds_per_item, getattr(torch, dtype))
    return make_loader(dataset, SegSampler(dataset.segments, max_batch_size=batch_size, shuffle=shuffle, seed=5))


class FragileTrainer(SmallTrainer):
    """Kills its own process in validation, where it is told to."""

    die_in_validation: int | None = None
    validation_steps = 0

    def validation_step(self, batch_idx: int, batch_data: Any) -> tuple[int, dict[str, Any]]:
        self.validation_steps += 1
        if self.validation_steps == self.die_in_validation:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().validation_step(batch_idx, batch_data)


def die_in_save(number: int) -> None:
    """Make call ``number`` of ``torch.save`` in this process write half a file and kill the process."""
    save, calls = torch.save, [0]

    def fragile(value: Any, path: Any) -> None:
        calls[0] += 1
        save(value, path)
        if calls[0] == number:
            content = Path(path).read_bytes()
            Path(path).write_bytes(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save = fragile


def run_training(path: str, spec: dict[str, Any], rank: int = 0, port: int = 0) -> None:
    """One run: continues from the last checkpoint if there is one, trains to the end.

    Args:
        path: experiment directory.
        spec: ``world_size``, ``trainer``, ``model``, ``data``, ``val_data`` (options), ``dtype``, ``die`` (what, number).
        rank: of this process.
        port: where the ranks meet.
    """
    torch.set_num_threads(1)
    world_size = spec.get("world_size", 1)
    if world_size > 1:
        join_group(rank, world_size, port)
    what, number = spec.get("die") or (None, 0)
    if what == "save" and rank == 0:
        die_in_save(number)
    dtype = spec.get("dtype", "float32")
    trainer = make_trainer(
        path, model=spec.get("model"), dtype=getattr(torch, dtype), cls=FragileTrainer, **spec["trainer"]
    )
    if what == "validation" and rank == 0:
        trainer.die_in_validation = number
    val_data = {"num_items": 15, "shuffle": False, **spec.get("val_data", {})}
    trainer.load_last_checkpoint()
    trainer.fit(make_data(dtype=dtype, **spec.get("data", {})), make_data(dtype=dtype, **val_data))
    if world_size > 1:
        torch.distributed.destroy_process_group()


class Run:
    """The processes of one training run."""

    def __init__(self, path: Path, spec: dict[str, Any]) -> None:
        port = free_port()
        self.processes = [
            CONTEXT.Process(target=run_training, args=(str(path), spec, rank, port))
            for rank in range(spec.get("world_size", 1))
        ]
        for process in self.processes:
            process.start()

    def wait(self, seconds: float = 120.0) -> list[int | None]:
        """Exit codes once all have ended, or one has died, in which case the others are killed as a launcher does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(p.exitcode is None for p in self.processes):
            if any(p.exitcode not in (None, 0) for p in self.processes):
                time.sleep(0.05)
                self.kill()
            time.sleep(0.005)
        self.kill()
        return [p.exitcode for p in self.processes]

    def kill(self) -> bool:
        """SIGKILL to what is alive; whether anything was."""
        alive = [p for p in self.processes if p.exitcode is None]
        for process in alive:
            process.kill()
        for process in self.processes:
            process.join()
        return bool(alive)


def complete_run(path: Path, spec: dict[str, Any]) -> Path:
    """Run to the end; the last checkpoint."""
    codes = Run(path, spec).wait()
    assert codes == [0] * len(codes), f"exit codes {codes}"
    return last_checkpoint(path)


def last_checkpoint(path: Path) -> Path:
    return max(p for p in path.iterdir() if p.name.startswith("checkpoint_") and ".hl-tmp-" not in p.name)


def main() -> None:
    """``python -m tests.trainers.runs PATH SPEC_JSON``; the ranks come from the environment, as under torchrun."""
    run_training(
        sys.argv[1], json.loads(sys.argv[2]), int(os.environ.get("RANK", "0")), int(os.environ.get("MASTER_PORT", "0"))
    )


if __name__ == "__main__":
    main()
