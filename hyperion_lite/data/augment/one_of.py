"""A choice between augmenters."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.augment.base import Augmenter
from hyperion_lite.data.augment.entry import parse_entries


class OneOfAugment(Augmenter):
    """Applies exactly one of several augmenters.

    Args:
        augmenters: entries as in the list of a configuration file, with ``weight`` (default 1) in place of ``prob``: the chance of an
            entry is its weight over the sum of the weights.
        base_folder: what relative paths in the entries are relative to; a configuration file supplies its own folder.
    """

    type_name = "one_of"

    def __init__(self, augmenters: list[dict[str, Any]], base_folder: str | None = None) -> None:
        self._entries = parse_entries(augmenters, base_folder, weight_key="weight", where="one_of")
        weights = np.array([entry.weight for entry in self._entries], dtype=np.float64)
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
            raise ConfigError(
                f"one_of: weights must be finite and not negative, with a positive sum, got {weights.tolist()}"
            )
        self._edges = np.cumsum(weights / weights.sum())
        self._edges[-1] = 1.0

    @property
    def class_multiplier(self) -> int:
        """The largest of its parts."""
        return max(entry.augmenter.class_multiplier for entry in self._entries)

    @property
    def new_classes(self) -> list[str]:
        """Those of its parts."""
        return [name for entry in self._entries for name in entry.augmenter.new_classes]

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``chosen``, the name of the entry, and what that draws."""
        chosen = self._entries[int(np.searchsorted(self._edges, rng.random(), side="right"))]
        audio, info = chosen.augmenter(audio, sample_freq, rng)
        return audio, {"chosen": chosen.name, **info}
