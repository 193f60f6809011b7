"""Settings of every test run: one thread a process, no time limits in property tests."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("default")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes, one that is done takes over tests of another, unless ``--dist`` says something else."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of training come first: they are the longest, and with several processes none should end with them."""
    items.sort(key=lambda item: "trainers" not in item.path.parts)


@pytest.fixture(autouse=True)
def same_random_numbers_in_every_run() -> None:
    """A test that draws weights or signals draws the same ones whichever tests ran before it."""
    import torch

    torch.manual_seed(0)
