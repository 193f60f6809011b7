"""Where noises, music, other voices and impulse responses come from: manifests, read in short stretches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.augment.signal import fit_length
from hyperion_lite.data.segment_audio import Place, SegmentAudio

# of a source with several channels
_CHANNEL = 0


@dataclass(frozen=True)
class SourceConfig:
    """The keys that name a source, common to the augmenters that have one.

    Attributes:
        dataset_path: data set (folder or ``dataset.yaml``).
        recordings_file: or a table of recordings,
        segments_file: with or without segments of them.
    """

    PATH_KEYS: ClassVar[tuple[str, ...]] = ("dataset_path", "recordings_file", "segments_file")

    dataset_path: str | None
    recordings_file: str | None
    segments_file: str | None

    def check(self, label: str) -> None:
        """Raise :class:`ConfigError` unless the keys name one source."""
        if (self.dataset_path is None) == (self.recordings_file is None):
            raise ConfigError(
                f"{label}: give dataset_path, or recordings_file (with or without segments_file), as its source"
            )
        if self.segments_file is not None and self.recordings_file is None:
            raise ConfigError(f"{label}: segments_file needs recordings_file")


class AudioSource:
    """Random stretches of the segments of a manifest, all segments being equally probable.

    Args:
        audio: the segments.
        origin: of the manifest, for messages.
    """

    def __init__(self, audio: SegmentAudio, origin: str) -> None:
        if len(audio) == 0:
            raise ConfigError(f"{origin} has no segments to draw from")
        self._audio = audio
        self.origin = origin

    @classmethod
    def open(cls, config: SourceConfig, label: str) -> AudioSource:
        """The source that the keys of an augmenter name; ``label`` is for messages.

        Raises:
            ConfigError: no source, two of them, or one without segments.
            FileNotFoundError: a table does not exist.
        """
        config.check(label)
        reader = AudioReader(channel_policy=_CHANNEL)
        audio = SegmentAudio.open(reader, config.dataset_path, config.recordings_file, config.segments_file)
        return cls(audio, str(config.dataset_path or config.segments_file or config.recordings_file))

    def __len__(self) -> int:
        return len(self._audio)

    def draw(self, rng: np.random.Generator, num_samples: int, sample_freq: int) -> tuple[np.ndarray, str]:
        """A random stretch of a random segment.

        No more of the file than the stretch is read. A shorter segment is read whole and repeated, from a random point on.

        Args:
            rng: where the choice comes from.
            num_samples: length of the stretch.
            sample_freq: of the stretch, in Hz; the file is converted to it.

        Returns:
            (num_samples,) float32, and the id of the segment.
        """
        place, phase = self._draw_place(rng), float(rng.random())
        needed = num_samples / sample_freq
        spare = self._audio.duration(place) - needed
        if spare >= 0:
            noise = self._audio.read(place, phase * spare, needed, sample_freq).audio
            return fit_length(noise, num_samples), place.id
        noise = self._audio.read(place, sample_freq=sample_freq).audio
        first = int(phase * noise.size)
        return np.resize(np.roll(noise, -first), num_samples), place.id

    def draw_head(self, rng: np.random.Generator, max_duration: float, sample_freq: int) -> tuple[np.ndarray, str]:
        """The first ``max_duration`` seconds of a random segment, or all of it; its id."""
        place = self._draw_place(rng)
        duration = max_duration if self._audio.duration(place) > max_duration else None
        return self._audio.read(place, 0.0, duration, sample_freq).audio, place.id

    def _draw_place(self, rng: np.random.Generator) -> Place:
        return self._audio.place(int(rng.integers(len(self._audio))))
