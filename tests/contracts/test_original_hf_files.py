"""Files of the original toolkit with a Hugging Face encoder: hidden states, fused frames, embeddings, names."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile as sf
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.cli.main import main
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.extraction.embedding_files import read_embeddings
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.serialization.lora_names import spell_adapters_as_loralib
from tests.contracts.model_tester import relative_error
from tests.helpers import shared_path
from tests.models.small_hf_models import GROUP_NORM, RESNET1D, fusion
from tests.models.small_hf_models import model as model_config

FILES = {
    "hf_wav2vec2": {},
    "hf_wavlm": {},
    "old_hf_fusion": {},
    "hf_lora_unmerged": {},
    "hf_lora_merged": {"lora_merged": True},
}
TOLERANCE = 1e-5
OLD_NAMES = {
    "feat_fuser": "feat_fuser.feat_fuser.feat_fuser",
    "weight_g": "parametrizations.weight.original0",
    "weight_v": "parametrizations.weight.original1",
}


def load(name, **options):
    model = HyperTorchModel.auto_load(shared_path(f"fixtures/hyperion/{name}.pth"), **options)
    return model, {
        key: torch.from_numpy(value) for key, value in np.load(shared_path(f"fixtures/hyperion/{name}.npz")).items()
    }


@pytest.mark.parametrize("name", FILES)
@torch.no_grad()
def test_every_stage(name):
    model, arrays = load(name, **FILES[name])
    x = arrays["x"]
    assert relative_error(model.extract_embed(x), arrays["embed"]) <= TOLERANCE
    assert relative_error(model(x), arrays["logits"]) <= TOLERANCE
    frames = model.forward_feats(x, return_feat_layers=range(model.hf_feats.num_hidden_layers + 1))
    found = {f"hf_hidden_{i}": h.transpose(1, 2) for i, h in enumerate(frames.h_feats)}
    found |= {"fused": frames.feats.transpose(1, 2), "hf_last": found[f"hf_hidden_{len(found) - 1}"]}
    for key in found.keys() & arrays.keys():
        assert relative_error(found[key], arrays[key]) <= TOLERANCE, key


@pytest.mark.parametrize("name", FILES)
@torch.no_grad()
def test_saved_again_it_keeps_keys_and_names_of_the_original(name, tmp_path):
    path = shared_path(f"fixtures/hyperion/{name}.pth")
    model, arrays = load(name, **FILES[name])
    model.save(tmp_path / "again.pth")
    model.save(tmp_path / "again")
    content = torch.load(tmp_path / "again.pth", weights_only=True)
    original = json.loads(path.with_suffix(".json").read_text())
    old = name.startswith("old_")
    assert set(original["config"]) - {"feat_fusion_method"} <= set(content["model_cfg"])
    assert set(original["config"]["hf_feats"]) <= set(content["model_cfg"]["hf_feats"])
    assert set(content["model_cfg"]["hf_feats"]) <= set(original["config"]["hf_feats"])
    assert set(content["model_cfg"]["xvector"]) <= set(original["config"]["xvector"])
    assert set(content["model_cfg"]["feat_fuser"]) == {"feat_fuser", "mvn", "spec_augment", "trans", "aug_after_mvn"}
    names = {renamed(key) if old else key for key in original["state_dict"]}
    assert names == set(content["model_state_dict"])
    for saved in ("again.pth", "again"):
        # what this package wrote leaves nothing open
        again = HyperTorchModel.auto_load(tmp_path / saved)
        assert relative_error(again.extract_embed(arrays["x"]), arrays["embed"]) <= TOLERANCE


def renamed(name: str) -> str:
    for old, new in OLD_NAMES.items():
        if name == old or name.endswith(f".{old}"):
            return name[: -len(old)] + new
    return name


@torch.no_grad()
def test_without_a_word_adapters_are_taken_as_not_folded_and_the_caller_is_warned(caplog):
    model, arrays = load("hf_lora_merged")
    assert "lora_merged=True" in caplog.text
    assert relative_error(model.extract_embed(arrays["x"]), arrays["embed"]) > 1e-3
    caplog.clear()
    model, arrays = load("hf_lora_unmerged", lora_merged=False)
    assert caplog.text == ""
    assert relative_error(model.extract_embed(arrays["x"]), arrays["embed"]) <= TOLERANCE
    with pytest.raises(ConfigError, match="no adapters"):
        load("hf_wavlm", lora_merged=True)


@pytest.mark.parametrize("old", ["last", "weighted-avg", "linear", "cat"])
@pytest.mark.parametrize("start", [0, 1])
@torch.no_grad()
def test_files_with_the_old_fusion_key(old, start, tmp_path):
    """Such files name the fusion at the top level, its tensors without the two outer parts, and have no bias in ``cat``."""
    options = {"proj_bias": False} if old == "cat" else {}
    config = model_config({**GROUP_NORM, "drop_layers_gt": 2}, fusion(old, **options), RESNET1D, start)
    torch.manual_seed(0)
    model = find_model_class("HFHubert2ResNet1dXVector")(**config).eval()
    stored = model.get_config()
    del stored["feat_fuser"]
    stored["feat_fusion_method"] = old
    state = {
        name.replace("feat_fuser.feat_fuser.feat_fuser", "feat_fuser")
        .replace("parametrizations.weight.original0", "weight_g")
        .replace("parametrizations.weight.original1", "weight_v"): value
        for name, value in model.state_dict().items()
    }
    assert not any("feat_fuser.feat_fuser" in name or "parametrizations" in name for name in state)
    torch.save({"model_cfg": stored, "model_state_dict": state}, tmp_path / "old.pth")
    loaded = HyperTorchModel.auto_load(tmp_path / "old.pth")
    x = torch.randn(1, 6000) * 0.1
    assert torch.equal(loaded.extract_embed(x), model.extract_embed(x))
    # files do not say so, but the rules of the release of their time hold
    assert loaded.get_config()["feat_fuser"]["frontend_rules"] == "legacy"


@torch.no_grad()
def test_trainer_checkpoints_are_taken_as_not_folded_without_a_word(tmp_path, caplog):
    model, arrays = load("hf_lora_unmerged", lora_merged=False)
    state = {f"module.{name}": value for name, value in spell_adapters_as_loralib(model.state_dict()).items()}
    content = {"model_cfg": model.get_config(), "model_state_dict": state, "optimizer_state_dict": {}, "epoch": 1}
    torch.save(content, tmp_path / "model_ep0001.pth")
    loaded = HyperTorchModel.auto_load(tmp_path / "model_ep0001.pth")
    assert relative_error(loaded.extract_embed(arrays["x"]), arrays["embed"]) <= TOLERANCE
    assert caplog.text == ""


def test_extraction_of_a_file_with_folded_adapters(tmp_path):
    model, arrays = load("hf_lora_merged", lora_merged=True)
    sf.write(tmp_path / "a.wav", arrays["x"][0].numpy(), 16000, subtype="FLOAT")
    sf.write(tmp_path / "b.wav", arrays["x"][0, :9000].numpy(), 16000, subtype="FLOAT")
    path = shared_path("fixtures/hyperion/hf_lora_merged.pth")
    arguments = [
        "extract",
        "--model",
        str(path),
        "--input",
        str(tmp_path),
        "--quiet",
        "--lora-merged",
        "--device",
        "cpu",
    ]
    assert main([*arguments, "--output", str(tmp_path / "out.npz")]) == 0
    found = read_embeddings(tmp_path / "out.npz")
    vectors = dict(zip(found.ids, torch.from_numpy(found.vectors), strict=True))
    assert relative_error(vectors["a"], arrays["embed"][0]) <= TOLERANCE
    assert relative_error(vectors["b"], model.extract_embed(arrays["x"][:, :9000]).detach()[0]) <= TOLERANCE
    assert found.policy.frontend_rules == "legacy" and found.policy.model_class == "HFWav2Vec2ResNet1dXVector"
    assert main([*arguments, "--output", str(tmp_path / "chunks.npz"), "--chunk-length", "0.3"]) == 0
    assert read_embeddings(tmp_path / "chunks.npz").policy.chunk_length == 0.3
