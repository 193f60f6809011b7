"""The task of the demo: made-up voices as a data set, a small network, its training, and how well it tells voices apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch.nn import functional

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
from hyperion_lite.models.wav2xvectors.wav2resnet1d_xvector import Wav2ResNet1dXVector
from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.trainers.verification_eval import all_pairs
from hyperion_lite.trainers.xvector_trainer import XVectorTrainer

SAMPLE_FREQ = 8000
NUM_VOICES = 12
TRAIN_UTTERANCES, TEST_UTTERANCES = 20, 8
UTTERANCE_SECONDS = 3.0
CHUNK_SECONDS = (1.0, 2.0)
BATCH_SIZE = 32
BATCHES_PER_EPOCH = 25
_LEARNING_RATE = 4e-3
_FEWEST_STEPS, _MOST_STEPS = 20, 300

MODEL: dict[str, Any] = {
    "feats": {
        "audio_feats": {
            "audio_feat": "logfb",
            "sample_frequency": SAMPLE_FREQ,
            "num_filters": 40,
            "low_freq": 60,
            "high_freq": 3800,
            "snip_edges": False,
            "use_energy": False,
        },
        "mvn": {"norm_mean": True, "norm_var": False},
    },
    "xvector": {
        "resnet_enc": {
            "in_feats": 40,
            "in_conv_channels": 64,
            "in_kernel_size": 5,
            "resb_type": "basic",
            "resb_repeats": [1, 1, 1],
            "resb_channels": [64, 64, 96],
            "resb_strides": [2, 1, 1],
        },
        "num_classes": NUM_VOICES,
        "embed_dim": 64,
        "loss_type": "arc-softmax",
        "cos_scale": 20.0,
        "margin": 0.2,
        "margin_warmup_epochs": 3,
    },
}


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
    sampler = SegSamplerFactory.create(
        train,
        "class_weighted_random_seg_chunk_sampler",
        class_name="speaker",
        min_chunk_length=CHUNK_SECONDS[0],
        max_chunk_length=CHUNK_SECONDS[1],
        max_batch_size=BATCH_SIZE,
        num_chunks_per_seg_epoch=4,
        max_batches_per_epoch=BATCHES_PER_EPOCH,
    )
    test = AudioDataset(dataset=datasets["test"], class_names=["speaker"])
    test_sampler = SegSamplerFactory.create(test, "seg_sampler", shuffle=False, max_batch_size=32)
    return make_loader(train, sampler), make_loader(test, test_sampler)


def make_model(seed: int = 0) -> Wav2ResNet1dXVector:
    """The untrained network, about 130,000 parameters."""
    torch.manual_seed(seed)
    model = Wav2ResNet1dXVector.from_config(MODEL)
    model.class_names = [f"voice{voice:02d}" for voice in range(NUM_VOICES)]
    return model


def steps_for(model: Wav2ResNet1dXVector, seconds: float) -> int:
    """How many training steps this machine makes in ``seconds``, from a few on a copy of ``model``."""
    copy = model.copy().train()
    samples = round(sum(CHUNK_SECONDS) / 2 * SAMPLE_FREQ)
    audio, target = torch.randn(BATCH_SIZE, samples) * 0.1, torch.arange(BATCH_SIZE) % NUM_VOICES
    begin = 0.0
    for repetition in range(6):
        if repetition == 2:
            begin = time.perf_counter()
        functional.cross_entropy(copy(audio, y=target), target).backward()
    per_step = (time.perf_counter() - begin) / 4
    # reading, the optimizer and validation are not in it
    return int(np.clip(seconds / (1.3 * per_step), _FEWEST_STEPS, _MOST_STEPS))


def make_trainer(model: Wav2ResNet1dXVector, exp_path: Path, num_steps: int, loggers: list[Any]) -> XVectorTrainer:
    """A trainer that makes ``num_steps`` updates and verifies all pairs of test utterances after each epoch."""
    return XVectorTrainer(
        model,
        trials="all",
        optim={"opt_type": "adamw", "lr": _LEARNING_RATE, "weight_decay": 1e-3},
        lrsched={"lrsch_type": "one_cycle_lr", "t": num_steps, "update_lr_on_opt_step": True, "pct_start": 0.25},
        exp_path=str(exp_path),
        num_epochs=-(-num_steps // BATCHES_PER_EPOCH),
        max_steps=num_steps,
        log_interval=1,
        keep_last=1,
        best_metric="val_eer",
        grad_clip=5.0,
        device="cpu",
        loggers=loggers,
    )


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
