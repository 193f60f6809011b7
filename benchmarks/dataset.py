"""Reading batches against raw reads of the same ranges, and the memory of the workers over epochs. Prints tables.

    python benchmarks/dataset.py [--recordings 400] [--workers 2] [--chunk 3.0] [--epochs 6] [--folder DIR]

"raw" is ``soundfile.read(path, start=..., frames=..., dtype="float32")`` of every range of an epoch and nothing else, by as many
processes as there are workers; "loader" makes collated batches of the same ranges, class labels included. All run alternately. Without
workers the best of several rounds counts, batch by batch; with them, the median of the rounds, and of the ratios within a round: one
lucky moment of a shared machine would decide between best times of whole epochs. Starting processes is left out. With workers, the
loader moves its batches to the main process, which the raw reads do not; "peer" does: a plain ``torch.utils.data.DataLoader`` over the
same batches of ranges, whose data set stacks bare reads. Each starts from files that the system holds in memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile as sf
import torch

from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.manifests import HyperDataset, RecordingSet, SegmentSet
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory

SAMPLE_FREQ = 16000
Ranges = list[tuple[str, float, float]]


def write_dataset(folder: Path, num_recordings: int, suffix: str, seconds: float = 12.0) -> HyperDataset:
    """Recordings of modulated noise, one segment each, ten of a speaker."""
    rng = np.random.default_rng(0)
    length = round(seconds * SAMPLE_FREQ)
    rows = []
    for index in range(num_recordings):
        path = folder / f"rec{index}.{suffix}"
        envelope = 0.05 + 0.1 * np.abs(np.sin(np.arange(length) * (index % 7 + 1) / SAMPLE_FREQ))
        sf.write(path, envelope * rng.standard_normal(length), SAMPLE_FREQ, subtype="PCM_16")
        rows.append({"id": f"rec{index}", "storage_path": str(path), "sample_freq": SAMPLE_FREQ, "duration": seconds})
    segments = [
        {"id": f"seg{i}", "recording": f"rec{i}", "start": 0.0, "duration": seconds, "speaker": f"spk{i // 10}"}
        for i in range(num_recordings)
    ]
    return HyperDataset(SegmentSet.from_rows(segments), RecordingSet.from_rows(rows))


def ranges_of(dataset: AudioDataset, sampler: Any, epoch: int) -> Ranges:
    """Path, start and duration of every chunk of an epoch."""
    sampler.set_epoch(epoch)
    paths = {name: dataset.recordings[f"rec{name[3:]}"]["storage_path"] for name in dataset.ids}
    return [(paths[key[0]], key[1], key[2]) for batch in sampler for key in batch]


def read_raw(ranges: Ranges) -> int:
    """Read all ranges; the number of samples."""
    total = 0
    for path, start, duration in ranges:
        first, count = round(start * SAMPLE_FREQ), round(duration * SAMPLE_FREQ)
        total += len(sf.read(path, start=first, frames=count, dtype="float32")[0])
    return total


class RawBatches(torch.utils.data.Dataset):
    """Batches of bare reads of ranges of equal duration."""

    def __init__(self, batches: list[Ranges]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> torch.Tensor:
        reads = [
            sf.read(path, start=round(start * SAMPLE_FREQ), frames=round(duration * SAMPLE_FREQ), dtype="float32")[0]
            for path, start, duration in self.batches[index]
        ]
        return torch.from_numpy(np.stack(reads))


def batches_of(sampler: Any, ranges: Ranges) -> list[Ranges]:
    """The ranges of an epoch, batch by batch."""
    sampler.set_epoch(0)
    sizes = [len(batch) for batch in sampler]
    return [ranges[end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True)]


class Row(NamedTuple):
    """Seconds for an epoch of raw reads, the peer and the loader, and what the first two are divided by the third."""

    raw: float
    peer: float
    ours: float
    raw_ratio: float
    peer_ratio: float


def time_of(run: Callable[[], Any]) -> float:
    """Seconds that ``run()`` takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def private_mb(pid: int) -> float:
    """Memory that a process alone holds, in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {line.split()[0]: float(line.split()[1]) / 1024 for line in lines}
    return fields["Private_Clean:"] + fields["Private_Dirty:"]


def shared_mb(pid: int) -> float:
    """Shared memory that a process has touched, in MB: the batches of a worker."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("RssShmem:")) / 1024


