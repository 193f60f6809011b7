"""Folders with the layout of VoxCeleb, MUSAN and a collection of rooms, filled with made-up audio, to try the recipe on."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import soundfile

from hyperion_lite.data.synthetic_voices import make_voice, synthesise

SAMPLE_FREQ = 16000


def write_corpora(root: Path) -> None:
    """Write ``root/voxceleb1``, ``voxceleb2``, ``musan`` and ``rirs``."""
    for speaker in range(8):
        for number in range(4):
            _write_voice(root / "voxceleb2" / "dev" / f"id{speaker:05d}" / "video", speaker, number)
    for speaker in range(20, 23):
        for number in range(3):
            _write_voice(root / "voxceleb1" / "wav" / f"id{speaker:05d}" / "video", speaker, number)
    files = [f"id{s:05d}/video/{n:05d}.wav" for s in range(20, 23) for n in range(3)]
    lines = [f"{int(a[:7] == b[:7])} {a} {b}" for a, b in itertools.combinations(files, 2)]
    (root / "voxceleb1" / "veri_test2.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rng = np.random.default_rng(0)
    for kind in ("noise", "music", "speech"):
        for number in range(4):
            audio = (
                synthesise(make_voice(40 + number), 3.0, SAMPLE_FREQ)
                if kind == "speech"
                else 0.1 * rng.standard_normal(48000)
            )
            _write(root / "musan" / kind / f"{number}.wav", audio)
    for number in range(3):
        decay = np.exp(-np.arange(4000) / (400.0 * (number + 1)))
        _write(root / "rirs" / f"{number}.wav", 0.5 * decay * rng.uniform(-1, 1, 4000))


def _write_voice(folder: Path, voice: int, number: int) -> None:
    _write(folder / f"{number:05d}.wav", synthesise(make_voice(voice), 2.0 + 0.2 * number, SAMPLE_FREQ, number))


def _write(path: Path, audio: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, audio, SAMPLE_FREQ)
