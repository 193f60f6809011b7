"""Cost of training around the model: a table in Markdown.

    python benchmarks/train.py [--seconds 30] [--segments 10_000_000] [--only NAME ...]

Rows (names for ``--only``):
    loop: updates per second of ECAPA-512 by the trainer, against a bare PyTorch loop over the same model and the same fixed batches of 2 s.
    ranks: items per second of two processes against one, one thread each.
    data: share of the time that the training loop waits for batches which one worker reads from WAV files.
    checkpoint: time that a save holds the training up, written at once and in the background.
    resume: time from a saved position in the middle of an epoch of ten million segments to its next batch.
    gpu: throughput, memory and waiting for data on a CUDA device, where there is one (benchmarks/train_gpu.py).

What is compared runs alternately in one process, and medians count, so that other work on the machine hits both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from extract import ECAPA_512, FEATS, SAMPLE_FREQ
from torch.nn import functional

from hyperion_lite.models.registry import find_model_class
from hyperion_lite.trainers.distribution import init_distributed
from hyperion_lite.trainers.xvector_trainer import XVectorTrainer

BATCH_SIZE = 8
CHUNK_SECONDS = 2.0
OPTIM = {"opt_type": "adamw", "lr": 1e-4}


def ecapa(num_classes: int = 5994) -> Any:
    """ECAPA-TDNN with 512 channels on waveforms, the same weights each time."""
    torch.manual_seed(0)
    config = {"feats": FEATS, "xvector": {**ECAPA_512, "num_classes": num_classes}}
    return find_model_class("Wav2ResNet1dXVector").from_config(config)


def fixed_batch(num_classes: int = 5994, size: int = BATCH_SIZE) -> dict[str, torch.Tensor]:
    """A batch of noise, without padding."""
    generator = torch.Generator().manual_seed(1)
    audio = 0.1 * torch.randn(size, round(CHUNK_SECONDS * SAMPLE_FREQ), generator=generator)
    return {"audio": audio, "speaker": torch.randint(num_classes, (size,), generator=generator)}


class TimedBatches:
    """The same batch ``count`` times; remembers when each was asked for, so that differences are times of updates."""

    def __init__(self, batch: dict[str, torch.Tensor], count: int) -> None:
        self.batch = batch
        self.count = count
        self.times: list[float] = []

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(self.count):
            self.times.append(time.perf_counter())
            yield self.batch

    def __len__(self) -> int:
        return self.count

    def updates(self) -> list[float]:
        """Seconds of each update; the first and the last are left out, they begin and end an epoch."""
        return [b - a for a, b in zip(self.times[1:-1], self.times[2:], strict=True)]


def make_trainer(folder: str | Path, model: Any = None, **options: Any) -> XVectorTrainer:
    """A trainer that writes below ``folder``."""
    settings = {"optim": OPTIM, "exp_path": str(folder), "log_interval": 1000, "loggers": [], "keep_last": 1}
    return XVectorTrainer(ecapa() if model is None else model, **{**settings, **options})


def bare_loop(model: Any, optimizer: torch.optim.Optimizer, batches: TimedBatches) -> None:
    """Updates as a script would write them."""
    model.train()
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(batch["audio"], y=batch["speaker"]), batch["speaker"])
        loss.backward()
        optimizer.step()


def measure_loop(seconds: float) -> None:
    """Trainer against bare loop, in alternating blocks of a few updates."""
    batch, block = fixed_batch(), 4
    model = ecapa()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    bare: list[float] = []
    ours: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(ours) < 10:
            batches = TimedBatches(batch, block)
            bare_loop(model, optimizer, batches)
            bare += batches.updates()
            batches = TimedBatches(batch, block)
            trainer.train_epoch(batches)
            trainer.cur_batch = 0
            ours += batches.updates()
    ratio = statistics.median(a / b for a, b in zip(bare, ours, strict=True))
    best = min(bare) / min(ours)
    row("updates/s, bare loop", f"{1 / statistics.median(bare):.2f}")
    row("updates/s, trainer", f"{1 / statistics.median(ours):.2f}")
    row("trainer / bare loop, median of pairs (fastest of each)", f"{ratio:.3f} ({best:.3f})", ">= 0.95")


def _rank(rank: int, world_size: int, port: int, seconds: float) -> float:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    if world_size > 1:
        init_distributed("cpu")
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, device="cpu")
        updates: list[float] = []
        # as many updates on every rank, whatever the clock says
        blocks = max(2, round(seconds / 10))
        for _ in range(blocks):
            batches = TimedBatches(fixed_batch(), 6)
            trainer.train_epoch(batches)
            trainer.cur_batch = 0
            updates += batches.updates()
        trainer.distribution.barrier()
    if world_size > 1:
        torch.distributed.destroy_process_group()
    return statistics.median(updates)


def in_processes(function: Callable[..., float], calls: list[tuple[Any, ...]]) -> float:
    """What ``function`` returns for the first of ``calls``, each in a process of its own, at the same time."""
    with ProcessPoolExecutor(len(calls), multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(function, *call) for call in calls]
        results = [future.result() for future in futures]
        return results[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure_ranks(seconds: float) -> None:
    """Two processes against one, each with one thread."""
    medians = {}
    for world_size in (1, 2):
        port = _free_port()
        medians[world_size] = in_processes(_rank, [(rank, world_size, port, seconds) for rank in range(world_size)])
    rates = {n: n * BATCH_SIZE / median for n, median in medians.items()}
    row("items/s, one process of one thread", f"{rates[1]:.1f}")
    row("items/s, two processes of one thread", f"{rates[2]:.1f}")
    row("two processes / two times one", f"{rates[2] / (2 * rates[1]):.2f}")


def measure_data(seconds: float) -> None:
    """Share of waiting when a worker reads chunks of WAV files."""
    from dataset import write_dataset

    from hyperion_lite.data.audio_dataset import AudioDataset
    from hyperion_lite.data.loader import make_loader
    from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory

    with tempfile.TemporaryDirectory() as folder:
        dataset = AudioDataset(dataset=write_dataset(Path(folder), 100, "wav"), class_names=["speaker"])
        sampler = SegSamplerFactory.create(
            dataset,
            sampler_type="random_seg_chunk_sampler",
            min_chunk_length=CHUNK_SECONDS,
            max_chunk_length=CHUNK_SECONDS,
            min_batch_size=BATCH_SIZE,
            max_batch_size=BATCH_SIZE,
            num_chunks_per_seg_epoch=8,
        )
        loader = make_loader(dataset, sampler, num_workers=1)
        waiting = WaitingClock(loader)
        trainer = make_trainer(Path(folder) / "exp", ecapa(10))
        trainer.max_steps = max(8, round(seconds))
        begin = time.perf_counter()
        trainer.train_epoch(waiting)
        total = time.perf_counter() - begin
    row("share of time that waits for data, one worker (start included)", f"{100 * waiting.seconds / total:.1f} %")


class WaitingClock:
    """A loader that measures how long its user waits for batches."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            self.seconds += time.perf_counter() - begin
            if batch is None:
                return
            yield batch