def throughput(dataset: AudioDataset, sampler: Any, workers: int, rounds: int) -> Row:
    """An epoch with workers."""
    loader = make_loader(dataset, sampler, num_workers=workers)
    ranges = ranges_of(dataset, sampler, 0)
    peer_loader = torch.utils.data.DataLoader(
        RawBatches(batches_of(sampler, ranges)), batch_size=None, num_workers=workers, persistent_workers=True
    )
    raw, peer, ours = [], [], []
    with multiprocessing.Pool(workers) as pool:
        shares = [ranges[i::workers] for i in range(workers)]
        for _ in range(rounds + 1):
            raw.append(time_of(lambda: pool.map(read_raw, shares)))
            peer.append(time_of(lambda: [None for _ in peer_loader]))
            loader.set_epoch(0)
            ours.append(time_of(lambda: [None for _ in loader]))
    times = np.array([raw[1:], peer[1:], ours[1:]])
    ratios = np.median(times[:2] / times[2], axis=1)
    return Row(*np.median(times, axis=1).tolist(), *ratios.tolist())


def throughput_here(dataset: AudioDataset, sampler: Any, rounds: int) -> Row:
    """An epoch in this process: sums of the best times of its batches."""
    parts = batches_of(sampler, ranges_of(dataset, sampler, 0))
    raw, peer, ours = np.full((3, len(parts)), np.inf)
    raw_batches = RawBatches(parts)
    loader = make_loader(dataset, sampler, num_workers=0)
    for _ in range(rounds):
        loader.set_epoch(0)
        batches = iter(loader)
        for index, part in enumerate(parts):
            raw[index] = min(raw[index], time_of(partial(read_raw, part)))
            peer[index] = min(peer[index], time_of(partial(raw_batches.__getitem__, index)))
            ours[index] = min(ours[index], time_of(partial(next, batches)))
    sums = [float(times.sum()) for times in (raw, peer, ours)]
    return Row(*sums, sums[0] / sums[2], sums[1] / sums[2])


def memory(dataset: AudioDataset, sampler: Any, workers: int, epochs: int) -> list[tuple[float, float]]:
    """Private memory of the largest worker after each epoch, and the batches in it, which nothing here reads."""
    loader = make_loader(dataset, sampler, num_workers=workers)
    used = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for _ in loader:
            pass
        pids = [child.pid or 0 for child in multiprocessing.active_children()]
        used.append((max(map(private_mb, pids)), max(map(shared_mb, pids))))
    return used


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recordings", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chunk", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        print(
            "| files | workers | raw reads (s) | peer (s) | loader (s) | loader / raw | loader / peer | audio hours per s |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for suffix in ("wav", "flac"):
            folder = Path(temporary) / suffix
            folder.mkdir()
            tables = write_dataset(folder, args.recordings, suffix)
            dataset = AudioDataset(dataset=tables, class_names=["speaker"])
            sampler = SegSamplerFactory.create(
                dataset,
                sampler_type="random_seg_chunk_sampler",
                min_chunk_length=args.chunk,
                max_chunk_length=args.chunk,
                min_batch_size=args.batch,
                max_batch_size=args.batch,
                num_chunks_per_seg_epoch=4,
            )
            hours = sum(duration for _, _, duration in ranges_of(dataset, sampler, 0)) / 3600
            for workers in sorted({0, args.workers}):
                row = (
                    throughput(dataset, sampler, workers, args.rounds)
                    if workers
                    else throughput_here(dataset, sampler, args.rounds)
                )
                ratios = f"{row.raw_ratio:.2f} | {row.peer_ratio:.2f} | {hours / row.ours:.2f}"
                print(
                    f"| {suffix} | {workers} | {row.raw:.2f} | {row.peer:.2f} | {row.ours:.2f} | {ratios} |", flush=True
                )
        used = memory(dataset, sampler, max(args.workers, 1), args.epochs)
        print(
            f"\nPrivate memory of the largest of {max(args.workers, 1)} workers after each epoch, and how much of it are batches, in MB:"
        )
        print(", ".join(f"{private:.1f} ({shared:.1f})" for private, shared in used))


if __name__ == "__main__":
    main()
