"""Models that save and load themselves.

The classes are imported where they are used; :mod:`hyperion_lite.models.registry` knows which module defines which class.
"""

from __future__ import annotations

from hyperion_lite._lazy import lazy_names

_PUBLIC = {
    "HyperTorchModel": "hyperion_lite.models.hyper_torch_model",
}

__all__ = list(_PUBLIC)

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
