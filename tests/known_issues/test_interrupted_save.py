"""The process was killed while it saved: the file was there, half of it, under its final name.

Right: a file has its name when it is complete; until then the one before it stands, or none.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.serialization import directory
from tests.models.small_models import build


def half_then_death(write: Callable[..., Any]) -> Callable[..., Any]:
    """``write``, which leaves half of the file and a dead process."""

    def dying(value: Any, path: Any, *rest: Any, **options: Any) -> None:
        write(value, path, *rest, **options)
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    return dying


def save_and_die(path: str) -> None:
    """Save another model to ``path`` and be killed in the middle of the weights."""
    torch.save = half_then_death(torch.save)
    directory.save_file = half_then_death(directory.save_file)
    build("basic-strided", seed=1).save(path)


@pytest.mark.parametrize("form", ["m.pth", "m"])
def test_the_model_before_is_still_there(tmp_path: Path, form: str) -> None:
    model = build("basic-strided")
    model.save(tmp_path / form)
    for target in (form, f"new-{form}"):
        process = multiprocessing.get_context("fork").Process(target=save_and_die, args=(str(tmp_path / target),))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    loaded = HyperTorchModel.auto_load(tmp_path / form)
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in model.state_dict().items())
    with pytest.raises(FileNotFoundError):
        HyperTorchModel.auto_load(tmp_path / f"new-{form}")
    left = [p for p in tmp_path.iterdir() if p.name != form]
    assert len(left) == 2
    for path in left:
        with pytest.raises((FileNotFoundError, ValueError)):
            HyperTorchModel.auto_load(path)
