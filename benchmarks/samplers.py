"""Table of the samplers: time and memory of the plan of a large epoch, time of a resume in its middle, padding.

    python benchmarks/samplers.py --segments 10_000_000

Every row is measured in a process of its own. "memory" is what making the sampler and its plan adds to the peak of the process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from typing import Any

import numpy as np

FOLDER_VARIABLE = "SAMPLER_BENCHMARK_FOLDER"
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "seg_sampler, 128 segments": ("seg_sampler", {"max_batch_size": 128, "shuffle": True}),
    "seg_sampler, 400 s": ("seg_sampler", {"max_batch_length": 400.0, "shuffle": True}),
    "bucketing_seg_sampler, 400 s": ("bucketing_seg_sampler", {"max_batch_length": 400.0}),
    "random_seg_chunk_sampler, 2-4 s": (
        "random_seg_chunk_sampler",
        {"max_batch_length": 400.0, "min_chunk_length": 2.0, "max_chunk_length": 4.0},
    ),
    "class_weighted_random_seg_chunk_sampler, 2-4 s": (
        "class_weighted_random_seg_chunk_sampler",
        {"max_batch_length": 400.0, "min_chunk_length": 2.0, "max_chunk_length": 4.0, "class_name": "speaker"},
    ),
    "seg_chunk_sampler, 2-4 s": (
        "seg_chunk_sampler",
        {"max_batch_length": 400.0, "min_chunk_length": 2.0, "max_chunk_length": 4.0, "shuffle": True},
    ),
}


def make_segments(count: int) -> Any:
    """Segments of 2 to 20 s from 10 000 speakers."""
    import pyarrow as pa

    from hyperion_lite.data.manifests import SegmentSet

    rng = np.random.default_rng(0)
    numbers = np.arange(count)
    ids = pa.array(numbers).cast(pa.string())
    speaker = pa.array((numbers * 7919 % min(10_000, count)).astype(np.int32)).cast(pa.string())
    return SegmentSet.from_arrow(pa.table({"id": ids, "duration": rng.uniform(2.0, 20.0, count), "speaker": speaker}))


def name_of(count: int) -> str:
    """Where the segments of all rows are."""
    return os.path.join(os.environ[FOLDER_VARIABLE], f"segments_{count}.parquet")


def peak_gb() -> float:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)


class Clock:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Wall seconds, processor seconds."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def current_gb() -> float:
    """Resident memory of this process now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 1e9


def measure(name: str, count: int, results: Any) -> None:
    """One row, in a process of its own."""
    from hyperion_lite.data.manifests import SegmentSet
    from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory

    sampler_type, options = SAMPLERS[name]
    segments = SegmentSet.from_file(name_of(count))
    segments.column("duration")
    before = current_gb()
    clock = Clock()
    sampler = SegSamplerFactory.create(segments, sampler_type, **options)  # type: ignore[arg-type]
    batches = len(sampler)
    first = clock.read()
    clock = Clock()
    sampler.set_epoch(1)
    sampler.plan()
    second = clock.read()
    next(iter(sampler))  # reads the ids for the first time
    clock = Clock()
    sampler.set_epoch(1, batch=batches // 2)
    next(iter(sampler))
    resumed, _ = clock.read()
    memory = peak_gb() - before
    quick = count <= 1_000_000 or not sampler_type.startswith("class_weighted")
    share = 100 * sampler.account().padded_share if quick else float("nan")
    results.put((name, *first, *second, resumed * 1e3, memory, batches, share))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=10_000_000)
    parser.add_argument("--only", help="rows whose name contains this")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER_VARIABLE] = folder
        make_segments(args.segments).save(name_of(args.segments))
        print(f"{args.segments} segments of 2-20 s; seconds: wall (processor)")
        print(
            f"{'sampler':46} {'first plan':>14} {'next plan':>14} {'resume ms':>9} {'GB':>6} {'batches':>8} {'padding %':>9}"
        )
        for name in SAMPLERS:
            if args.only and args.only not in name:
                continue
            results = context.Queue()
            process = context.Process(target=measure, args=(name, args.segments, results))
            process.start()
            row = results.get()
            process.join()
            times = f"{row[1]:6.2f} ({row[2]:5.2f}) {row[3]:6.2f} ({row[4]:5.2f})"
            print(f"{row[0]:46} {times} {row[5]:9.2f} {row[6]:6.2f} {row[7]:8} {row[8]:9.2f}", flush=True)


if __name__ == "__main__":
    main()
