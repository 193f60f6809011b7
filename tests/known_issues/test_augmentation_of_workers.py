"""All workers drew the same augmentation, as each had a copy of one random state; or every epoch drew the same.

Right: what is drawn depends on (seed, epoch, item) and on nothing else: not on the number of workers, not on who reads the item.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.seg_sampler import SegSampler
from tests.data.audio_files import write_recordings


def epochs_of(dataset: AudioDataset, num_workers: int, shuffle: bool) -> list[dict[str, torch.Tensor]]:
    """The waveform of each segment, in two epochs."""
    sampler = SegSampler(dataset, max_batch_size=3, shuffle=shuffle, sample_all_segments=True)
    loader = make_loader(dataset, sampler, num_workers)
    epochs = []
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        items: dict[str, torch.Tensor] = {}
        for batch in loader:
            items.update(zip(batch["id"], batch["audio"], strict=True))
        epochs.append(items)
    return epochs


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_draws_differ_by_item_and_epoch_and_by_nothing_else(tmp_path) -> None:
    # the same recording under every name, so that equal draws would give equal items
    recordings = write_recordings(tmp_path, [4000] * 6)
    first = (tmp_path / "wav" / "rec0.wav").read_bytes()
    for path in (tmp_path / "wav").iterdir():
        path.write_bytes(first)
    noise = write_recordings(tmp_path / "noise", [60000, 50000], prefix="noise", seed=9)
    options: dict[str, Any] = {"aug_cfgs": [{"type": "noise", "recordings_file": noise, "snr": [0, 10]}]}
    dataset = AudioDataset(recordings, **options)
    expected = epochs_of(dataset, 0, shuffle=False)
    waveforms = [audio for items in expected for audio in items.values()]
    assert len(waveforms) == 12
    assert not any(torch.equal(a, b) for i, a in enumerate(waveforms) for b in waveforms[:i])
    other_seed = epochs_of(AudioDataset(recordings, seed=1, **options), 0, shuffle=False)
    assert not any(torch.equal(expected[0][key], other_seed[0][key]) for key in expected[0])
    for epoch, items in enumerate(epochs_of(dataset, 2, shuffle=True)):
        assert items.keys() == expected[epoch].keys()
        assert all(torch.equal(items[key], expected[epoch][key]) for key in items)
