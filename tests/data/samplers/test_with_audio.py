"""Samplers, loader and the real data set together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch

from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory

OPTIONS: dict[str, Any] = {
    "min_chunk_length": 0.3,
    "max_chunk_length": 0.4,
    "max_batch_length": 3.0,
    "class_name": "speaker",
    "shuffle": True,
    "short_policy": "pad",
}


@pytest.fixture(name="dataset", scope="module")
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> AudioDataset:
    folder: Path = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(0)
    rows = []
    for index in range(14):
        samples = 1600 + 600 * index
        soundfile.write(folder / f"r{index}.wav", 0.1 * rng.normal(size=samples), 8000)
        rows.append((f"r{index}", str(folder / f"r{index}.wav"), 8000, samples / 8000, f"spk{index % 3}"))
    frame = pd.DataFrame(rows, columns=["id", "storage_path", "sample_freq", "duration", "speaker"])
    frame.drop(columns="speaker").to_csv(folder / "recordings.csv", index=False)
    frame[["id", "duration", "speaker"]].to_csv(folder / "segments.csv", index=False)
    return AudioDataset(
        recordings_file=str(folder / "recordings.csv"),
        segments_file=str(folder / "segments.csv"),
        class_names=["speaker"],
    )


def _same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        for name, value in left.items()
    )


@pytest.mark.parametrize("sampler_type", list(SegSamplerFactory.sampler_types))
def test_batches_do_not_depend_on_workers_or_a_resume(sampler_type: Any, dataset: AudioDataset) -> None:
    def loader_with(workers: int) -> Any:
        loader = make_loader(dataset, SegSamplerFactory.create(dataset, sampler_type, **OPTIONS), workers)
        loader.set_epoch(1)
        return loader

    reference = list(loader_with(0))
    assert len(reference) > 1
    with_workers = loader_with(2)
    iterator = iter(with_workers)
    first = next(iterator)
    state = with_workers.state_dict()
    resumed = loader_with(0)
    resumed.load_state_dict(state)
    again = [first, *resumed]
    assert len(again) == len(reference)
    assert all(_same(a, b) for a, b in zip(again, reference, strict=True))
    assert all(_same(a, b) for a, b in zip([first, *iterator], reference, strict=True))


@pytest.mark.parametrize("sampler_type", ["random_seg_chunk_sampler", "class_weighted_random_seg_chunk_sampler"])
def test_padded_chunks_have_the_length_of_their_batch(sampler_type: Any, dataset: AudioDataset) -> None:
    sampler = SegSamplerFactory.create(dataset, sampler_type, **OPTIONS)
    assert sampler.account().short > 0
    for batch in make_loader(dataset, sampler):
        lengths = batch["audio_lengths"]
        assert lengths.max() <= 0.4 * 8000 + 1
        # only segments between the minimum and the batch's length are taken whole without padding
        assert (lengths >= 0.3 * 8000 - 1).all()
