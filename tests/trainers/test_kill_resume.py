"""Training that is killed at any moment and started again ends with the same bits as training that was left alone."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainers.runs import Run, complete_run, last_checkpoint

NUM_KILLS = 10

BASE: dict[str, Any] = {
    "num_epochs": 3,
    "save_steps": 3,
    "val_steps": 5,
    "keep_last": 3,
    "grad_clip": 1.0,
    "loggers": None,
    "optim": {"opt_type": "adamw", "lr": 0.01},
    "lrsched": {"lrsch_type": "cos_lr", "t": 40, "warmup_steps": 5, "update_lr_on_opt_step": True},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "one rank, accumulation": {
        "trainer": {
            **BASE,
            "grad_acc_steps": 4,
            "swa_start": 6,
            "swa_update_steps": 2,
            "swa_anneal_steps": 4,
            "ema_decay": 0.9,
        }
    },
    "one rank, loss scaling, asynchronous": {
        "trainer": {
            **BASE,
            "use_amp": True,
            "amp_dtype": "float16",
            "async_save": True,
            "wdsched": {"wdsch_type": "cos_wd"},
        }
    },
    "two ranks, accumulation": {"world_size": 2, "trainer": {**BASE, "grad_acc_steps": 2, "ema_decay": 0.9}},
}
DATA = {"seconds_per_item": 0.003, "num_items": 40}


def assert_same(a: Any, b: Any, where: str) -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for index, pair in enumerate(zip(a, b, strict=True)):
            assert_same(*pair, f"{where}[{index}]")
    else:
        assert a == b, where


def assert_same_checkpoint(a: Path, b: Path) -> None:
    files = sorted(str(p.relative_to(a)) for p in a.rglob("*") if p.is_file())
    assert files == sorted(str(p.relative_to(b)) for p in b.rglob("*") if p.is_file())
    readers = {".json": lambda p: json.loads(p.read_text()), ".safetensors": load_file}
    for name in files:
        read = readers.get(Path(name).suffix, lambda p: torch.load(p, weights_only=True))
        assert_same(read(a / name), read(b / name), name)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir())


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_killed_runs_end_with_the_bits_of_an_undisturbed_one(tmp_path: Path, name: str) -> None:
    spec = {**CONFIGS[name], "data": DATA}
    complete_run(tmp_path / "warm-up", {**spec, "trainer": {**spec["trainer"], "max_steps": 1}})
    begin = time.monotonic()
    expected = complete_run(tmp_path / "undisturbed", spec)
    duration = time.monotonic() - begin
    rng = random.Random(name)
    deaths: list[Any] = [("save", 2), ("save", 6), ("validation", 2), ("validation", 4)]
    kills, attempt = 0, 0
    while kills < NUM_KILLS or deaths:
        attempt += 1
        path = tmp_path / f"killed{attempt}"
        for _ in range(6):
            if deaths:
                codes = Run(path, {**spec, "die": deaths.pop(0)}).wait()
                kills += codes[0] == -9
            else:
                run = Run(path, spec)
                time.sleep(rng.uniform(0.05, 0.5) * duration)
                kills += run.kill()
        assert_same_checkpoint(complete_run(path, spec), expected)
        assert names(path) == names(tmp_path / "undisturbed")
        assert last_checkpoint(path).name == expected.name
        assert (path / "train_log.csv").read_text() == (tmp_path / "undisturbed" / "train_log.csv").read_text()
    assert kills >= NUM_KILLS
