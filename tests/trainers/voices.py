"""A few made-up voices as data sets, and a network that is small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import soundfile

from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.loader import ResumableLoader, make_loader
from hyperion_lite.data.manifests import HyperDataset, RecordingSet
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from hyperion_lite.data.synthetic_voices import make_voice, synthesise

SAMPLE_FREQ = 8000
NUM_VOICES = 4
SPEAKERS = [f"spk{voice}" for voice in range(NUM_VOICES)]


def write_voices(folder: Path, utterances: int = 4, first: int = 0, voices: int = NUM_VOICES) -> HyperDataset:
    """Write utterances of 0.6 to 0.9 s, and the data set of them with its ``dataset.yaml`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    ids, paths, speakers, durations = [], [], [], []
    for voice in range(voices):
        for number in range(first, first + utterances):
            seconds = 0.6 + 0.1 * (number % 4)
            ids.append(f"spk{voice}-{number}")
            paths.append(str(folder / f"{ids[-1]}.wav"))
            speakers.append(f"spk{voice}")
            audio = synthesise(make_voice(voice), seconds, SAMPLE_FREQ, number)
            soundfile.write(paths[-1], audio, SAMPLE_FREQ)
            durations.append(len(audio) / SAMPLE_FREQ)
    columns: dict[str, Any] = {"id": ids, "storage_path": paths, "speaker": speakers}
    columns |= {"sample_freq": np.full(len(ids), SAMPLE_FREQ), "duration": np.array(durations)}
    dataset = HyperDataset.from_recordings(RecordingSet(pa.table(columns)))
    dataset.save(folder)
    return dataset


def train_loader(dataset: HyperDataset, **sampler: Any) -> ResumableLoader:
    """Random chunks of 0.5 s, 8 in a batch, 3 batches an epoch."""
    audio = AudioDataset(dataset=dataset, class_names=["speaker"])
    options: dict[str, Any] = {
        "sampler_type": "class_weighted_random_seg_chunk_sampler",
        "class_name": "speaker",
        "min_chunk_length": 0.5,
        "max_batch_size": 8,
        "max_batches_per_epoch": 3,
        "num_chunks_per_seg_epoch": 4,
        **sampler,
    }
    return make_loader(audio, SegSamplerFactory.create(audio, **options))


def val_loader(dataset: HyperDataset, class_names: list[str] | None = None, **sampler: Any) -> ResumableLoader:
    """Whole segments in order."""
    audio = AudioDataset(dataset=dataset, class_names=["speaker"] if class_names is None else class_names)
    options: dict[str, Any] = {"sampler_type": "seg_sampler", "shuffle": False, "max_batch_size": 5, **sampler}
    return make_loader(audio, SegSamplerFactory.create(audio, **options))


FEATS: dict[str, Any] = {
    "audio_feats": {
        "audio_feat": "logfb",
        "sample_frequency": SAMPLE_FREQ,
        "num_filters": 16,
        "low_freq": 60,
        "high_freq": 3800,
        "snip_edges": False,
        "use_energy": False,
        "dither": 0.0,
    },
    "mvn": {"norm_mean": True},
}
XVECTOR: dict[str, Any] = {
    "resnet_enc": {
        "in_feats": 16,
        "in_conv_channels": 12,
        "resb_repeats": [1],
        "resb_channels": [12],
        "resb_strides": [2],
    },
    "embed_dim": 8,
    "cos_scale": 10.0,
    "margin": 0.3,
    "margin_warmup_epochs": 2,
}
MODEL: dict[str, Any] = {"feats": FEATS, "xvector": XVECTOR}
OPTIM: dict[str, Any] = {"opt_type": "adamw", "lr": 0.003}


def make_model(seed: int = 0, **xvector: Any) -> Any:
    """A waveform model for the voices, with its class table."""
    import torch

    from hyperion_lite.models.wav2xvectors.wav2resnet1d_xvector import Wav2ResNet1dXVector

    torch.manual_seed(seed)
    model = Wav2ResNet1dXVector.from_config(
        {"feats": FEATS, "xvector": {**XVECTOR, "num_classes": NUM_VOICES, **xvector}}
    )
    model.class_names = SPEAKERS
    return model
