"""Noise, music and babble, added at a signal-to-noise ratio."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hyperion_lite.data.augment.base import Augmenter
from hyperion_lite.data.augment.ranges import CountConfig, Range, RangeConfig
from hyperion_lite.data.augment.signal import mix, power
from hyperion_lite.data.augment.sources import AudioSource, SourceConfig


class AdditiveAugment(Augmenter):
    """Common part of what adds recordings to the waveform: a source, and a range of signal-to-noise ratios.

    The ratio is that of the mean squares of the waveform and of what is added, over the whole waveform. Where either is digital
    silence there is no ratio, and the waveform stays as it is.
    """

    path_keys: ClassVar[tuple[str, ...]] = SourceConfig.PATH_KEYS

    def _open(self, snr: RangeConfig, source: SourceConfig) -> None:
        self._snr = Range.parse(snr, "snr", -100.0, 200.0)
        self.source = AudioSource.open(source, self.type_name)

    def _mix(
        self, audio: np.ndarray, noise: np.ndarray, snr: float, info: dict[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return mix(audio, noise, snr), {"snr": snr, **info}


class NoiseAugment(AdditiveAugment):
    """Adds one random stretch of one random recording of noise. A stretch too short for the waveform is repeated.

    Args:
        snr: range of the signal-to-noise ratio in dB.
        dataset_path: data set of the noises (folder or ``dataset.yaml``).
        recordings_file: or a table of recordings,
        segments_file: with or without segments of them.
    """

    type_name = "noise"

    def __init__(
        self,
        snr: RangeConfig = (0.0, 15.0),
        dataset_path: str | None = None,
        recordings_file: str | None = None,
        segments_file: str | None = None,
    ) -> None:
        self._open(snr, SourceConfig(dataset_path, recordings_file, segments_file))

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``snr`` and ``source``, the id of what was added."""
        snr = self._snr.uniform(rng)
        noise, source_id = self.source.draw(rng, audio.size, sample_freq)
        return self._mix(audio, noise, snr, {"source": source_id})


class MusicAugment(NoiseAugment):
    """As :class:`NoiseAugment`, with the milder range that is usual for music.

    Args:
        snr: range of the signal-to-noise ratio in dB.
        dataset_path: data set of the music (folder or ``dataset.yaml``).
        recordings_file: or a table of recordings,
        segments_file: with or without segments of them.
    """

    type_name = "music"

    def __init__(
        self,
        snr: RangeConfig = (5.0, 15.0),
        dataset_path: str | None = None,
        recordings_file: str | None = None,
        segments_file: str | None = None,
    ) -> None:
        super().__init__(snr, dataset_path, recordings_file, segments_file)


class BabbleAugment(AdditiveAugment):
    """Adds several other voices at once. Each has the same power in the sum.

    Args:
        snr: range of the signal-to-noise ratio in dB, of the sum of the voices.
        num_speakers: range of the number of voices.
        dataset_path: data set of the voices (folder or ``dataset.yaml``).
        recordings_file: or a table of recordings,
        segments_file: with or without segments of them.
    """

    type_name = "babble"

    def __init__(
        self,
        snr: RangeConfig = (13.0, 20.0),
        num_speakers: CountConfig = (3, 7),
        dataset_path: str | None = None,
        recordings_file: str | None = None,
        segments_file: str | None = None,
    ) -> None:
        self._num_speakers = Range.parse_count(num_speakers, "num_speakers")
        self._open(snr, SourceConfig(dataset_path, recordings_file, segments_file))

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``snr`` and ``sources``, the ids of what was added."""
        snr = self._snr.uniform(rng)
        babble = np.zeros(audio.size)
        ids = []
        for _ in range(self._num_speakers.count(rng)):
            voice, source_id = self.source.draw(rng, audio.size, sample_freq)
            level = power(voice)
            if level > 0.0:
                babble += voice / np.sqrt(level)
            ids.append(source_id)
        return self._mix(audio, babble, snr, {"sources": ids})
