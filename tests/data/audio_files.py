"""Small data sets on disk for tests."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as CSV; the keys of the first one are the columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def waveform(seed: int, num_samples: int, scale: float = 0.1) -> np.ndarray:
    """Reproducible noise, as a 16-bit file holds it."""
    x = scale * np.random.default_rng(seed).standard_normal(num_samples)
    return (np.round(np.clip(x, -1, 1) * 32767) / 32768).astype(np.float32)


def write_recordings(
    folder: Path,
    num_samples: Sequence[int],
    sample_freq: int = 8000,
    prefix: str = "rec",
    seed: int = 0,
    scale: float = 0.1,
) -> str:
    """Write noise recordings ``<prefix>0``, ``<prefix>1``, ... and their table; the path of the table."""
    (folder / "wav").mkdir(parents=True, exist_ok=True)
    rows = []
    for index, length in enumerate(num_samples):
        path = folder / "wav" / f"{prefix}{index}.wav"
        sf.write(path, waveform(seed + index, length, scale), sample_freq, subtype="PCM_16")
        rows.append(
            {
                "id": f"{prefix}{index}",
                "storage_path": str(path),
                "sample_freq": sample_freq,
                "duration": length / sample_freq,
            }
        )
    return write_table(folder / f"{prefix}_recordings.csv", rows)
