"""Importing transformers, whatever state the installed torchaudio is in."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from hyperion_lite.core.extras import require


def import_transformers(module: str) -> ModuleType:
    """Import ``transformers.<module>``.

    Newer releases of transformers import torchaudio wherever it is installed. One whose compiled part does not match torch raises
    ``OSError`` then; nothing here needs it, so transformers is made to see none.

    Raises:
        MissingDependencyError: transformers is absent or broken.
    """
    name = f"transformers.{module}"
    if name in sys.modules:
        return sys.modules[name]
    with _hidden_if_broken("torchaudio"):
        return require(name, purpose="Hugging Face encoders")


@contextmanager
def _hidden_if_broken(name: str) -> Iterator[None]:
    if _works(name):
        yield
        return
    before = {key for key in sys.modules if key == name or key.startswith(f"{name}.")}
    saved = {key: sys.modules.pop(key) for key in before}
    # an entry of None is how Python itself marks a module that is not to be found
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
        sys.modules.update(saved)


def _works(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError):
        return False
    return True
