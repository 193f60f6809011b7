"""Projection, pooling and heads give what the original toolkit stored, each stage from the stored stage before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hyperion_lite.models.registry import find_model_class
from hyperion_lite.models.state_loading import load_state
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.serialization.legacy import modernise_config
from hyperion_lite.serialization.locate import read_model
from tests.helpers import shared_path

NAMES = (
    "dino_head",
    "ecapa",
    "fwseresnet34_chatt",
    "mfcc_resnet1d",
    "old_s_resnet1d",
    "resnet1d_basic_stride2",
    "resnet1d_sebasic",
    "resnet34",
    "subcenter_2embed",
)
every_file = pytest.mark.parametrize("name", NAMES)


def stored(name: str) -> tuple[XVector, dict[str, Any], dict[str, torch.Tensor]]:
    """The x-vector of a fixture, its configuration as stored, and its arrays."""
    artifact = read_model(shared_path(f"fixtures/hyperion/{name}.pth"))
    config = modernise_config(artifact.config)
    inner = dict(config.get("xvector", config))
    inner.pop("class_name")
    model = find_model_class(artifact.class_name.removeprefix("Wav2")).from_config(inner)
    state = {k.removeprefix("xvector."): v for k, v in artifact.state.items() if not k.startswith("feats.")}
    load_state(model, state)
    arrays = np.load(shared_path(f"fixtures/hyperion/{name}.npz"))
    return model.eval(), inner, {key: torch.from_numpy(arrays[key]) for key in arrays}


def check(value: torch.Tensor, reference: torch.Tensor, stage: str) -> None:
    assert value.shape == reference.shape, stage
    assert (value - reference).abs().max() <= 5e-6 * max(1.0, reference.abs().max().item()), stage


# the old file has no arrays of stages
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("old_")])
@torch.no_grad()
def test_each_stage_from_the_one_before(name):
    model, _, arrays = stored(name)
    h = arrays["enc_out"].flatten(1, -2)
    if model.proj is not None:
        check(model.proj(h), arrays["proj_out"], "proj")
        h = arrays["proj_out"]
    check(model.pool_net(h), arrays["pooled"], "pooling")
    x = arrays["pooled"]
    if model.proj_head_net is not None:
        check(model.proj_head_net(x), arrays["proj_head_out"], "projection head")
        x = arrays["proj_head_out"]
        check(x, arrays["embed"], "embedding")
    else:
        check(model.classif_net.extract_embed(x, model.embed_layer), arrays["embed"], "embedding")
    check(model.classif_net(x), arrays["logits"], "logits")


@every_file
@torch.no_grad()
def test_embedding_and_logits_of_stored_features(name):
    model, _, arrays = stored(name)
    feats = arrays["x_feats"] if name.startswith("old_s") else arrays["feats"]
    check(model.extract_embed(feats), arrays["embed"], "embedding")
    check(model(feats), arrays["logits"], "logits")


@every_file
@torch.no_grad()
def test_stored_features_in_a_padded_batch(name):
    model, _, arrays = stored(name)
    feats = arrays["x_feats"] if name.startswith("old_s") else arrays["feats"]
    frames = feats.size(-1)
    longer = torch.cat([feats, feats.flip(-1)], -1)
    padded = torch.nn.functional.pad(feats, (0, frames), value=float("nan"))
    lengths = torch.tensor([frames, 2 * frames])
    check(model.extract_embed(torch.cat([padded, longer]), lengths)[:1], arrays["embed"], "embedding")


@every_file
def test_configuration_and_head_tensors_are_those_of_the_file(name):
    model, config, _ = stored(name)
    ours = model.get_config()
    assert {key: ours[key] for key in config if key != "resnet_enc"} == {
        k: v for k, v in config.items() if k != "resnet_enc"
    }
    if not name.startswith("old_"):
        assert set(ours) == {*config, "class_name", *model.own_config_keys}
    artifact = read_model(shared_path(f"fixtures/hyperion/{name}.pth"))
    theirs = [
        k.removeprefix("xvector.") for k in artifact.state if "encoder_net" not in k and not k.startswith("feats.")
    ]
    names = [k for k in model.state_dict() if not k.startswith("encoder_net")]
    if name == "dino_head":
        theirs, names = sorted(theirs), sorted(names)
    assert names == theirs
