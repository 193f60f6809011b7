"""The class table was made anew at resume or evaluation, in another order: accuracy 0 and no error.

Right: the table is in the model's file; rows can be permuted by id; a data set that takes its table from elsewhere gives the same
indices whatever the order of its rows.
"""

from __future__ import annotations

import random

import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.audio_dataset import AudioDataset
from tests.data.audio_files import write_recordings, write_table
from tests.models.small_models import NUM_CLASSES, build, make_item
from tests.trainers.small_training import Batches, make_trainer

IDS = [f"spk{i}" for i in range(NUM_CLASSES)]


@pytest.mark.parametrize("form", ["m.pth", "m"])
def test_the_table_is_in_the_file_and_rows_are_permuted_by_id(tmp_path, form: str) -> None:
    model = build("wav2-ecapa")
    order = random.Random(0).sample(IDS, len(IDS))
    model.class_names = order
    model.save(tmp_path / form)
    loaded = HyperTorchModel.auto_load(tmp_path / form)
    assert loaded.class_names == order
    x = make_item(model, 6000)[None]
    with torch.no_grad():
        before = dict(zip(order, loaded(x)[0], strict=True))
        report = loaded.rebuild_output_layer(class_names=IDS)
        after = dict(zip(IDS, loaded.eval()(x)[0], strict=True))
    assert not report.new and not report.dropped
    assert after == before


def test_a_data_set_takes_the_table_it_is_given(tmp_path) -> None:
    recordings = write_recordings(tmp_path, [800] * NUM_CLASSES)
    rows = [{"id": f"seg{i}", "recording": f"rec{i}", "start": 0, "duration": 0.1, "speaker": IDS[i]} for i in range(7)]
    table = write_table(tmp_path / "classes.csv", [{"id": name} for name in ["spk3", *IDS[:3], *IDS[4:]]])
    for seed in range(3):
        segments = write_table(tmp_path / f"segments{seed}.csv", random.Random(seed).sample(rows, 7))
        dataset = AudioDataset(recordings, segments, class_names=["speaker"], class_files=[table])
        assert [dataset[f"seg{i}"]["speaker"] for i in range(7)] == [1, 2, 3, 0, 4, 5, 6]
        plain = AudioDataset(recordings, segments, class_names=["speaker"])
        assert [plain[f"seg{i}"]["speaker"] for i in range(7)] == list(range(7))


def test_resuming_with_another_order_is_refused(tmp_path) -> None:
    first, second = (make_trainer(tmp_path, num_epochs=1) for _ in range(2))
    first.module.class_names = ["anna", "bert", "cleo"]
    first.fit(Batches())
    second.module.class_names = ["bert", "anna", "cleo"]
    with pytest.raises(ConfigError, match="order of the classes: class 0 was 'anna' and is 'bert'"):
        second.load_last_checkpoint()
