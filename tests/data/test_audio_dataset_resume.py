from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from tests.data.audio_files import write_recordings, write_table

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FS = 8000
LENGTHS = [7000 + 900 * i for i in range(9)]
SAMPLERS = [
    {"sampler_type": "seg_sampler", "min_batch_size": 2, "max_batch_size": 3, "shuffle": True},
    {
        "sampler_type": "random_seg_chunk_sampler",
        "min_batch_size": 2,
        "max_batch_size": 3,
        "min_chunk_length": 0.4,
        "max_chunk_length": 0.6,
        "num_chunks_per_seg_epoch": 2,
    },
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("speech")
    rows = [
        {"id": f"seg{i}", "recording": f"rec{i}", "start": 0.0, "duration": n / FS, "speaker": f"spk{i % 3}"}
        for i, n in enumerate(LENGTHS)
    ]
    return {
        "recordings_file": write_recordings(folder, LENGTHS, FS),
        "segments_file": write_table(folder / "segments.csv", rows),
        "noise": write_recordings(folder, [3000, 60000], FS, "noise", seed=70),
    }


def loader_of(files: dict[str, str], sampler: dict, workers: int, prefetch: int | None = None):
    augment = [
        {"type": "speed", "speeds": [0.9, 1.0, 1.1], "new_classes": ["speaker"]},
        {
            "type": "one_of",
            "prob": 0.8,
            "augmenters": [
                {"type": "noise", "recordings_file": files["noise"]},
                {"type": "babble", "recordings_file": files["recordings_file"]},
            ],
        },
        {"type": "reverb", "prob": 0.3, "recordings_file": files["noise"], "max_duration": 0.1},
        {"type": "codec", "prob": 0.3},
        {"type": "gain", "prob": 0.5},
        {"type": "freq_drop", "prob": 0.3, "num_taps": 63},
        {"type": "chunk_drop", "prob": 0.3},
    ]
    dataset = AudioDataset(
        files["recordings_file"],
        files["segments_file"],
        class_names=["speaker"],
        aug_cfgs=augment,
        return_orig=True,
        seed=7,
    )
    options = {"num_workers": workers, **({"prefetch_factor": prefetch} if prefetch else {})}
    return make_loader(dataset, SegSamplerFactory.create(dataset, **sampler, seed=3), **options)


def epoch(loader, number: int) -> list[dict]:
    loader.set_epoch(number)
    return list(loader)


def assert_same(a: list[dict], b: list[dict]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.keys() == y.keys()
        for key, value in x.items():
            assert torch.equal(value, y[key]) if isinstance(value, torch.Tensor) else value == y[key], key


@pytest.fixture(scope="module", params=SAMPLERS, ids=lambda s: s["sampler_type"])
def reference(request, files) -> tuple[dict, list[list[dict]]]:
    loader = loader_of(files, request.param, 0)
    return request.param, [epoch(loader, number) for number in range(2)]


def test_epochs_differ(reference):
    _, (first, second) = reference
    sounds = [{row.numpy().tobytes() for batch in e for row in batch["audio"]} for e in (first, second)]
    assert not sounds[0] & sounds[1]
    assert [b["id"] for b in first] != [b["id"] for b in second]


@pytest.mark.parametrize(("workers", "prefetch"), [(2, 1), (4, 4)])
def test_augmented_batches_are_the_same_with_workers(files, reference, workers, prefetch):
    sampler, expected = reference
    loader = loader_of(files, sampler, workers, prefetch)
    for number, batches in enumerate(expected):
        assert_same(epoch(loader, number), batches)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_augmented_batches_are_the_same_after_a_resume_in_the_middle(files, reference, before, after):
    sampler, expected = reference
    interrupted = loader_of(files, sampler, before)
    interrupted.set_epoch(1)
    taken = list(islice(interrupted, 2))
    state = json.loads(json.dumps(interrupted.state_dict()))
    resumed = loader_of(files, sampler, after)
    resumed.load_state_dict(state)
    assert len(expected[1]) > 2
    assert_same(taken + list(resumed), expected[1])
