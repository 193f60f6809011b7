"""Speed perturbation: play faster or slower, with tempo and pitch changing together."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.augment.base import Augmenter
from hyperion_lite.data.resample import resample


def change_speed(audio: np.ndarray, speed: float) -> np.ndarray:
    """Resample ``audio`` (num_samples,) so that it plays ``speed`` times as fast at the same sampling frequency.

    The result has ``num_samples / speed`` samples, rounded to the nearest and at least one; float32. ``speed`` is taken as a fraction
    with a denominator of at most 1000.
    """
    ratio = Fraction(speed).limit_denominator(1000)
    faster = resample(audio.astype(np.float32, copy=False), ratio.numerator, ratio.denominator)
    return faster if faster.size else audio[:1].astype(np.float32)


class SpeedAugment(Augmenter):
    """Plays the waveform at one of several speeds (Ko et al., "Audio augmentation for speech recognition", 2015).

    The length changes: ``round(num_samples / speed)``. A voice at another speed can count as another speaker: with ``new_classes``,
    the index of a class becomes ``index + num_classes * k``, where ``k`` is the position of the speed, from 1, among those of
    ``speeds`` that are not 1, in the order they are written; the unchanged voice keeps ``k = 0``. The table then needs
    ``num_classes * (1 + number of speeds other than 1)`` outputs.

    Args:
        speeds: factors to choose from, all equally probable; 1.0 leaves the waveform as it is.
        new_classes: names of the classes (``["speaker"]``) whose index changes with the speed.
    """

    type_name = "speed"

    def __init__(self, speeds: list[float] | None = None, new_classes: list[str] | None = None) -> None:
        self.speeds = [float(speed) for speed in ([0.9, 1.0, 1.1] if speeds is None else speeds)]
        if not self.speeds or not all(0.1 <= speed <= 10 for speed in self.speeds):
            raise ConfigError(f"speeds must be one or more factors within 0.1 to 10, got {speeds!r}")
        if len(set(self.speeds)) < len(self.speeds):
            raise ConfigError(f"speeds must differ from each other, got {speeds!r}")
        self._new_classes = list(new_classes or [])
        self._changed = [speed for speed in self.speeds if speed != 1.0]

    @property
    def class_multiplier(self) -> int:
        """1 + the number of speeds other than 1, where speeds make new classes."""
        return 1 + len(self._changed) if self._new_classes else 1

    @property
    def new_classes(self) -> list[str]:
        """Names of the classes that the speeds multiply."""
        return list(self._new_classes)

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``speed``, and ``class_shift`` (``k``) with new classes."""
        speed = self.speeds[int(rng.integers(len(self.speeds)))]
        info: dict[str, Any] = {"speed": speed}
        if self._new_classes:
            info["class_shift"] = 0 if speed == 1.0 else 1 + self._changed.index(speed)
        return change_speed(audio, speed), info
