"""What tests share: where the fixture folder is, small signals, closeness in the project's terms."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parent.parent
SHARED_VARIABLE = "HYPERION_LITE_SHARED"
DEMAND_VARIABLE = "HYPERION_LITE_REQUIRE_SHARED"


def shared_folder() -> Path:
    """The folder of fixtures: ``$HYPERION_LITE_SHARED``, by default ``../shared`` beside the clone."""
    return Path(os.environ.get(SHARED_VARIABLE, _ROOT.parent / "shared"))


def have_shared() -> bool:
    """Whether the fixture folder is there. Without it tests skip, unless ``$HYPERION_LITE_REQUIRE_SHARED`` demands it."""
    if (shared_folder() / "fixtures").is_dir():
        return True
    if os.environ.get(DEMAND_VARIABLE):
        raise FileNotFoundError(f"{DEMAND_VARIABLE} is set, but there is no {shared_folder() / 'fixtures'}")
    return False


def shared_path(relative: str) -> Path:
    """A fixture; skips the calling test where the folder is missing."""
    if not have_shared():
        pytest.skip(f"the fixture folder {shared_folder()} is not part of a clone; set {SHARED_VARIABLE} to use one")
    path = shared_folder() / relative
    if not path.exists():
        raise FileNotFoundError(f"fixture {path}")
    return path


def slow_but(cases: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Parameters of a test: those of ``cases`` that are not in ``quick`` are marked slow."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]
