"""Made-up voices: distinguishable speakers out of a few formulas, for demonstrations and tests that need speech and have none.

A source-filter model: harmonics of a gliding fundamental (source) are weighted by a formant envelope (filter) that moves from vowel
to vowel; noise bursts stand for consonants. A speaker is a pitch, a vocal-tract length, a spectral tilt, a breathiness and a tempo.
Vowel formants are the averages of Peterson and Barney (1952) for men; a shorter vocal tract scales them up.
"""

from __future__ import annotations

import zlib
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
_BANDWIDTHS = np.array([80.0, 100.0, 140.0])
_HOP_SECONDS = 0.005


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
    """

    pitch: float
    pitch_range: float
    tract: float
    tilt: float
    breath: float
    tempo: float


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
    )


def synthesise(voice: Voice, duration: float, sample_freq: int = 16000, seed: int = 0) -> np.ndarray:
    """An utterance of ``voice``: (round(duration * sample_freq),) float32 with a peak of about 0.5.

    Args:
        voice: the speaker.
        duration: seconds.
        sample_freq: Hz.
        seed: what is said; the same seed gives the same sounds.

    Raises:
        ValueError: a duration or rate that gives no sample.
    """
    num_samples = round(duration * sample_freq)
    if num_samples < 1:
        raise ValueError(f"duration {duration} s at {sample_freq} Hz gives no sample")
    rng = np.random.default_rng([zlib.crc32(repr(voice).encode()), seed])
    hop = max(1, round(_HOP_SECONDS * sample_freq))
    num_frames = num_samples // hop + 2
    formants, loudness, voiced = _articulation(voice, num_frames, hop / sample_freq, rng)
    pitch = voice.pitch * np.exp(voice.pitch_range * _smooth_noise(num_frames, 0.15 / _HOP_SECONDS, rng))
    at = np.arange(num_samples) / hop
    frames = np.arange(num_frames)
    phase = 2 * np.pi * np.cumsum(np.interp(at, frames, pitch)) / sample_freq
    signal = np.zeros(num_samples)
    for harmonic in range(1, int(0.47 * sample_freq / pitch.min()) + 1):
        frequency = harmonic * pitch
        level = _envelope(frequency, formants) * (harmonic ** (voice.tilt / 6.02)) * voiced
        level[frequency > 0.47 * sample_freq] = 0.0
        signal += np.interp(at, frames, level) * np.sin(harmonic * phase)
    noise = rng.standard_normal(num_samples) * np.interp(at, frames, voice.breath + 0.15 * (1.0 - voiced))
    signal = signal / (np.abs(signal).max() + 1e-9) + _high_pass(noise)
    signal *= np.interp(at, frames, loudness)
    return (0.5 * signal / (np.abs(signal).max() + 1e-9)).astype(np.float32)


def _articulation(
    voice: Voice, num_frames: int, frame_seconds: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Formants (num_frames, 3), loudness and voicing (num_frames,) of a random sequence of syllables."""
    formants = np.empty((num_frames, 3))
    loudness, voiced = np.empty(num_frames), np.empty(num_frames)
    position = 0
    while position < num_frames:
        length = max(4, round(rng.normal(1.0, 0.2) / voice.tempo / frame_seconds))
        consonant = max(1, round(length * rng.uniform(0.1, 0.35)))
        part = slice(position, min(num_frames, position + length))
        n = part.stop - part.start
        formants[part] = _VOWELS[rng.integers(len(_VOWELS))] * voice.tract
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

    return np.stack([smooth(formants[:, i]) for i in range(3)], axis=1), smooth(loudness), smooth(voiced)


def _envelope(frequency: np.ndarray, formants: np.ndarray) -> np.ndarray:
    """Magnitude of the formant filter at ``frequency`` (num_frames,): a sum of resonances."""
    distance = (frequency[:, None] - formants) / _BANDWIDTHS
    return (np.array([1.0, 0.6, 0.35]) / (1.0 + distance**2)).sum(axis=1) + 0.01


def _smooth_noise(length: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Unit-variance noise that varies over about ``scale`` frames."""
    knots = rng.standard_normal(int(length / scale) + 3)
    return np.interp(np.arange(length) / scale, np.arange(len(knots)), knots)


def _high_pass(signal: np.ndarray) -> np.ndarray:
    return np.diff(signal, prepend=0.0)
