"""Augmenters that need nothing but the waveform: gain, dropped frequencies, dropped chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.augment.base import Augmenter
from hyperion_lite.data.augment.ranges import CountConfig, Range, RangeConfig
from hyperion_lite.data.augment.signal import convolve


class GainAugment(Augmenter):
    """Multiplies the waveform by a gain drawn uniformly in decibels. Nothing is clipped.

    Args:
        gain_db: range of the gain.
    """

    type_name = "gain"

    def __init__(self, gain_db: RangeConfig = (-12.0, 6.0)) -> None:
        self._gain_db = Range.parse(gain_db, "gain_db", -120.0, 120.0)

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``gain_db``."""
        gain_db = self._gain_db.uniform(rng)
        return audio * np.float32(10.0 ** (gain_db / 20.0)), {"gain_db": gain_db}


def band_stop(low: float, high: float, num_taps: int) -> np.ndarray:
    """Linear-phase FIR filter that removes ``low`` to ``high`` (fractions of the sampling frequency, 0 to 0.5).

    A windowed sinc (Hamming) of odd length; its delay is ``num_taps // 2`` samples.
    """
    n = np.arange(num_taps) - num_taps // 2
    window = np.hamming(num_taps)
    band = (2 * high * np.sinc(2 * high * n) - 2 * low * np.sinc(2 * low * n)) * window
    impulse = np.zeros(num_taps)
    impulse[num_taps // 2] = 1.0
    return impulse - band


class FreqDropAugment(Augmenter):
    """Removes narrow bands at random frequencies with linear-phase filters; length and timing stay.

    Args:
        num_bands: range of the number of bands.
        freq: range of the centre frequencies as fractions of half the sampling frequency.
        width: range of the widths, as such fractions.
        num_taps: odd length of each filter; its edges are about ``6.6 / num_taps`` of half the sampling frequency wide.
    """

    type_name = "freq_drop"

    def __init__(
        self,
        num_bands: CountConfig = (1, 3),
        freq: RangeConfig = (0.0, 1.0),
        width: RangeConfig = (0.02, 0.1),
        num_taps: int = 255,
    ) -> None:
        self._num_bands = Range.parse_count(num_bands, "num_bands")
        self._freq = Range.parse(freq, "freq", 0.0, 1.0)
        self._width = Range.parse(width, "width", 0.0, 1.0)
        if num_taps < 3 or num_taps % 2 == 0:
            raise ConfigError(f"num_taps must be odd and at least 3, got {num_taps}")
        self.num_taps = num_taps

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``bands``, a list of [low, high] in Hz."""
        impulse = np.ones(1)
        bands = []
        for _ in range(self._num_bands.count(rng)):
            centre, width = self._freq.uniform(rng), self._width.uniform(rng)
            low, high = max(centre - width / 2, 0.0) / 2, min(centre + width / 2, 1.0) / 2
            impulse = np.convolve(impulse, band_stop(low, high, self.num_taps))
            bands.append([low * sample_freq, high * sample_freq])
        return convolve(audio, impulse, delay=impulse.size // 2), {"bands": bands}


class ChunkDropAugment(Augmenter):
    """Sets random stretches to zero. They may overlap; never more than ``max_proportion`` of the waveform is dropped.

    Args:
        num_chunks: range of the number of stretches.
        duration: range of their durations in seconds.
        max_proportion: of the samples; the last stretch is cut, and further ones left out, to keep to it.
    """

    type_name = "chunk_drop"

    def __init__(
        self,
        num_chunks: CountConfig = (1, 5),
        duration: RangeConfig = (0.02, 0.1),
        max_proportion: float = 0.5,
    ) -> None:
        self._num_chunks = Range.parse_count(num_chunks, "num_chunks")
        self._duration = Range.parse(duration, "duration", 0.0)
        self.max_proportion = Range.parse(max_proportion, "max_proportion", 0.0, 1.0).low

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``chunks``, a list of [first sample, end sample]."""
        budget = int(self.max_proportion * audio.size)
        dropped = audio.copy()
        chunks: list[list[int]] = []
        for _ in range(self._num_chunks.count(rng)):
            length = min(round(self._duration.uniform(rng) * sample_freq), budget)
            start = int(rng.random() * (audio.size - length + 1))
            if length > 0:
                dropped[start : start + length] = 0.0
                chunks.append([start, start + length])
                budget -= length
        return dropped, {"chunks": chunks}
