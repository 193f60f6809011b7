"""Made-up voices: distinguishable speakers out of a few formulas, for demonstrations and tests that need speech and have none.

A source-filter model: pulses of a gliding fundamental (source) go through a formant envelope (filter) that moves from vowel to vowel;
noise bursts stand for consonants. A speaker is a vocal tract (its length, and small displacements of the formants), a pitch, a spectral
tilt, a breathiness and a tempo. An utterance has a text, a mood (its pitch), a room (a smooth colouring and background noise) and a level
of its own, so that whoever wants to tell the speakers apart has to find what stays. Vowel formants are the averages of Peterson and Barney
(1952) for men; a shorter vocal tract scales them up.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_VOWELS = np.array(
    [
        [270, 2290, 3010],
        [390, 1990, 2550],
        [530, 1840, 2480],
        [660, 1720, 2410],
        [730, 1090, 2440],
        [570, 840, 2410],
        [440, 1020, 2240],
        [300, 870, 2240],
    ],
    dtype=np.float64,
)
# the fourth and fifth formant do not depend on the vowel
_HIGH_FORMANTS = np.array([3500.0, 4500.0])
_BANDWIDTHS = np.array([80.0, 100.0, 140.0, 200.0, 250.0])
_GAINS = np.array([1.0, 0.6, 0.35, 0.2, 0.15])
_HOP_SECONDS = 0.01
_HOPS_PER_WINDOW = 2


@dataclass(frozen=True)
class Voice:
    """What distinguishes one made-up speaker from another.

    Attributes:
        pitch: mean fundamental frequency in Hz.
        pitch_range: relative standard deviation of the fundamental.
        tract: factor on the formant frequencies (a shorter vocal tract has a larger one).
        tilt: fall of the source spectrum in dB per octave.
        breath: level of the aspiration noise relative to the voiced part.
        tempo: syllables per second.
        formants: further factors on the single formants.
    """

    pitch: float
    pitch_range: float
    tract: float
    tilt: float
    breath: float
    tempo: float
    formants: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)


def make_voice(index: int, seed: int = 0) -> Voice:
    """Voice number ``index``: the same for the same (index, seed). Pitch and tract length follow low-discrepancy sequences, so that
    any number of voices spreads over the range of human ones.
    """
    rng = np.random.default_rng([seed, index])
    # additive recurrences with the golden ratio and its two-dimensional relatives
    position = (0.5 + (index + 1) * np.array([0.7548776662, 0.5698402910, 0.6180339887])) % 1.0
    return Voice(
        pitch=float(85.0 * 2.0 ** (1.5 * position[0])),
        pitch_range=float(rng.uniform(0.05, 0.12)),
        tract=float(0.92 + 0.36 * position[1]),
        tilt=float(-4.0 - 8.0 * position[2]),
        breath=float(rng.uniform(0.005, 0.04)),
        tempo=float(rng.uniform(3.0, 5.5)),
        formants=tuple(float(factor) for factor in rng.uniform(0.9, 1.1, 5)),
    )


@dataclass(frozen=True)
class Occasion:
    """What an utterance has beside its speaker and its text.

    Attributes:
        pitch: factor on the fundamental.
        level_db: level relative to a peak of 0.5.
        noise_db: level of white noise relative to the utterance; ``None`` for none.
        colour_db: gains of the room at frequencies spread evenly over the band.
    """

    pitch: float = 1.0
    level_db: float = 0.0
    noise_db: float | None = None
    colour_db: Sequence[float] = (0.0,)

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Occasion:
        """A random mood, distance and room."""
        return cls(
            pitch=float(2.0 ** rng.normal(0.0, 0.3)),
            level_db=float(rng.uniform(-20.0, 0.0)),
            noise_db=float(rng.uniform(-40.0, -20.0)),
            colour_db=tuple(float(gain) for gain in rng.normal(0.0, 2.0, 6)),
        )


def synthesise(
    voice: Voice, duration: float, sample_freq: int = 16000, seed: int = 0, occasion: Occasion | None = None
) -> np.ndarray:
    """An utterance of ``voice``: (round(duration * sample_freq),) float32 with a peak of 0.5, times the level of the occasion.

    Args:
        voice: the speaker.
        duration: seconds.
        sample_freq: Hz.
        seed: what is said; the same seed gives the same sounds.
        occasion: mood, level and room; by default the neutral ones.

    Raises:
        ValueError: a duration or rate that gives no sample.
    """
    num_samples = round(duration * sample_freq)
    if num_samples < 1:
        raise ValueError(f"duration {duration} s at {sample_freq} Hz gives no sample")
    occasion = occasion or Occasion()
    rng = np.random.default_rng([zlib.crc32(repr(voice).encode()), seed])
    hop = max(1, round(_HOP_SECONDS * sample_freq))
    num_frames = num_samples // hop + _HOPS_PER_WINDOW + 1
    formants, loudness, voiced = _articulation(voice, num_frames, hop / sample_freq, rng)
    melody = np.exp(voice.pitch_range * _smooth_noise(num_frames, 0.15 / _HOP_SECONDS, rng))
    source = _pulses(voice.pitch * occasion.pitch * melody, num_samples, hop, sample_freq)
    signal = _filter(source, formants, voice.tilt, loudness * voiced, hop, sample_freq)
    signal /= np.abs(signal).max() + 1e-9
    at = np.arange(num_samples) / hop
    bursts = np.interp(at, np.arange(num_frames), loudness * (voice.breath + 0.15 * (1.0 - voiced)))
    signal += bursts * np.diff(rng.standard_normal(num_samples), prepend=0.0)
    return _in_room(signal, occasion, rng)


def _articulation(
    voice: Voice, num_frames: int, frame_seconds: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Formants (num_frames, 5), loudness and voicing (num_frames,) of a random sequence of syllables."""
    formants = np.empty((num_frames, 5))
    formants[:, 3:] = _HIGH_FORMANTS
    loudness, voiced = np.empty(num_frames), np.empty(num_frames)
    position = 0
    while position < num_frames:
        length = max(4, round(rng.normal(1.0, 0.2) / voice.tempo / frame_seconds))
        consonant = max(1, round(length * rng.uniform(0.1, 0.35)))
        part = slice(position, min(num_frames, position + length))
        n = part.stop - part.start
        formants[part, :3] = _VOWELS[rng.integers(len(_VOWELS))]
        voiced[part] = np.where(np.arange(n) < consonant, rng.uniform(0.0, 0.3), 1.0)
        loudness[part] = np.where(np.arange(n) < consonant, 0.4, rng.uniform(0.7, 1.0))
        if rng.random() < 0.08:
            loudness[part] = 0.02
        position += length
    kernel = np.hanning(max(3, round(0.06 / frame_seconds)))
    kernel /= kernel.sum()

    def smooth(values: np.ndarray) -> np.ndarray:
        padded = np.pad(values, len(kernel), mode="edge")
        return np.convolve(padded, kernel, mode="same")[len(kernel) : -len(kernel)]

    moving = np.stack([smooth(formants[:, i]) for i in range(5)], axis=1)
    return moving * voice.tract * np.array(voice.formants), smooth(loudness), smooth(voiced)


