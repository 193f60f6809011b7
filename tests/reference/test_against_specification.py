"""Random models of every kind, loaded from a file, give what the reference computes from the same tensors; and the other way round."""

from __future__ import annotations

import pytest
import torch

from hyperion_lite import HyperTorchModel
from tests.reference.comparing import TOLERANCE, agree, distance, save, tensors_for
from tests.reference.model import run
from tests.reference.random_models import draw_model, rename, respell
from tests.reference.tensors import Tensors

NUM_MODELS = {
    "ResNet1dXVector": 80,
    "Wav2ResNet1dXVector": 60,
    "ResNetXVector": 10,
    "Wav2ResNetXVector": 8,
    "ConformerV1XVector": 60,
    "Wav2ConformerV1XVector": 10,
}
CASES = [(kind, seed) for kind, count in NUM_MODELS.items() for seed in range(count)]


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_embeddings_and_logits(kind, seed, tmp_path):
    config, x = draw_model(seed, kind)
    rules = "legacy" if seed % 2 else "modern"
    tensors = tensors_for(config, x, seed, rules)
    stored, state = config, tensors.table
    if seed % 4 >= 2:
        stored, state = respell(config, seed), rename(tensors.table, seed)
    model = HyperTorchModel.auto_load(save(tmp_path / "model.pth", stored, state), frontend_rules=rules)
    agree(model, config, tensors, x, rules)


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, seed in CASES if seed % 5 == 0])
def test_the_reference_reads_what_the_package_saves(kind, seed, tmp_path):
    config, x = draw_model(500 + seed, kind)
    drawn = tensors_for(config, x, seed)
    model = HyperTorchModel.auto_load(
        save(tmp_path / "model.pth", respell(config, seed), drawn.table), frontend_rules="legacy"
    )
    model.save(tmp_path / "again.pth")
    saved = torch.load(tmp_path / "again.pth", weights_only=True)
    tensors = Tensors(saved["model_state_dict"])
    with torch.no_grad():
        embeddings, logits = run(tensors, x, saved["model_cfg"])
        expected_embeddings, expected_logits = run(drawn, x, config)
    assert set(tensors.table) == set(drawn.table)
    # the tensors are the same bits, so only a key of the configuration that was lost or changed makes a difference
    for found, expected in zip([*embeddings, logits], [*expected_embeddings, expected_logits], strict=True):
        assert distance(found, expected) == 0.0


def test_the_draws_cover_the_choices():
    drawn = [draw_model(seed, kind)[0] for kind, seed in CASES]
    vectors = [config.get("xvector", config) for config in drawn]
    encoders = [config["resnet_enc"] for config in vectors if "resnet_enc" in config]
    conformers = [config["encoder"] for config in vectors if "encoder" in config]
    found = {
        "attention": {(encoder["att_type"], encoder["pos_enc_type"]) for encoder in conformers},
        "in_layer_type": {encoder["in_layer_type"] for encoder in conformers},
        "ff_type": {encoder["ff_type"] for encoder in conformers},
        "resb_type": {encoder["resb_type"] for encoder in encoders},
        "pool_type": {config["pool_net"]["pool_type"] for config in vectors},
        "loss_type": {config["loss_type"] for config in vectors},
        "norm": {(encoder["norm_layer"], encoder["norm_before"]) for encoder in encoders if encoder["use_norm"]},
        "audio_feat": {config["feats"]["audio_feats"]["audio_feat"] for config in drawn if "feats" in config},
        "resnet_type": {config["resnet_type"] for config in vectors if "resnet_type" in config},
        "head_type": {config["head_type"] for config in vectors},
    }
    assert {name: len(values) for name, values in found.items() if name != "resnet_type"} == {
        "attention": 12,
        "in_layer_type": 5,
        "ff_type": 3,
        "resb_type": 8,
        "pool_type": 6,
        "loss_type": 4,
        "norm": 12,
        "audio_feat": 5,
        "head_type": 2,
    }
    assert len(found["resnet_type"]) >= 12


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_which_layers_give_embeddings(layers, tmp_path):
    config, x = draw_model(1, "ResNet1dXVector")
    config |= {
        "num_embed_layers": layers,
        "embed_layer": layers - 1,
        "head_type": "x-vector",
        "head_use_in_norm": False,
    }
    tensors = tensors_for(config, x, 1)
    model = HyperTorchModel.auto_load(save(tmp_path / "model.pth", config, tensors.table))
    with torch.no_grad():
        embeddings, _ = run(tensors, x, config)
        assert distance(model.extract_embed(x), embeddings[-1]) <= TOLERANCE
        assert distance(model.extract_embed(x, embed_layer=-1), embeddings[-1]) <= TOLERANCE
    with pytest.raises(ValueError, match="embed_layer"):
        model.extract_embed(x, embed_layer=layers)
