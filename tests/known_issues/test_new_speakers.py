"""Fine-tuning with another set of speakers: a size mismatch, or a head that was silently random.

Right: known ids keep their rows, wherever they now stand; the others are initialised, and both are reported.
"""

from __future__ import annotations

import logging

import pytest
import torch

from hyperion_lite import HyperTorchModel
from tests.models.small_models import NUM_CLASSES, build, make_item

OLD = [f"spk{i}" for i in range(NUM_CLASSES)]
NEW = ["spk5", "anna", "spk0", "bert", "spk6"]


@pytest.mark.parametrize("name", ["wav2-ecapa", "wav2-fwse-res2", "wav2-tse-instance-norm", "wav2-sum-of-layers"])
def test_rows_of_known_ids_are_kept(tmp_path, caplog, name: str) -> None:
    model = build(name)
    model.class_names = OLD
    model.save(tmp_path / "m.pth")
    tuned = HyperTorchModel.auto_load(tmp_path / "m.pth")
    x = make_item(model, 6000)[None]
    with torch.no_grad(), caplog.at_level(logging.INFO):
        before = tuned(x)[0]
        report = tuned.rebuild_output_layer(class_names=NEW)
        after = tuned.eval()(x)[0]
    assert (report.kept, report.new) == (("spk5", "spk0", "spk6"), ("anna", "bert"))
    assert "3 prototypes kept, 2 initialised" in caplog.text
    assert torch.equal(after[[0, 2, 4]], before[[5, 0, 6]])
    assert not torch.isin(after[[1, 3]], before).any()
    assert tuned.class_names == NEW
    tuned.save(tmp_path / "tuned")
    assert HyperTorchModel.auto_load(tmp_path / "tuned").class_names == NEW


def test_a_table_of_another_size_is_never_taken_silently() -> None:
    model = build("wav2-ecapa")
    with pytest.raises(ValueError, match="5 ids, but the model has 7 classes"):
        model.class_names = NEW