def _pulses(pitch: np.ndarray, num_samples: int, hop: int, sample_freq: int) -> np.ndarray:
    """All harmonics below 0.47 of the rate at one level: ``sum over k <= n of cos(k phase)`` in its closed form."""
    frequency = np.interp(np.arange(num_samples) / hop, np.arange(len(pitch)), pitch)
    phase = 2 * np.pi * np.cumsum(frequency) / sample_freq
    count = max(1, int(0.47 * sample_freq / pitch.max()))
    half = np.sin(phase / 2)
    half = np.where(np.abs(half) < 1e-6, 1e-6, half)
    return 0.5 * (np.sin((count + 0.5) * phase) / half - 1.0)


def _filter(
    source: np.ndarray, formants: np.ndarray, tilt: float, level: np.ndarray, hop: int, sample_freq: int
) -> np.ndarray:
    """``source`` through resonances at ``formants`` (num_frames, 5) and a spectral tilt: overlapping windows, filtered without phase."""
    width = _HOPS_PER_WINDOW * hop
    size = 1 << (2 * width - 1).bit_length()
    window = np.hanning(width + 1)[:-1]
    num_frames = len(source) // hop + _HOPS_PER_WINDOW
    padded = np.concatenate([np.zeros(width), source, np.zeros(num_frames * hop + width - len(source))])
    frames = np.lib.stride_tricks.sliding_window_view(padded, width)[::hop][:num_frames] * window
    frequency = np.fft.rfftfreq(size, 1.0 / sample_freq)
    envelope = np.full((num_frames, len(frequency)), 0.01)
    for formant, bandwidth, gain in zip(formants[:num_frames].T, _BANDWIDTHS, _GAINS, strict=True):
        envelope += gain / (1.0 + ((frequency - formant[:, None]) / bandwidth) ** 2)
    envelope *= (np.maximum(frequency, 50.0) / 50.0) ** (tilt / 6.02) * level[:num_frames, None]
    before = (size - width) // 2
    spectra = np.fft.rfft(np.pad(frames, ((0, 0), (before, size - width - before))), axis=1)
    filtered = np.fft.irfft(spectra * envelope, size, axis=1)
    output = np.zeros(num_frames * hop + size)
    for index, frame in enumerate(filtered):
        output[index * hop : index * hop + size] += frame
    begin = before + width
    return output[begin : begin + len(source)]


def _in_room(signal: np.ndarray, occasion: Occasion, rng: np.random.Generator) -> np.ndarray:
    """Colour ``signal``, scale it to its level and add noise."""
    spectrum = np.fft.rfft(signal)
    gains = np.interp(
        np.linspace(0.0, 1.0, len(spectrum)), np.linspace(0.0, 1.0, len(occasion.colour_db)), occasion.colour_db
    )
    signal = np.fft.irfft(spectrum * 10.0 ** (gains / 20.0), len(signal))
    signal *= 0.5 / (np.abs(signal).max() + 1e-9)
    if occasion.noise_db is not None:
        deviation = np.sqrt(np.mean(signal**2)) * 10.0 ** (occasion.noise_db / 20.0)
        signal += deviation * rng.standard_normal(len(signal))
    return (10.0 ** (occasion.level_db / 20.0) * signal).astype(np.float32)


def _smooth_noise(length: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Unit-variance noise that varies over about ``scale`` frames."""
    knots = rng.standard_normal(int(length / scale) + 3)
    return np.interp(np.arange(length) / scale, np.arange(len(knots)), knots)
