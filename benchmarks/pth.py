"""Speed of the checkpoint reader on a file of the structure of a 82-million-parameter TTS model, beside torch and plain file reads.

    python benchmarks/pth.py [--shapes kokoro_shape.json] [--repeat 7]

Prints one table. Both sides of every ratio are measured in this run, alternately, and the best of the repetitions counts. The file is
in the page cache, so that the numbers are about the readers and not about the disk; times are processor time
(user and system, all threads), which on an idle machine is the time that passes and on a busy one is not spoilt by the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hyperion_lite.pth import open_pth  # noqa: E402
from tests.helpers import shared_folder  # noqa: E402

_LISTING = "from hyperion_lite.pth import open_pth; f = open_pth({path!r}); assert len(list(f.tensors)) == {count}"
_TORCH_LISTING = (
    "import torch; d = torch.load({path!r}, map_location='cpu', mmap=True, weights_only=True); "
    "assert sum(len(part) for part in d.values()) == {count}"
)
# the high-water mark of the resident set, in kB, before and after
_PEAK = """
import re
from hyperion_lite.pth import open_pth
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
with open_pth({path!r}) as f:
    assert len(list(f.tensors)) == {count}
print(peak() - before)
"""


def best(repeat: int, *functions: Callable[[], object], clock: Callable[[], float] = time.process_time) -> list[float]:
    """Best time in seconds of each function; they take turns, so that a busy moment of the machine hits all."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeat):
        for function, measured in zip(functions, times, strict=True):
            start = clock()
            function()
            measured.append(clock() - start)
    return [min(measured) for measured in times]


def children_time() -> float:
    """Processor time in seconds of the processes that this one started and saw end."""
    times = os.times()
    return times.children_user + times.children_system


def python(code: str) -> str:
    """Run ``code`` in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def open_and_list(path: Path, count: int, repeat: int) -> list[tuple[str, ...]]:
    """Opening and listing, in this process and in fresh ones."""
    import torch

    def ours() -> None:
        with open_pth(path) as file:
            assert len(list(file.tensors)) == count

    def theirs() -> None:
        loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        assert sum(len(part) for part in loaded.values()) == count

    fields = {"path": str(path), "count": count}
    # short calls: three times as many find a quiet moment
    mine, torchs = best(3 * repeat, ours, theirs)
    listing, torch_listing = _LISTING.format(**fields), _TORCH_LISTING.format(**fields)
    start, torch_start = best(3, lambda: python(listing), lambda: python(torch_listing), clock=children_time)
    rows = [
        row(
            "open + list, ms",
            mine * 1e3,
            torchs * 1e3,
            torchs / mine,
            "<= 30 ms, >= 3x",
            mine <= 0.03 and torchs / mine >= 3,
        ),
        row("process start to listed names, s", start, torch_start, torch_start / start, "< 0.35 s", start < 0.35),
    ]
    if Path("/proc/self/status").exists():
        extra = int(python(_PEAK.format(**fields))) / 1e3
        rows.append(row("peak extra memory of listing, MB", extra, None, None, "<= 20 MB", extra <= 20))
    return rows


def read_values(path: Path, repeat: int) -> list[tuple[str, ...]]:
    """Reading every tensor beside reading the file, and single tensors.

    Into new memory both sides pay for its pages; into memory that is there already the file goes into one buffer of large pages, the
    tensors into 548 arrays.
    """
    import numpy as np

    size = path.stat().st_size
    with open_pth(path) as file:
        names = list(file.tensors)
        largest = max(names, key=lambda name: file.tensors[name].nbytes)
        buffers = {name: file.read_tensor(name) for name in names}
        whole = np.empty(size, dtype=np.uint8)

        def fresh() -> None:
            kept = [file.read_tensor(name) for name in names]
            assert len(kept) == len(names)

        def reused() -> None:
            for name in names:
                file.read_tensor(name, out=buffers[name])

        def raw_fresh() -> None:
            with open(path, "rb", buffering=0) as stream:
                assert len(stream.read()) == size

        def raw_reused() -> None:
            with open(path, "rb", buffering=0) as stream:
                assert stream.readinto(whole.data) == size

        tensors, plain = best(repeat, fresh, raw_fresh)
        tensors_again, plain_again = best(2 * repeat, reused, raw_reused)
        typical = "predictor.module.F0.1.conv1.weight_v"
        single, worst = best(repeat, lambda: file.read_tensor(typical), lambda: file.read_tensor(largest))
    gigabytes = size / 1e9
    return [
        row(
            "read all tensors, new arrays, GB/s", gigabytes / tensors, gigabytes / plain,
            plain / tensors, ">= 0.9x", plain / tensors >= 0.9,
        ),
        row(
            "read all tensors, reused arrays, GB/s", gigabytes / tensors_again, gigabytes / plain_again,
            plain_again / tensors_again, "", None,
        ),
        row("one tensor by name, 1.6 MB, ms", single * 1e3, None, None, "<= 5 ms", single <= 5e-3),
        row(f"the largest tensor, {buffers[largest].nbytes / 1e6:.1f} MB, ms", worst * 1e3, None, None, "", None),
    ]  # fmt: skip


def row(
    what: str, ours: float, other: float | None, ratio: float | None, target: str, met: bool | None
) -> tuple[str, ...]:
    """One line of the table; the ratio says how many times better ours is."""
    return (
        what,
        f"{ours:.3g}",
        "" if other is None else f"{other:.3g}",
        "" if ratio is None else f"{ratio:.2f}x",
        target,
        "" if met is None else ("yes" if met else "NO"),
    )


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Print the rows as a Markdown table."""
    lines = [("measured", "hyperion_lite.pth", "torch / file read", "ratio", "target", "met"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for number, line in enumerate(lines):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def main() -> None:
    """Build the file, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shapes", type=Path, help="list of [part, tensor, shape, storage, offset] that describes the file"
    )
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    shapes = args.shapes or shared_folder() / "fixtures" / "kokoro_shape.json"
    if not shapes.exists():
        parser.error(f"there is no {shapes}; name a list of shapes with --shapes")
    from tests.pth.builders import build_kokoro

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pth"
        build_kokoro(path, shapes)
        count = len(json.loads(shapes.read_text()))
        print(f"{path.stat().st_size:,} bytes, {count} tensors; best of {args.repeat} (opening: {3 * args.repeat})\n")
        print_table(open_and_list(path, count, args.repeat) + read_values(path, args.repeat))


if __name__ == "__main__":
    main()
