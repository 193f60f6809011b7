"""Bounded fuzzing as part of the tests: mutated seeds always; coverage-guided when atheris is installed."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hyperion_lite.pth import open_pth
from tests.fuzz.seeds import seed_files, seed_pickles, without_checksums
from tests.fuzz.target import as_checkpoint, exercise

_ROOT = Path(__file__).resolve().parents[2]
SECONDS_VARIABLE = "HYPERION_LITE_FUZZ_SECONDS"


def test_seeds_are_valid_files() -> None:
    for name, data in seed_files().items():
        with open_pth(data, verify="all") as file:
            assert len(file.tensors) > 0 or "python" in name or "numpy" in name
        exercise(data)
    for data in seed_pickles().values():
        open_pth(as_checkpoint(data), verify="all").close()


def _mutated(generator: random.Random, data: bytes, others: list[bytes]) -> bytes:
    raw = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 4, 16))):
        at = generator.randrange(len(raw))
        kind = generator.randrange(6)
        if kind == 0:
            raw[at] = generator.randrange(256)
        elif kind == 1:
            raw[at] ^= 1 << generator.randrange(8)
        elif kind == 2:
            del raw[at : at + generator.randrange(1, 9)]
            raw = raw or bytearray(b"P")
        elif kind == 3:
            raw[at:at] = raw[at : at + generator.randrange(1, 40)]
        elif kind == 4:
            raw[at : at + 8] = generator.choice((b"\xff" * 8, bytes(8), b"\xff\xff\xff\x7f", bytes(7) + b"\x80"))
        else:
            other = generator.choice(others)
            start = generator.randrange(len(other))
            raw[at:at] = other[start : start + generator.randrange(1, 60)]
    return bytes(raw)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_seeds_raise_nothing_but_our_error(seed: int) -> None:
    generator = random.Random(seed)
    files = [without_checksums(data) for data in seed_files().values()] + list(seed_pickles().values()) * 3
    slowest = 0.0
    for _ in range(400):
        data = _mutated(generator, generator.choice(files), files)
        start = time.process_time()
        exercise(data)
        slowest = max(slowest, time.process_time() - start)
    assert slowest < 2


def test_coverage_guided_fuzzing_finds_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install atheris")
    seconds = os.environ.get(SECONDS_VARIABLE, "20")
    command = [sys.executable, "-m", "tests.fuzz.fuzz_pth", str(tmp_path / "corpus"), f"-max_total_time={seconds}"]
    command.append(f"-artifact_prefix={tmp_path}/")
    # a process begins with the peak memory of the one that starts it, and these tests may have more than the fuzzer is allowed
    small = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"]
    done = subprocess.run([*small, *command], cwd=_ROOT, capture_output=True, text=True, timeout=int(seconds) + 120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done" in done.stderr
