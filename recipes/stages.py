"""What the recipes share: running commands of the package, trial lists, scoring, result tables."""

from __future__ import annotations

import argparse
import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hyperion_lite.data.manifests import HyperDataset, RecordingSet, SegmentSet, TrialKey
from hyperion_lite.extraction.embedding_files import read_embeddings
from hyperion_lite.extraction.scoring import cosine_scores
from hyperion_lite.metrics import equal_error_rate, min_dcf
from hyperion_lite.trainers.verification_eval import all_pairs

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TRAIN = Path(__file__).resolve().parent / "train.py"


def run(*arguments: object, ranks: int = 1) -> float:
    """Run a command of the package, training with ``ranks`` processes; seconds that it took. A failure ends the recipe."""
    texts = [str(argument) for argument in arguments]
    if texts[0] in ("train", "finetune") and ranks > 1:
        script = str(TRAIN.with_name(f"{texts[0]}.py"))
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", script]
        command = [sys.executable, *launcher, *texts[1:]]
    else:
        command = [sys.executable, "-m", "hyperion_lite", *texts]
    print("+", shlex.join(command), flush=True)
    begin = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - begin


def run_stages(stages: Mapping[str, Callable[[], None]], chosen: Sequence[str]) -> None:
    """Run the stages that are chosen, in their order; ``all`` chooses every one."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    for name, stage in stages.items():
        if name in chosen or "all" in chosen:
            begin = time.monotonic()
            print(f"== {name}", flush=True)
            stage()
            print(f"== {name}: {time.monotonic() - begin:.0f} s", flush=True)


def stage_argument(parser: argparse.ArgumentParser, stages: Sequence[str]) -> None:
    """Add ``--stage`` and ``--set`` to the options of a recipe."""
    parser.add_argument("--stage", nargs="+", default=["all"], choices=["all", *stages], help="what to do (all)")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="further options of training, e.g. trainer.max_steps=10",
    )


def overrides(settings: Sequence[str]) -> list[str]:
    """``KEY=VALUE`` settings as options of the train command."""
    return [f"--{setting}" for setting in settings]


def made_up_utterances(folder: Path) -> list[dict[str, str]]:
    """Write utterances of six made-up voices of two sources below ``folder``; their rows as ``dataset_of`` takes them, with ``split``."""
    import soundfile

    from hyperion_lite.data.synthetic_voices import make_voice, synthesise

    rows = []
    for voice in range(6):
        for number in range(8):
            split = "train" if number < 5 else "heldout"
            label = f"source{voice % 2}-voice{voice}"
            path = Path("audio") / f"{split}-{label}-{number}.wav"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(folder / path, synthesise(make_voice(voice), 2.5, 16000, number), 16000)
            rows.append(
                {"id": path.stem, "speaker": label, "storage_path": str(path), "split": split, "duration": "2.5"}
            )
    return rows


def first_of_each(rows: Sequence[Mapping[str, str]], count: int) -> list[str]:
    """Ids of the first ``count`` utterances of each speaker."""
    ids: dict[str, list[str]] = {}
    for row in rows:
        ids.setdefault(row["speaker"], []).append(row["id"])
    return [id for members in ids.values() for id in members[:count]]


def source_of(label: str) -> str:
    """Where a speaker comes from: the first part of the label."""
    return label.split("-")[0]


def trials_by_source(segments: SegmentSet, most: int = 100_000) -> dict[str, TrialKey]:
    """All pairs of segments of one source, for each source that has pairs of both kinds.

    A speaker of one source usually has a language and a channel of their own; trials across sources would be won by the channel.

    Args:
        segments: with a column ``speaker``.
        most: pairs of one source; beyond, all targets and a random part of the others.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for id, speaker in zip(segments.ids, segments.column("speaker"), strict=True):
        groups.setdefault(source_of(str(speaker)), []).append((str(id), str(speaker)))
    keys = {}
    for source, members in sorted(groups.items()):
        key = thinned(all_pairs([m[0] for m in members], [m[1] for m in members], most), most)
        if key.num_targets and key.num_nontargets:
            keys[source] = key
    return keys


def thinned(key: TrialKey, most: int, seed: int = 0) -> TrialKey:
    """At most ``most`` trials of ``key``, targets and others in half where there are enough."""
    rng = np.random.default_rng(seed)
    kept = []
    for rows in (np.flatnonzero(key.target), np.flatnonzero(~key.target)):
        kept.append(rng.choice(rows, most // 2, replace=False) if len(rows) > most // 2 else rows)
    rows = np.sort(np.concatenate(kept))
    pairs = [(*key.pair(int(row)), bool(key.target[row])) for row in rows]
    return TrialKey.from_pairs(pairs)


def joined(keys: Sequence[TrialKey], most_each: int) -> TrialKey:
    """Trials of several lists in one, at most so many of each."""
    parts = [thinned(key, most_each) for key in keys]
    return TrialKey.from_pairs(
        [(*pair, bool(target)) for key in parts for pair, target in zip(key, key.target, strict=True)]
    )


def dataset_of(rows: Sequence[Mapping[str, str]], root: Path, sample_freq: int) -> HyperDataset:
    """A data set of whole files: ``id``, ``speaker``, ``storage_path`` relative to ``root``, ``duration`` in seconds."""
    import pyarrow as pa

    columns = {
        "id": pa.array([row["id"] for row in rows]),
        "storage_path": pa.array([str((root / row["storage_path"]).resolve()) for row in rows]),
        "speaker": pa.array([row["speaker"] for row in rows]),
        "sample_freq": np.full(len(rows), sample_freq),
        "duration": np.array([float(row["duration"]) for row in rows]),
    }
    return HyperDataset.from_recordings(RecordingSet(pa.table(columns)))


def error_rates(embeddings: Path, trials: Mapping[str, TrialKey]) -> dict[str, tuple[float, float]]:
    """List -> (equal error rate, minDCF at prior 0.01) of cosine scores."""
    vectors = read_embeddings(embeddings)
    rates = {}
    for name, key in trials.items():
        scores = cosine_scores(vectors, vectors, list(key))
        target, nontarget = scores[key.target], scores[~key.target]
        rates[name] = (equal_error_rate(target, nontarget), min_dcf(target, nontarget))
    return rates


def result_table(results: Mapping[str, Mapping[str, tuple[float, float]]], trials: Mapping[str, TrialKey]) -> str:
    """Markdown: a row for each trial list, a column with the equal error rate for each stage."""
    stages = list(results)
    lines = ["| trials | target | non-target | " + " | ".join(stages) + " |", "|---|---:|---:|" + "---:|" * len(stages)]
    for name, key in trials.items():
        rates = " | ".join(f"{results[stage][name][0]:.3f}" for stage in stages)
        lines.append(f"| {name} | {key.num_targets} | {key.num_nontargets} | {rates} |")
    return "\n".join(lines) + "\n"
