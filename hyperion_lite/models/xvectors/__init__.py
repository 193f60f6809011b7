"""X-vectors on acoustic features.

The names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "XVector": "hyperion_lite.models.xvectors.xvector",
    "XVectorOutput": "hyperion_lite.models.xvectors.xvector",
    "ResNet1dXVector": "hyperion_lite.models.xvectors.resnet1d_xvector",
    "ResNetXVector": "hyperion_lite.models.xvectors.resnet_xvector",
    "RebuildReport": "hyperion_lite.models.xvectors.output_layers",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
