"""Opening a large Parquet manifest, and what it costs each worker process. Prints a table.

    python benchmarks/manifests.py [--rows 10000000] [--workers 4] [--folder DIR]

The private memory of a worker is what it alone holds (USS of /proc/self/smaps_rollup); pages of the mapped files are shared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hyperion_lite.data.manifests import SegmentSet

LOOKUPS = 20_000


def memory_mb() -> dict[str, float]:
    """Private, proportional and resident memory of this process in MB."""
    fields: dict[str, float] = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        fields[name.rstrip(":")] = float(value) / 1024
    private = fields["Private_Clean"] + fields["Private_Dirty"]
    return {"private": private, "pss": fields["Pss"], "rss": fields["Rss"]}


def write_manifest(path: Path, rows: int, block: int = 500_000) -> None:
    """A segment manifest of 20,000 speakers with ids of 24 characters."""
    rng = np.random.default_rng(0)
    writer: pq.ParquetWriter | None = None
    for first in range(0, rows, block):
        numbers = np.arange(first, min(rows, first + block))
        speakers = [f"spk{i % 20_000:06d}" for i in numbers]
        table = pa.table(
            {
                "id": [f"{s}-utt{i:010d}" for s, i in zip(speakers, numbers, strict=True)],
                "recording": [f"rec{i // 10:010d}" for i in numbers],
                "start": (numbers % 10) * 12.0,
                "duration": rng.uniform(2.0, 12.0, len(numbers)),
                "speaker": speakers,
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def _worker(make: Callable[[], SegmentSet], rows: int, seed: int, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    before = memory_mb()
    manifest = make()
    draw = random.Random(seed)
    start = time.process_time()
    for _ in range(LOOKUPS):
        i = draw.randrange(rows)
        row = manifest[f"spk{i % 20_000:06d}-utt{i:010d}"]
        assert row["recording"] == f"rec{i // 10:010d}"
    took = time.process_time() - start
    after = memory_mb()
    queue.put({**{name: after[name] - before[name] for name in after}, "lookup_us": took / LOOKUPS * 1e6})


class _Reopen:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> SegmentSet:
        return SegmentSet.from_file(self.path)


class _Given:
    def __init__(self, manifest: SegmentSet) -> None:
        self.manifest = manifest

    def __call__(self) -> SegmentSet:
        return self.manifest


def run_workers(method: str, make: Callable[[], SegmentSet], rows: int, workers: int) -> list[dict[str, float]]:
    """Each worker looks up :data:`LOOKUPS` random ids; returns what each used in addition."""
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    processes = [context.Process(target=_worker, args=(make, rows, seed, queue)) for seed in range(workers)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return results


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write the manifest; a temporary folder by default"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "segments.parquet"
        write_manifest(path, args.rows)
        print(f"{args.rows} rows, {path.stat().st_size / 1e6:.0f} MB of Parquet")
        for what in ("first open (makes the copy)", "open again"):
            before, start, cpu = memory_mb(), time.perf_counter(), time.process_time()
            manifest = SegmentSet.from_file(path)
            took, cpu = time.perf_counter() - start, time.process_time() - cpu
            added = memory_mb()["private"] - before["private"]
            print(f"{what:<34} {took:8.3f} s ({cpu:.3f} s of CPU)   {added:6.1f} MB private")
        copied = sum(f.stat().st_size for f in Path(folder).rglob("*") if f != path)
        print(f"{'size of the copy':<34} {copied / 1e6:8.0f} MB")
        wanted = manifest.ids[: min(args.rows, 1_000_000)]
        start, cpu = time.perf_counter(), time.process_time()
        manifest.indices(wanted)
        took, cpu = time.perf_counter() - start, time.process_time() - cpu
        print(f"{f'look up {len(wanted)} ids at once':<34} {took:8.3f} s ({cpu:.3f} s of CPU)")
        print(f"\n{LOOKUPS} random id look-ups with whole rows, in each of {args.workers} workers")
        print(f"{'worker':<34} {'private MB':>10} {'pss MB':>8} {'rss MB':>8} {'CPU us/look-up':>15}")
        for name, method, make in (
            ("forked", "fork", _Given(manifest)),
            ("spawned, manifest sent", "spawn", _Given(manifest)),
            ("spawned, opens the file", "spawn", _Reopen(path)),
        ):
            for result in run_workers(method, make, args.rows, args.workers)[:1]:
                print(
                    f"{name:<34} {result['private']:>10.1f} {result['pss']:>8.1f} {result['rss']:>8.1f} {result['lookup_us']:>15.1f}"
                )


if __name__ == "__main__":
    main()
