"""Files of the original toolkit with a Hugging Face encoder: hidden states, fused frames, embeddings, names."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.core.errors import ConfigError
from tests.contracts.model_tester import relative_error
from tests.helpers import shared_path

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
    assert not {"feature_processor", "weight_dtype", "num_buckets"} & set(content["model_cfg"]["hf_feats"])
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
