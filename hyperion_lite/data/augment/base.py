"""What an augmenter is, and the table of their types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from hyperion_lite.core.config import Configurable, unknown_choice
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.registry import Registry

augmenters: Registry[type[Augmenter]] = Registry("augmenter")
"""Augmenter classes by the ``type`` of a configuration entry."""


class Augmenter(Configurable, ABC):
    """Changes a waveform at random, with the numbers of the generator that it is given and no others.

    A subclass names itself in ``type_name``. It holds no random state: two calls with equal arguments give equal results, in any
    process. It never changes its input.
    """

    type_name: ClassVar[str] = ""
    path_keys: ClassVar[tuple[str, ...]] = ()
    """Configuration keys that hold paths; relative ones are relative to the file of the configuration."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.type_name:
            augmenters.register(cls, cls.type_name)

    @abstractmethod
    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Augment one waveform.

        Args:
            audio: (num_samples,) float32, at least one sample.
            sample_freq: in Hz.
            rng: where all randomness comes from.

        Returns:
            The new waveform (num_samples,) float32, and what was drawn, as plain values.
        """

    @property
    def class_multiplier(self) -> int:
        """By how much the number of classes grows (speed perturbation with new classes), otherwise 1."""
        return 1

    @property
    def new_classes(self) -> list[str]:
        """Names of the classes that grow."""
        return []


def augmenter_class(type_name: str) -> type[Augmenter]:
    """The class of a configuration's ``type``.

    Raises:
        ConfigError: unknown; names the nearest and all known types.
    """
    if type_name not in augmenters:
        raise ConfigError(unknown_choice("augmenter type", type_name, augmenters))
    return augmenters.get(type_name)
