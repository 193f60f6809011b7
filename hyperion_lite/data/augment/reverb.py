"""Rooms: convolution with a recorded or simulated impulse response."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.audio_errors import AudioFileError
from hyperion_lite.data.augment.base import Augmenter
from hyperion_lite.data.augment.signal import convolve, power
from hyperion_lite.data.augment.sources import AudioSource, SourceConfig

Normalization = Literal["energy", "peak", "none"]


def reverberate(audio: np.ndarray, impulse: np.ndarray, normalization: Normalization = "energy") -> np.ndarray:
    """``audio`` (num_samples,) in the room of ``impulse``, of the same length and not delayed; float32.

    The direct path is taken to be the largest sample of the impulse response: what comes before is kept, as a pre-echo, and the
    output begins with the direct sound of the first input sample.

    Args:
        audio: (num_samples,).
        impulse: (num_taps,), not silent.
        normalization: ``energy`` scales the response to unit energy, so that a white signal keeps its power; ``peak`` scales its
            direct path to 1; ``none`` takes it as it is.
    """
    h = impulse.astype(np.float64)
    delay = int(np.abs(h).argmax())
    if normalization == "energy":
        h = h / np.abs(h).max()
        h /= np.sqrt(np.square(h).sum())
    elif normalization == "peak":
        h = h / np.abs(h).max()
    return convolve(audio, h, delay)


class ReverbAugment(Augmenter):
    """Puts the waveform in a random room. Length and timing stay; see :func:`reverberate`.

    Args:
        normalization: ``energy``, ``peak`` or ``none``.
        max_duration: of an impulse response in seconds; the rest of its tail is cut.
        dataset_path: data set of the impulse responses (folder or ``dataset.yaml``).
        recordings_file: or a table of recordings,
        segments_file: with or without segments of them.
    """

    type_name = "reverb"
    path_keys: ClassVar[tuple[str, ...]] = SourceConfig.PATH_KEYS

    def __init__(
        self,
        normalization: Normalization = "energy",
        max_duration: float = 3.0,
        dataset_path: str | None = None,
        recordings_file: str | None = None,
        segments_file: str | None = None,
    ) -> None:
        if not max_duration > 0:
            raise ConfigError(f"max_duration must be positive, got {max_duration!r}")
        self.normalization: Normalization = normalization
        self.max_duration = max_duration
        self.source = AudioSource.open(SourceConfig(dataset_path, recordings_file, segments_file), self.type_name)

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``source``, the id of the impulse response."""
        impulse, source_id = self.source.draw_head(rng, self.max_duration, sample_freq)
        if power(impulse) == 0.0:
            raise AudioFileError(
                f"impulse response {source_id!r} of {self.source.origin} is silent; remove it from the table"
            )
        return reverberate(audio, impulse, self.normalization), {"source": source_id}
