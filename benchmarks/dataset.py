"""Reading batches against raw reads of the same ranges, and the memory of the workers over epochs. Prints tables.

    python benchmarks/dataset.py [--recordings 400] [--workers 2] [--chunk 3.0] [--epochs 6] [--folder DIR]

"raw" is ``soundfile.read(path, start=..., frames=..., dtype="float32")`` of every range of an epoch and nothing else, by as many
processes as there are workers; "loader" makes collated batches of the same ranges, class labels included. Both run alternately, and the
best of several rounds counts: of every batch without workers, of the whole epoch with them. Starting processes is left out. With workers,
the loader moves its batches to the main process, which the raw reads do not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf

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


def throughput(dataset: AudioDataset, sampler: Any, workers: int, rounds: int) -> tuple[float, float]:
    """Best seconds of raw reads and of the loader for an epoch, with workers."""
    loader = make_loader(dataset, sampler, num_workers=workers)
    ranges = ranges_of(dataset, sampler, 0)
    raw, ours = [], []
    with multiprocessing.Pool(workers) as pool:
        shares = [ranges[i::workers] for i in range(workers)]
        for _ in range(rounds + 1):
            raw.append(time_of(lambda: pool.map(read_raw, shares)))
            loader.set_epoch(0)
            ours.append(time_of(lambda: [None for _ in loader]))
    return min(raw[1:]), min(ours[1:])


def throughput_here(dataset: AudioDataset, sampler: Any, rounds: int) -> tuple[float, float]:
    """Sums over the batches of an epoch of the best seconds of raw reads and of the loader, in this process."""
    ranges = ranges_of(dataset, sampler, 0)
    sampler.set_epoch(0)
    sizes = [len(batch) for batch in sampler]
    parts = [ranges[end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    raw, ours = np.full((2, len(parts)), np.inf)
    loader = make_loader(dataset, sampler, num_workers=0)
    for _ in range(rounds):
        loader.set_epoch(0)
        batches = iter(loader)
        for index, part in enumerate(parts):
            raw[index] = min(raw[index], time_of(partial(read_raw, part)))
            ours[index] = min(ours[index], time_of(partial(next, batches)))
    return float(raw.sum()), float(ours.sum())


def memory(dataset: AudioDataset, sampler: Any, workers: int, epochs: int) -> list[float]:
    """Private memory of the largest worker after each epoch."""
    loader = make_loader(dataset, sampler, num_workers=workers)
    used = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for _ in loader:
            pass
        used.append(max(private_mb(child.pid or 0) for child in multiprocessing.active_children()))
    return used


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recordings", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chunk", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        print("| files | workers | raw reads (s) | loader (s) | loader / raw throughput | hours of audio per second |")
        print("|---|---|---|---|---|---|")
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
                raw, ours = (
                    throughput(dataset, sampler, workers, args.rounds)
                    if workers
                    else throughput_here(dataset, sampler, args.rounds)
                )
                print(f"| {suffix} | {workers} | {raw:.2f} | {ours:.2f} | {raw / ours:.2f} | {hours / ours:.2f} |")
        used = memory(dataset, sampler, max(args.workers, 1), args.epochs)
        print(f"\nPrivate memory of the largest of {max(args.workers, 1)} workers after each epoch, in MB:")
        print(", ".join(f"{value:.1f}" for value in used))


if __name__ == "__main__":
    main()