def measure_checkpoint(repeats: int = 5) -> None:
    """How long a save of ECAPA-512 with its optimizer holds the training up."""
    for label, asynchronous in (("written at once", False), ("async_save", True)):
        with tempfile.TemporaryDirectory() as folder:
            trainer = make_trainer(folder, async_save=asynchronous)
            trainer.train_epoch(TimedBatches(fixed_batch(), 2))
            stalls = []
            for _ in range(repeats):
                trainer.global_step += 1
                begin = time.perf_counter()
                trainer.save_checkpoint()
                stalls.append(time.perf_counter() - begin)
                trainer.wait_for_checkpoint()
            size = sum(path.stat().st_size for path in trainer.store.complete()[-1].rglob("*") if path.is_file())
        row(f"stall of a checkpoint of {size / 1e6:.0f} MB, {label}", f"{1e3 * statistics.median(stalls):.0f} ms")


def _resume(folder: str, count: int) -> float:
    os.environ["SAMPLER_BENCHMARK_FOLDER"] = folder
    from samplers import name_of

    from hyperion_lite.data.manifests import SegmentSet
    from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory

    options = {"max_batch_length": 400.0, "min_chunk_length": 2.0, "max_chunk_length": 4.0}

    def make() -> Any:
        segments = SegmentSet.from_file(name_of(count))
        return SegSamplerFactory.create(segments, "random_seg_chunk_sampler", **options)

    sampler = make()
    sampler.set_epoch(1)
    middle = len(sampler) // 2
    sampler.set_epoch(1, batch=middle)
    expected = next(iter(sampler))
    state = sampler.state_dict(batch=middle)
    begin = time.perf_counter()
    resumed = make()
    resumed.load_state_dict(state)
    found = next(iter(resumed))
    elapsed = time.perf_counter() - begin
    assert list(found) == list(expected), "the resumed epoch goes on with another batch"
    return elapsed


def measure_resume(count: int) -> None:
    """From a saved position to the next batch, everything from the opening of the manifest on included."""
    from samplers import make_segments, name_of

    with tempfile.TemporaryDirectory() as folder:
        os.environ["SAMPLER_BENCHMARK_FOLDER"] = folder
        make_segments(count).save(name_of(count))
        elapsed = in_processes(_resume, [(folder, count)])
    row(f"resume in the middle of {count:,} segments, manifest and plan included", f"{elapsed:.1f} s")


def measure_gpu(seconds: float) -> None:
    """The table of a GPU, where there is one."""
    if not torch.cuda.is_available():
        row("GPU", "none here")
        return
    from train_gpu import print_tables

    print_tables(seconds)


def row(what: str, value: str, goal: str = "") -> None:
    """Print a row."""
    print(f"| {what} | {value} | {goal} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="about how long each row takes")
    parser.add_argument("--segments", type=int, default=10_000_000, help="segments of the epoch that is resumed")
    parser.add_argument("--only", nargs="+", default=[], help="rows to measure")
    args = parser.parse_args()
    rows: dict[str, Callable[[], None]] = {
        "loop": lambda: measure_loop(args.seconds),
        "ranks": lambda: measure_ranks(args.seconds),
        "data": lambda: measure_data(args.seconds),
        "checkpoint": measure_checkpoint,
        "resume": lambda: measure_resume(args.segments),
        "gpu": lambda: measure_gpu(args.seconds),
    }
    unknown = set(args.only) - set(rows)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(rows)}")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, batches of {BATCH_SIZE} x {CHUNK_SECONDS} s\n"
    )
    print("| what | measured | goal |\n|---|---|---|")
    for name, measure in rows.items():
        if not args.only or name in args.only:
            measure()


if __name__ == "__main__":
    main()
