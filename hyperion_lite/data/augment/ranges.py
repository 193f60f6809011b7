"""Parameter ranges of augmenters: ``[low, high]`` or one number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hyperion_lite.core.errors import ConfigError

RangeConfig: TypeAlias = float | list[float] | tuple[float, float]
CountConfig: TypeAlias = int | list[int] | tuple[int, int]


@dataclass(frozen=True)
class Range:
    """A closed interval to draw from.

    Attributes:
        low: smallest value.
        high: largest value, at least ``low``.
    """

    low: float
    high: float

    @classmethod
    def parse(
        cls, value: RangeConfig | CountConfig, name: str, minimum: float = -math.inf, maximum: float = math.inf
    ) -> Range:
        """From the configuration: a number is the interval of itself.

        Raises:
            ConfigError: not one or two numbers, not in order, not finite, or outside ``minimum`` to ``maximum``.
        """
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if len(numbers) != len(values) or len(values) not in (1, 2):
            raise ConfigError(f"{name} must be a number or [low, high], got {value!r}")
        low, high = float(numbers[0]), float(numbers[-1])
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ConfigError(f"{name} must be finite with low <= high, got {value!r}")
        if low < minimum or high > maximum:
            raise ConfigError(f"{name} must be within {minimum:g} to {maximum:g}, got {value!r}")
        return cls(low, high)

    @classmethod
    def parse_count(cls, value: CountConfig, name: str, minimum: int = 1) -> Range:
        """As :meth:`parse`, for whole numbers."""
        parsed = cls.parse(value, name, minimum)
        if parsed.low != int(parsed.low) or parsed.high != int(parsed.high):
            raise ConfigError(f"{name} must be whole numbers, got {value!r}")
        return parsed

    def uniform(self, rng: np.random.Generator) -> float:
        """A value drawn uniformly; takes one number from ``rng`` even where there is nothing to choose."""
        return self.low + (self.high - self.low) * float(rng.random())

    def count(self, rng: np.random.Generator) -> int:
        """A whole number drawn uniformly, both ends included."""
        return int(rng.integers(int(self.low), int(self.high) + 1))
