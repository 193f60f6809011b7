"""What a telephone line or a lossy file format does to a voice, by really encoding and decoding it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile as sf

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.errors import ConfigError, MissingDependencyError
from hyperion_lite.data.augment.base import Augmenter
from hyperion_lite.data.augment.ranges import Range, RangeConfig
from hyperion_lite.data.augment.signal import fit_length
from hyperion_lite.data.resample import resample


@dataclass(frozen=True)
class Codec:
    """How libsndfile encodes: container, coding, and the sampling frequencies it takes (empty: any)."""

    container: str
    coding: str
    rates: tuple[int, ...]
    compressible: bool = False

    @property
    def available(self) -> bool:
        """Whether the installed libsndfile can."""
        return not self.container or (
            self.container in sf.available_formats() and self.coding in sf.available_subtypes(self.container)
        )

    def rate_for(self, sample_freq: int) -> int:
        """The largest rate of the codec that is not above ``sample_freq``, or its smallest."""
        if not self.rates:
            return sample_freq
        return max((rate for rate in self.rates if rate <= sample_freq), default=min(self.rates))


CODECS = {
    "narrowband": Codec("", "", (8000,)),
    "mulaw": Codec("WAV", "ULAW", (8000,)),
    "alaw": Codec("WAV", "ALAW", (8000,)),
    "gsm": Codec("WAV", "GSM610", (8000,)),
    "adpcm": Codec("WAV", "IMA_ADPCM", (8000,)),
    "mp3": Codec("MP3", "MPEG_LAYER_III", (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000), True),
    "opus": Codec("OGG", "OPUS", (8000, 12000, 16000, 24000, 48000), True),
    "vorbis": Codec("OGG", "VORBIS", (8000, 11025, 16000, 22050, 32000, 44100, 48000), True),
}
"""Codecs by name. The first five are of the telephone, at 8 kHz."""


def apply_codec(audio: np.ndarray, sample_freq: int, name: str, compression: float = 0.5) -> np.ndarray:
    """``audio`` (num_samples,) after encoding and decoding, of the same length, sampling frequency and position in time; float32.

    Args:
        audio: nominally within -1 to 1; a louder one is scaled down for the codec and back up.
        sample_freq: in Hz.
        name: a key of :data:`CODECS`.
        compression: of the lossy file formats, from 0 (best sound) towards 1 (smallest); libsndfile's scale.
    """
    codec = CODECS[name]
    rate = codec.rate_for(sample_freq)
    length = audio.size
    x = audio.astype(np.float32, copy=False)
    x = resample(x, sample_freq, rate)
    if codec.container and x.size:
        # the codings clip at 1, and resampling can overshoot
        scale = max(float(np.abs(x).max()), 1.0)
        x = _round_trip(x / np.float32(scale), rate, codec, compression) * np.float32(scale)
    return fit_length(resample(x, rate, sample_freq), length)


def _round_trip(x: np.ndarray, rate: int, codec: Codec, compression: float) -> np.ndarray:
    buffer = io.BytesIO()
    level = {"compression_level": compression} if codec.compressible else {}
    sf.write(buffer, x, rate, format=codec.container, subtype=codec.coding, **level)
    buffer.seek(0)
    decoded, _ = sf.read(buffer, dtype="float32")
    # block codings fill their last block
    return fit_length(decoded, x.size)


class CodecAugment(Augmenter):
    """Sends the waveform through a codec, chosen with equal probability. Length and sampling frequency stay.

    Args:
        codecs: ``narrowband`` (only the 8 kHz band), ``mulaw``, ``alaw`` (G.711), ``gsm`` (06.10), ``adpcm`` (IMA), all at 8 kHz;
            ``mp3``, ``opus``, ``vorbis`` at the waveform's frequency, or the next lower one that the format has.
        compression: range for the last three, 0 (best sound) to 0.99 (smallest).

    Raises:
        ConfigError: unknown codec.
        MissingDependencyError: the installed libsndfile cannot encode it.
    """

    type_name = "codec"

    def __init__(self, codecs: list[str] | None = None, compression: RangeConfig = (0.2, 0.9)) -> None:
        self.codecs = list(codecs) if codecs is not None else ["narrowband", "mulaw", "alaw"]
        self._compression = Range.parse(compression, "compression", 0.0, 0.99)
        if not self.codecs:
            raise ConfigError(f"codecs is empty; known codecs: {', '.join(CODECS)}")
        for name in self.codecs:
            if name not in CODECS:
                raise ConfigError(unknown_choice("codec", name, CODECS))
            if not CODECS[name].available:
                raise MissingDependencyError(
                    f"codec {name!r} needs a libsndfile that writes {CODECS[name].coding} (this is {sf.__libsndfile_version__}); "
                    "install a newer one, for example with pip install -U soundfile, or leave the codec out"
                )

    def __call__(
        self, audio: np.ndarray, sample_freq: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """See :meth:`Augmenter.__call__`; draws ``codec`` and ``compression``."""
        name = self.codecs[int(rng.integers(len(self.codecs)))]
        compression = self._compression.uniform(rng)
        return apply_codec(audio, sample_freq, name, compression), {"codec": name, "compression": compression}
