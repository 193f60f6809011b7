"""Audio files with the oddities of real collections, made on the spot."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000


def signal(seconds: float, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """Band-limited noise (samples,) float32, safe from clipping in any codec."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(round(seconds * rate) + 8)
    return (np.convolve(noise, np.ones(8) / 8, "valid")[: round(seconds * rate)] * 0.15).astype(np.float32)


def wav_bytes(
    samples: np.ndarray,
    rate: int = RATE,
    *,
    data_size: int | None = None,
    riff_size: int | None = None,
    tail: bytes = b"",
    before: bytes = b"",
    order: str = "<",
) -> bytes:
    """A 16-bit mono WAV with the given sizes in its header, whatever is true."""
    data = samples.astype(order + "i2").tobytes()
    head = before + b"fmt " + struct.pack(order + "IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    size = len(data) if data_size is None else data_size
    body = b"WAVE" + head + b"data" + struct.pack(order + "I", size) + data + tail
    name = b"RIFF" if order == "<" else b"RIFX"
    return name + struct.pack(order + "I", len(body) if riff_size is None else riff_size) + body


def write_wav(
    path: Path, seconds: float, rate: int = RATE, channels: int = 1, subtype: str = "PCM_16", seed: int = 0
) -> np.ndarray:
    """Write a WAV and return what was written."""
    audio = signal(seconds, rate, seed)
    if channels > 1:
        audio = np.stack([audio * (1 - 0.25 * c) for c in range(channels)], axis=1)
    soundfile.write(path, audio, rate, subtype=subtype)
    return audio
