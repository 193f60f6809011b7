from __future__ import annotations

import copy

import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.core.errors import ConfigError, ModelFileError
from hyperion_lite.models.xvectors.tdnn_xvector import TDNNXVector
from tests.models.small_models import build

# as the configuration of the original toolkit's class looks: flat
FOREIGN = {
    "tdnn_type": "tdnn",
    "num_enc_blocks": 5,
    "in_feats": 24,
    "num_classes": 7,
    "enc_hid_units": 16,
    "kernel_size": [5, 3, 3, 1, 1],
    "dilation": [1, 2, 3, 1, 1],
    "pool_net": {"pool_type": "mean+stddev"},
    "embed_dim": 12,
}


@pytest.mark.parametrize("form", ["model.pth", "directory"])
@pytest.mark.parametrize("name", ["tdnn", "wav2-tdnn", "etdnn"])
def test_ours_load(tmp_path, name, form):
    model = build(name)
    model.save(tmp_path / form)
    loaded = HyperTorchModel.auto_load(tmp_path / form)
    assert type(loaded) is type(model)
    assert loaded.get_config() == model.get_config()


@pytest.mark.parametrize("wave", [False, True])
def test_files_of_the_other_network_of_that_name_are_refused(tmp_path, wave):
    model = build("wav2-tdnn" if wave else "tdnn")
    config = {"class_name": "TDNNXVector", **copy.deepcopy(FOREIGN)}
    if wave:
        config = {"class_name": "Wav2TDNNXVector", "feats": model.get_config()["feats"], "xvector": config}
    torch.save({"model_cfg": config, "model_state_dict": model.state_dict()}, tmp_path / "foreign.pth")
    with pytest.raises(ModelFileError, match=r"foreign\.pth.*original toolkit.*hyperion_lite\.pth"):
        HyperTorchModel.auto_load(tmp_path / "foreign.pth")
    with pytest.raises(ConfigError, match="tdnn_enc"):
        TDNNXVector.load(cfg=FOREIGN)


def test_a_file_of_ours_says_nothing_that_the_original_could_take_for_its_own(tmp_path):
    build("tdnn").save(tmp_path / "m.pth")
    content = torch.load(tmp_path / "m.pth", weights_only=True)
    assert "tdnn_enc" not in content["model_cfg"]
    assert content["hyperion_lite"]["config"]["tdnn_enc"]["kernel_sizes"] == [5, 3, 3, 1, 1]


def test_the_embedding_of_the_first_paper_is_the_first_layer_before_its_activation():
    model = build("tdnn")
    x = torch.randn(1, 24, 30)
    with torch.no_grad():
        pooled = model.pool_net(model.encoder_net(x)[0])
        expected = model.classif_net.fc_blocks[0].linear(pooled)
        torch.testing.assert_close(model.extract_embed(x), expected)
