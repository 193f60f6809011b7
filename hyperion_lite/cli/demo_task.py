"""The task of the demo: made-up voices as a data set, a small network, its training, and how well it tells voices apart."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import yaml
from torch.nn import functional
from tqdm import tqdm

from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.loader import ResumableLoader, make_loader
from hyperion_lite.data.manifests import HyperDataset, RecordingSet
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from hyperion_lite.data.synthetic_voices import Occasion, make_voice, synthesise
from hyperion_lite.extraction.embedding_files import read_embeddings
from hyperion_lite.extraction.extractor import EmbeddingExtractor
from hyperion_lite.extraction.inputs import list_utterances
from hyperion_lite.extraction.policy import policy_of_model
from hyperion_lite.extraction.scoring import cosine_scores
from hyperion_lite.extraction.store import EmbeddingStore
from hyperion_lite.loggers.logger import Logger, Logs
from hyperion_lite.models.wav2xvectors.wav2resnet1d_xvector import Wav2ResNet1dXVector
from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.trainers.verification_eval import all_pairs
from hyperion_lite.trainers.xvector_trainer import XVectorTrainer

SAMPLE_FREQ = 8000
NUM_VOICES = 12
TRAIN_UTTERANCES, TEST_UTTERANCES = 20, 8
UTTERANCE_SECONDS = 3.0
# with fewer the voices are not told apart; a machine that is busy takes longer then
_FEWEST_STEPS, _MOST_STEPS = 100, 250
CONFIG_FILE = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"


def demo_config() -> dict[str, Any]:
    """What ``configs/demo.yaml`` holds: the demo trains what the train command makes of that file."""
    document: dict[str, Any] = yaml.safe_load(CONFIG_FILE.read_text(encoding="utf-8"))
    return document


@dataclass(frozen=True)
class Verification:
    """Scores of the trials of the demo: each pair of test utterances."""

    target: np.ndarray
    nontarget: np.ndarray


def write_voices(folder: Path, on_progress: Callable[[], None] | None = None) -> dict[str, HyperDataset]:
    """Synthesise ``folder/train`` and ``folder/test``: every utterance has its own text, pitch, level, room and noise.

    Returns:
        The data sets ``train`` and ``test``. The voices are the same, what they say is not.
    """
    datasets = {}
    for split, count, first in (("train", TRAIN_UTTERANCES, 0), ("test", TEST_UTTERANCES, 1000)):
        rows = []
        for voice in range(NUM_VOICES):
            for number in range(first, first + count):
                occasion = Occasion.draw(np.random.default_rng([voice, number]))
                audio = synthesise(make_voice(voice), UTTERANCE_SECONDS, SAMPLE_FREQ, number, occasion)
                id = f"voice{voice:02d}-{number:04d}"
                path = folder / split / f"{id}.wav"
                path.parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(path, audio, SAMPLE_FREQ, subtype="PCM_16")
                rows.append((id, str(path), f"voice{voice:02d}"))
                if on_progress is not None:
                    on_progress()
        datasets[split] = _dataset(rows)
    return datasets


def _dataset(rows: list[tuple[str, str, str]]) -> HyperDataset:
    import pyarrow as pa

    ids, paths, speakers = zip(*rows, strict=True)
    table = pa.table(
        {
            "id": pa.array(ids),
            "storage_path": pa.array(paths),
            "speaker": pa.array(speakers),
            "sample_freq": np.full(len(rows), SAMPLE_FREQ),
            "duration": np.full(len(rows), UTTERANCE_SECONDS),
        }
    )
    return HyperDataset.from_recordings(RecordingSet(table))


def make_loaders(datasets: dict[str, HyperDataset]) -> tuple[ResumableLoader, ResumableLoader]:
    """Training chunks and whole test utterances."""
    train = AudioDataset(dataset=datasets["train"], class_names=["speaker"])
    sampler = SegSamplerFactory.create(train, class_name="speaker", **demo_config()["data"]["train"]["sampler"])
    test = AudioDataset(dataset=datasets["test"], class_names=["speaker"])
    test_sampler = SegSamplerFactory.create(test, "seg_sampler", shuffle=False, max_batch_size=32)
    return make_loader(train, sampler), make_loader(test, test_sampler)


def make_model(seed: int = 0) -> Wav2ResNet1dXVector:
    """The untrained network, about 130,000 parameters."""
    torch.manual_seed(seed)
    config = demo_config()["model"]
    config["xvector"]["num_classes"] = NUM_VOICES
    model = Wav2ResNet1dXVector.from_config(config)
    model.class_names = [f"voice{voice:02d}" for voice in range(NUM_VOICES)]
    return model


def steps_for(model: Wav2ResNet1dXVector, seconds: float) -> int:
    """How many training steps this machine makes in ``seconds``, from a few on a copy of ``model``."""
    copy = model.copy().train()
    sampler = demo_config()["data"]["train"]["sampler"]
    size, length = sampler["max_batch_size"], (sampler["min_chunk_length"] + sampler["max_chunk_length"]) / 2
    audio, target = torch.randn(size, round(length * SAMPLE_FREQ)) * 0.1, torch.arange(size) % NUM_VOICES
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        functional.cross_entropy(copy(audio, y=target), target).backward()
        times.append(time.perf_counter() - begin)
    # the first one allocates; reading, the optimizer and validation are not in it
    return int(np.clip(seconds / (1.3 * np.mean(times[1:])), _FEWEST_STEPS, _MOST_STEPS))


def make_trainer(model: Wav2ResNet1dXVector, exp_path: Path, num_steps: int, loggers: list[Any]) -> XVectorTrainer:
    """A trainer that makes ``num_steps`` updates and verifies all pairs of test utterances after each epoch."""
    config = demo_config()
    options = config["trainer"]
    options["lrsched"]["t"] = num_steps
    per_epoch = config["data"]["train"]["sampler"]["max_batches_per_epoch"]
    options.update(exp_path=str(exp_path), num_epochs=-(-num_steps // per_epoch), max_steps=num_steps, log_interval=1)
    return XVectorTrainer(model, trials="all", device="cpu", loggers=loggers, **options)


class StepBar(Logger):
    """One progress bar over all steps, with the latest metrics. A context manager.

    Args:
        total: number of steps.
    """

    def __init__(self, total: int) -> None:
        self._bar = tqdm(total=total, desc="training", unit="step", file=sys.stderr, mininterval=0.5)
        self._shown: dict[str, str] = {}

    def __enter__(self) -> StepBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def on_batch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """A step is done."""
        self._show(logs, "train_loss", "train_acc")
        self._bar.update(int(logs["step"]) - self._bar.n)

    def on_epoch_end(self, logs: Logs) -> None:  # type: ignore[override]
        """An epoch is done, with its validation."""
        self._show(logs, "val_eer")

    def _show(self, logs: Logs, *names: str) -> None:
        self._shown.update({name: f"{logs[name]:.3f}" for name in names if name in logs})
        self._bar.set_postfix(self._shown, refresh=False)


def verify(model_path: Path, audio: Path, output: Path) -> Verification:
    """Load the model, extract embeddings of the files in ``audio`` into ``output`` (.npz), and score all pairs."""
    model = Wav2XVector.auto_load(model_path)
    store = EmbeddingStore(str(output), policy_of_model(model, str(model_path)), overwrite=True)
    utterances = list_utterances(audio)
    summary = EmbeddingExtractor(model, AudioReader(SAMPLE_FREQ)).run(utterances, store)
    if summary.failures:
        raise RuntimeError(f"no embedding of {summary.failures[0][0]}: {summary.failures[0][1]}")
    store.finish([utterance.id for utterance in utterances])
    embeddings = read_embeddings(output)
    trials = all_pairs(embeddings.ids, [id.split("-")[0] for id in embeddings.ids])
    scores = cosine_scores(embeddings, embeddings, list(trials))
    return Verification(scores[trials.target], scores[~trials.target])
