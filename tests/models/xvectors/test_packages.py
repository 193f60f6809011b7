"""Public names import from their packages."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize("package", ["hyperion_lite.layers", "hyperion_lite.models.xvectors"])
def test_public_names_import_from_the_package(package):
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        module.Missing
