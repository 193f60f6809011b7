"""Features at inference were not those of training, because they lived in a script and not in the model.

Right: the front end is a part of the model and of its file. A loaded model has the features it was trained with, takes waveforms and
says at which rate; whoever gives it features is refused.
"""

from __future__ import annotations

import copy

import pytest
import torch

from hyperion_lite import HyperTorchModel
from tests.models.small_models import ALL_MODELS, build, make_item


@pytest.mark.parametrize("form", ["m.pth", "m"])
def test_the_file_holds_the_front_end(tmp_path, form: str) -> None:
    class_name, config = ALL_MODELS["wav2-ecapa"]
    changed = copy.deepcopy(config) | {"class_name": class_name}
    changed["feats"]["audio_feats"] |= {"frame_shift": 12.5, "preemphasis_coeff": 0.9, "high_freq": 3800}
    changed["feats"]["audio_feats"]["sample_frequency"] = 8000
    torch.manual_seed(0)
    model = HyperTorchModel.load(cfg=changed).eval()
    model.save(tmp_path / form)
    loaded = HyperTorchModel.auto_load(tmp_path / form)
    x = make_item(model, 8000)[None]
    with torch.inference_mode():
        assert torch.equal(loaded.feats(x)[0], model.feats(x)[0])
        assert torch.equal(loaded.extract_embed(x), model.extract_embed(x))
    assert loaded.sample_frequency == 8000
    assert loaded.get_config()["feats"]["audio_feats"] == model.get_config()["feats"]["audio_feats"]


def test_features_are_no_waveforms() -> None:
    with pytest.raises(ValueError, match="24 channels"):
        build("wav2-ecapa").extract_embed(torch.randn(1, 24, 200))
