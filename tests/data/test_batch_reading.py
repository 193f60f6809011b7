"""Batches whose waveforms are read into one array, and their way out of a worker process."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import torch

from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.collate import collate
from hyperion_lite.data.item_list import ItemList
from hyperion_lite.data.keys import ChunkKey
from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.manifests import HyperDataset, RecordingSet, SegmentSet
from hyperion_lite.data.parcel import Parcel
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory

FS = 8000


def make_dataset(folder: Path, kinds: list[tuple[str, str, int, int]], **options: Any) -> AudioDataset:
    """One recording of a second for each (suffix, subtype, rate, channels)."""
    rows = []
    for index, (suffix, subtype, rate, channels) in enumerate(kinds):
        path = folder / f"r{index}.{suffix}"
        samples = np.random.default_rng(index).uniform(-0.5, 0.5, (rate, channels))
        sf.write(path, samples, rate, subtype=subtype)
        rows.append({"id": f"r{index}", "storage_path": str(path), "sample_freq": rate, "duration": 1.0})
    recordings = RecordingSet.from_rows(rows)
    segments = SegmentSet.from_recordings(recordings).with_column("speaker", [f"s{i % 2}" for i in range(len(rows))])
    return AudioDataset(dataset=HyperDataset(segments, recordings), class_names=["speaker"], **options)


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}


PLAIN = [("wav", "PCM_16", FS, 1), ("flac", "PCM_16", FS, 1), ("wav", "FLOAT", FS, 1), ("wav", "PCM_24", FS, 1)]
KINDS = {
    "all into the array": (PLAIN, {}),
    "scaled": (PLAIN, {"wav_scale": 32768.0}),
    "several channels": ([*PLAIN, ("wav", "PCM_16", FS, 2)], {"channel_policy": "mean"}),
    "several rates": ([*PLAIN, ("wav", "PCM_16", 16000, 1)], {"target_sample_freq": FS}),
    "rates that differ": ([*PLAIN, ("wav", "PCM_16", 16000, 1)], {}),
    "with the original": (PLAIN, {"return_orig": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_read_at_once_is_the_batch_of_single_items(tmp_path: Path, kind: str) -> None:
    kinds, options = KINDS[kind]
    dataset = make_dataset(tmp_path, kinds, **options)
    keys = [ChunkKey(f"r{i}", 0.125 * i, 0.25) for i in range(len(kinds))]
    together, alone = dataset.collate(dataset.__getitems__(keys)), dataset.collate([dataset[key] for key in keys])
    assert plain(together) == plain(alone)
    assert together["audio"].dtype == torch.float32 and together["audio"].is_contiguous()


def test_waveforms_that_lie_in_one_array_are_not_copied_and_others_are(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, PLAIN)
    items = dataset.__getitems__([ChunkKey(f"r{i}", 0.0, 0.5) for i in range(4)])
    assert isinstance(items, ItemList)
    assert dataset.collate(items)["audio"].data_ptr() == items.rows.data_ptr()
    assert dataset.collate(list(items))["audio"].data_ptr() != items.rows.data_ptr()
    assert dataset.collate(ItemList(items[::-1], items.rows))["audio"].data_ptr() != items.rows.data_ptr()
    assert type(dataset[["r0", "r1"]]) is list


def test_items_that_are_replaced_or_changed_keep_their_place(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, PLAIN, on_error="skip")
    (tmp_path / "r1.flac").write_bytes(b"not audio")
    keys = [ChunkKey(f"r{i}", 0.25, 0.5) for i in range(4)]
    together, alone = dataset.collate(dataset.__getitems__(keys)), dataset.collate([dataset[key] for key in keys])
    assert plain(together) == plain(alone) and together["id"][1] != "r1"
    items = dataset.__getitems__([keys[0], keys[2]])
    items[1]["audio"] = items[1]["audio"][:100]
    batch = dataset.collate(items)
    assert batch["audio_lengths"].tolist() == [4000, 100] and not batch["audio"][1, 100:].any()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_the_loader_are_ordinary_and_writable(tmp_path: Path, workers: int) -> None:
    dataset = make_dataset(tmp_path, PLAIN * 2)
    sampler = SegSamplerFactory.create(
        dataset, "random_seg_chunk_sampler", min_chunk_length=0.25, max_batch_size=4, num_chunks_per_seg_epoch=1
    )
    batches = list(make_loader(dataset, sampler, num_workers=workers))
    sampler.set_epoch(0)
    expected = [dataset.collate([dataset[key] for key in keys]) for keys in sampler]
    assert [plain(batch) for batch in batches] == [plain(batch) for batch in expected]
    for batch, other in zip(batches, expected, strict=True):
        assert {k: getattr(v, "dtype", type(v)) for k, v in batch.items()} == {
            k: getattr(v, "dtype", type(v)) for k, v in other.items()
        }
        batch["audio"] += 1.0
        batch["audio_lengths"] += 1


def test_small_tensors_travel_as_bytes_and_everything_comes_back() -> None:
    batch = {
        "audio": torch.randn(4, 20_000),
        "lengths": torch.arange(4),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.zeros(0, 3),
        "flag": torch.tensor([True, False]),
        "number": torch.tensor(2.5),
        "id": ["a", None],
    }
    before = copy.copy(batch)
    parcel = Parcel(batch)
    assert batch == before and isinstance(parcel.batch["lengths"], np.ndarray)
    assert isinstance(parcel.batch["audio"], torch.Tensor)
    opened = pickle.loads(pickle.dumps(parcel)).open()
    assert list(opened) == list(batch) and opened["id"] == ["a", None]
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(opened[name], value) and opened[name].dtype == value.dtype
            assert opened[name].shape == value.shape
    assert Parcel([torch.ones(2)]).open()[0].tolist() == [1.0, 1.0]


def test_a_plain_list_is_collated_as_ever() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    items = [{"id": "a", "audio": rows[0]}, {"id": "b", "audio": rows[1]}]
    batch = collate(items)
    batch["audio"].zero_()
    assert rows.sum() == 15.0
