from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.legacy_audio_dataset import LegacyAudioDataset
from tests.data.audio_files import write_recordings, write_table


def test_the_legacy_keys_name_the_same_values(tmp_path):
    recordings = write_recordings(tmp_path, [4000, 6000])
    segments = write_table(
        tmp_path / "s.csv", [{"id": f"s{i}", "recording": f"rec{i}", "speaker": f"spk{i}"} for i in range(2)]
    )
    options = {"class_names": ["speaker"], "aug_cfgs": [{"type": "gain"}], "num_augs": 2, "return_orig": True}
    new, old = AudioDataset(recordings, segments, **options), LegacyAudioDataset(recordings, segments, **options)
    assert set(old["s0"]) == {"seg_id", "sample_freq", "x", "x_aug_1", "x_orig", "speaker"}
    names = {"seg_id": "id", "x": "audio", "x_aug_1": "audio_aug_1", "x_orig": "audio_orig"}
    (batch,) = DataLoader(old, batch_sampler=[["s0", ("s1", 0.1, 0.6)]], collate_fn=old.collate)
    (expected,) = DataLoader(new, batch_sampler=[["s0", ("s1", 0.1, 0.6)]], collate_fn=new.collate)
    assert (
        batch["seg_id"] == ["s1", "s0"]
        and batch["x_lengths"].tolist() == [4800, 4000]
        and "audio" not in batch
        and "id" not in batch
    )
    for name, value in batch.items():
        other = names.get(name.removesuffix("_lengths"), name.removesuffix("_lengths"))
        other += "_lengths" if name.endswith("_lengths") else ""
        assert torch.equal(value, expected[other]) if isinstance(value, torch.Tensor) else value == expected[other]


def test_the_configuration_rebuilds_the_legacy_class(tmp_path):
    dataset = LegacyAudioDataset(write_recordings(tmp_path, [4000]))
    twin = LegacyAudioDataset.from_config(dataset.get_config())
    assert torch.equal(twin["rec0"]["x"], dataset["rec0"]["x"])
