"""Parts that a configuration names by class: they are checked like the others, and so are their keys of other releases."""

import logging

import pytest
import torch

from hyperion_lite import HyperTorchModel, Wav2XVector
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.fold_batch_norm import fold_batch_norm
from tests.models.small_models import ECAPA, build


def test_unknown_keys_of_a_named_part(tmp_path, caplog):
    model = build("wav2-by-class-name")
    config = model.get_config()
    config["xvector"]["embed_dimm"] = 3
    with pytest.raises(ConfigError, match=r"xvector: unknown key 'embed_dimm', did you mean 'embed_dim'"):
        Wav2XVector.from_config(config)
    torch.save({"model_cfg": config, "model_state_dict": model.state_dict()}, tmp_path / "m.pth")
    with caplog.at_level(logging.WARNING):
        HyperTorchModel.auto_load(tmp_path / "m.pth", frontend_rules="modern")
    assert sum("embed_dimm" in r.message for r in caplog.records) == 1


def test_an_x_vector_over_an_encoder_named_by_class():
    config = {k: v for k, v in ECAPA.items() if k != "resnet_enc"}
    model = XVector.from_config({"encoder_cfg": {"class_name": "ResNet1dEncoder", **ECAPA["resnet_enc"]}, **config})
    assert model.extract_embed(torch.randn(1, 24, 30)).shape == (1, model.embed_dim)
    assert XVector(**model.get_config()).get_config() == model.get_config()


def test_a_folded_copy_is_not_saved(tmp_path):
    model = build("wav2-resnet18")
    with pytest.raises(ValueError, match="folded"):
        fold_batch_norm(model).save(tmp_path / "m.pth")
    model.save(tmp_path / "m.pth")


def test_superblocks_behind_the_last_endpoint_are_never_trained():
    config = {**ECAPA, "resnet_enc": {**ECAPA["resnet_enc"], "endpoint_layers": [1]}}
    model = HyperTorchModel.load(cfg={"class_name": "ResNet1dXVector", **config})
    for _ in range(2):
        model.train()(torch.randn(2, 24, 30), y=torch.tensor([0, 1])).sum().backward()
        assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
        assert not any(p.requires_grad for p in model.encoder_net.blocks[1].parameters())
        model.zero_grad(set_to_none=True)
        model.freeze().unfreeze()
