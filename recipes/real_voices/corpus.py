"""Real human speech with speaker labels, out of Debian packages: fetch them, decode the clips, write them as one corpus of WAV files.

Nothing is installed: ``apt-get download`` and ``dpkg-deb -x``. The result is the same for the same versions of the packages. One clip in
ten, chosen by its content, is held out: same speakers, unseen clips.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import soundfile
import soxr

logger = logging.getLogger(__name__)

SAMPLE_FREQ = 16000
SHORTEST_CLIP, LONGEST_CLIP, SHORTEST_UTTERANCE = 0.25, 15.0, 0.6
JOINED = 1.5
"""Clips of one speaker that are shorter than this (seconds) are joined, with a pause of 0.1 s, until they are not."""

PACKAGES = {
    "tuxpaint-stamps-default": "GPL-2+",
    "ktuberling-data": "GPL-2+ and others",
    "klettres-data": "GPL-2+",
    "fillets-ng-data-cs": "GPL-2",
    "fillets-ng-data-nl": "GPL-2",
    "asterisk-core-sounds-en-g722": "CC-BY-SA-3.0",
    "asterisk-core-sounds-es-g722": "CC-BY-SA-3.0",
    "asterisk-core-sounds-fr-g722": "CC-BY-SA-3.0",
    "asterisk-core-sounds-it-g722": "CC-BY-SA-3.0",
    "asterisk-core-sounds-ru-g722": "CC-BY-SA-3.0",
    "asterisk-prompt-it-menardi-alaw": "CC-BY-SA-3.0-it",
    "asterisk-prompt-es-co": "GPL",
    "asterisk-prompt-fr-armelle": "GPL-2+",
    "drascula": "Drascula-License (BSD-like)",
}
"""Debian package -> licence of its sounds, as its copyright file says."""

# the same person as another label, by a speaker model
_DUPLICATES = {"ktuberling-da", "ktuberling-ru", "ktuberling-nds", "klettres-uk"}
_CORE_SPEAKERS = {"en": "allison", "es": "allison", "fr": "june", "it": "carlo", "ru": "ivrvoice"}
_PROMPTS = {
    "asterisk-prompt-it-menardi-alaw": ("menardi", "alaw"),
    "asterisk-prompt-es-co": ("esco", "gsm"),
    "asterisk-prompt-fr-armelle": ("armelle", "gsm"),
}
# lines of a game, by the letters that their file names begin with
_DRASCULA = {"": "hacker", "vb": "vonbraun", "l": "l", "t": "bartender", "bj": "bj", "e": "e", "b": "drunk"}


@dataclass(frozen=True)
class Clip:
    """A recording in an unpacked package.

    Attributes:
        speaker: label.
        part: clips are joined only within one part of a speaker (a language).
        path: the file.
        codec: ``file`` (what libsndfile knows), or a headerless one.
    """

    speaker: str
    part: str
    path: Path
    codec: str


def fetch(cache: Path) -> Path:
    """Download and unpack what is missing of :data:`PACKAGES` below ``cache``; the folder with one folder a package."""
    archives, unpacked = cache / "deb", cache / "x"
    archives.mkdir(parents=True, exist_ok=True)
    unpacked.mkdir(exist_ok=True)
    missing = [name for name in PACKAGES if not list(archives.glob(f"{name}_*.deb"))]
    if missing:
        command = ["apt-get", "-q", "download", *missing]
        if os.geteuid() == 0:
            command[2:2] = ["-o", "APT::Sandbox::User=root"]
        subprocess.run(command, cwd=archives, check=True, stdout=subprocess.DEVNULL)
    for name in PACKAGES:
        if not (unpacked / name).is_dir():
            temporary = unpacked / f"{name}.tmp"
            shutil.rmtree(temporary, ignore_errors=True)
            subprocess.run(["dpkg-deb", "-x", next(archives.glob(f"{name}_*.deb")), temporary], check=True)
            temporary.rename(unpacked / name)
    return unpacked


def find_clips(unpacked: Path) -> Iterator[Clip]:
    """The clips of all packages with their speakers."""
    files = ("ogg", "wav", "opus")
    for path in _walk(unpacked / "tuxpaint-stamps-default", "ogg", "wav"):
        match = re.search(r"_desc(?:_([A-Za-z]+))?\.(?:ogg|wav)$", path.name)
        if match:
            yield Clip(f"tuxpaint-{match[1] or 'en'}", "", path, "file")
    for path in _walk(unpacked / "ktuberling-data", *files):
        match = re.search(r"/sounds/([A-Za-z_]+)/", str(path))
        if match:
            yield Clip(f"ktuberling-{match[1]}", "", path, "file")
    for path in _walk(unpacked / "klettres-data", "ogg"):
        match = re.search(r"/klettres/([A-Za-z_]+)/(alpha|syllab)/", str(path))
        if match:
            # German letters and syllables are read by two people
            yield Clip(f"klettres-{match[1]}" + (f"-{match[2]}" if match[1] == "de" else ""), "", path, "file")
    for language in ("cs", "nl"):
        for path in _walk(unpacked / f"fillets-ng-data-{language}", "ogg"):
            match = re.search(r"-([mv])-", path.name)
            if match:
                yield Clip(f"fillets-{language}-{match[1]}", "", path, "file")
    yield from _telephone_clips(unpacked)
    for path in _walk(unpacked / "drascula", "als"):
        match = re.match(r"([a-z]*)\d+\.als$", path.name.lower())
        if match and match[1] in _DRASCULA:
            yield Clip(f"drascula-{_DRASCULA[match[1]]}", "", path, "als")


def _telephone_clips(unpacked: Path) -> Iterator[Clip]:
    for language, speaker in _CORE_SPEAKERS.items():
        for path in _walk(unpacked / f"asterisk-core-sounds-{language}-g722", "g722"):
            if "/silence/" not in str(path):
                yield Clip(f"asterisk-{speaker}", language, path, "g722")
    for package, (speaker, codec) in _PROMPTS.items():
        for path in _walk(unpacked / package, codec):
            if "/silence/" not in str(path):
                yield Clip(f"asterisk-{speaker}", "", path, codec)


def _walk(folder: Path, *suffixes: str) -> Iterator[Path]:
    endings = tuple(f".{suffix}" for suffix in suffixes)
    for path in sorted(folder.rglob("*")):
        if path.name.lower().endswith(endings) and path.is_file() and not path.is_symlink():
            yield path


def read_clip(path: Path, codec: str) -> tuple[np.ndarray, int]:
    """Samples (float32, full scale 1) and rate of a clip."""
    if codec == "g722":
        from G722 import G722

        return np.asarray(G722(16000, 64000).decode(path.read_bytes()), np.float32) / 32768, 16000
    if codec in ("gsm", "alaw"):
        subtype = {"gsm": "GSM610", "alaw": "ALAW"}[codec]
        return soundfile.read(path, dtype="float32", format="RAW", channels=1, samplerate=8000, subtype=subtype)
    if codec == "als":
        # unsigned 8-bit at 11025 Hz behind a header of 32 bytes
        return (np.fromfile(path, np.uint8)[32:].astype(np.float32) - 128) / 128, 11025
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return samples.mean(axis=1), rate


def trim(samples: np.ndarray, margin: float = 0.1) -> np.ndarray:
    """Without the silence at both ends; empty when there is nothing else."""
    block = SAMPLE_FREQ // 40
    count = len(samples) // block
    if count < 4:
        return samples[:0]
    level = np.sqrt((samples[: count * block].reshape(count, block) ** 2).mean(axis=1))
    if level.max() < 1e-3:
        return samples[:0]
    loud = np.flatnonzero(level > 0.03 * level.max())
    begin = max(0, int(loud[0] * block - margin * SAMPLE_FREQ))
    return samples[begin : int((loud[-1] + 1) * block + margin * SAMPLE_FREQ)]


def is_held_out(samples: np.ndarray) -> bool:
    """One clip in ten. By its length and the place of its loudest block, so that copies of a clip stay on one side."""
    blocks = samples[: len(samples) // 1000 * 1000].reshape(-1, 1000)
    loudest = int(np.abs(blocks).sum(axis=1).argmax()) if len(blocks) else 0
    return hashlib.sha1(f"{len(samples)} {loudest}".encode()).digest()[0] % 10 == 7


def _write_speaker(job: tuple[str, str, list[Clip], Path]) -> list[tuple[str, str, str, str, float]]:
    """Write the utterances of one part of a speaker; rows (id, speaker, file, split, seconds)."""
    speaker, part, clips, out = job
    seen: set[bytes] = set()
    by_split: dict[str, list[np.ndarray]] = {"train": [], "heldout": []}
    for clip in clips:
        try:
            samples, rate = read_clip(clip.path, clip.codec)
        except (OSError, RuntimeError, ValueError) as error:
            logger.warning("left out %s: %s", clip.path, error)
            continue
        digest = hashlib.md5((samples * 32767).astype("<i2").tobytes()).digest()
        if len(samples) == 0 or digest in seen:
            continue
        seen.add(digest)
        split = "heldout" if is_held_out(samples) else "train"
        resampled = soxr.resample(samples, rate, SAMPLE_FREQ) if rate != SAMPLE_FREQ else samples
        trimmed = trim(resampled)
        if len(trimmed) >= SHORTEST_CLIP * SAMPLE_FREQ:
            by_split[split].append(trimmed[: int(LONGEST_CLIP * SAMPLE_FREQ)])
    rows = []
    name = f"{speaker}-{part}" if part else speaker
    for split, kept in by_split.items():
        for number, samples in enumerate(_join(kept)):
            id = f"{split}-{name}-{number:04d}"
            file = out / "audio" / speaker / f"{id}.wav"
            file.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(file, samples, SAMPLE_FREQ, subtype="PCM_16")
            rows.append((id, speaker, str(file.relative_to(out)), split, len(samples) / SAMPLE_FREQ))
    return rows


def _join(clips: list[np.ndarray]) -> Iterator[np.ndarray]:
    gap = np.zeros(SAMPLE_FREQ // 10, np.float32)
    waiting: list[np.ndarray] = []
    for index, clip in enumerate(clips):
        waiting += [gap, clip] if waiting else [clip]
        if sum(map(len, waiting)) >= JOINED * SAMPLE_FREQ or index == len(clips) - 1:
            joined = np.concatenate(waiting)
            waiting = []
            if len(joined) >= SHORTEST_UTTERANCE * SAMPLE_FREQ:
                yield joined * min(1.0, 0.99 / max(float(np.abs(joined).max()), 1e-9))


def build_corpus(unpacked: Path, out: Path, fewest: int = 8, num_jobs: int = 2) -> int:
    """Write ``out/audio`` and ``out/utterances.csv`` (id, speaker, storage_path, split, duration); number of utterances.

    Args:
        unpacked: of :func:`fetch`.
        out: where to.
        fewest: speakers with fewer training utterances are left out.
        num_jobs: processes.
    """
    groups: dict[tuple[str, str], list[Clip]] = {}
    for clip in find_clips(unpacked):
        if clip.speaker not in _DUPLICATES:
            groups.setdefault((clip.speaker, clip.part), []).append(clip)
    shutil.rmtree(out / "audio", ignore_errors=True)
    jobs = [(speaker, part, clips, out) for (speaker, part), clips in groups.items()]
    jobs.sort(key=lambda job: -len(job[2]))
    with Pool(num_jobs) as pool:
        rows = [row for part in pool.imap_unordered(_write_speaker, jobs) for row in part]
    counts: dict[str, int] = {}
    for _, speaker, _, split, _ in rows:
        counts[speaker] = counts.get(speaker, 0) + (split == "train")
    rows = sorted(row for row in rows if counts[row[1]] >= fewest)
    with open(out / "utterances.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "speaker", "storage_path", "split", "duration"])
        writer.writerows([*row[:4], f"{row[4]:.4f}"] for row in rows)
    return len(rows)
