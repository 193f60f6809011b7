"""Adapters in model files: both spellings of their names, and weights that hold them already."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hyperion_lite.core.errors import ConfigError, ModelFileError
from hyperion_lite.models.adapter_state import resolve_adapters
from hyperion_lite.serialization.artifact import ModelArtifact
from hyperion_lite.serialization.lora_names import (
    adapted_weights,
    loralib_name,
    match_adapters,
    spell_adapters_as_loralib,
    unfold_adapters,
)

LORALIB = [
    "hf.hf_model.enc.q_proj.weight",
    "hf.hf_model.enc.q_proj.bias",
    "hf.hf_model.enc.q_proj.lora_A",
    "hf.hf_model.enc.q_proj.lora_B",
    "hf.hf_model.enc.conv.parametrizations.weight.original0",
    "hf.hf_model.enc.k_proj.weight",
    "xvector.output.kernel",
]
PEFT = [
    "hf.hf_model.base_model.model.enc.q_proj.base_layer.weight",
    "hf.hf_model.base_model.model.enc.q_proj.base_layer.bias",
    "hf.hf_model.base_model.model.enc.q_proj.lora_A.default.weight",
    "hf.hf_model.base_model.model.enc.q_proj.lora_B.default.weight",
    "hf.hf_model.base_model.model.enc.conv.weight_g",
    "hf.hf_model.base_model.model.enc.k_proj.weight",
    "xvector.output.kernel",
]
INJECTED = [name.replace("base_model.model.", "") for name in PEFT]


@pytest.mark.parametrize("found", [LORALIB, PEFT, INJECTED], ids=["loralib", "peft", "injected"])
@pytest.mark.parametrize("wanted", [LORALIB, PEFT, INJECTED], ids=["loralib", "peft", "injected"])
def test_every_spelling_becomes_every_other(found, wanted):
    state = {name: index for index, name in enumerate(found)}
    assert list(match_adapters(state, wanted).items()) == [(name, i) for i, name in enumerate(wanted)]


def test_names_that_no_spelling_explains_stay():
    state = {"a.base_layer.weight": 0, "b.lora_A": 1, "c": 2}
    assert list(match_adapters(state, ["a.base_layer.weight", "c"])) == list(state)
    assert loralib_name("my_base_model.model.weight") == "my_base_model.model.weight"


def test_pairs_of_adapters():
    assert adapted_weights(LORALIB) == {LORALIB[0]: (LORALIB[2], LORALIB[3])}
    assert adapted_weights(PEFT) == {PEFT[0]: (PEFT[2], PEFT[3])}
    assert adapted_weights(name for name in LORALIB if not name.endswith("lora_B")) == {}


def test_single_files_have_the_names_of_loralib_and_models_without_adapters_their_own():
    state = OrderedDict((name, index) for index, name in enumerate(INJECTED))
    expected = [name.replace("parametrizations.weight.original0", "weight_g") for name in LORALIB]
    assert list(spell_adapters_as_loralib(state)) == expected
    plain = {"x.base_layer.weight": 0, "base_model.model.y": 1}
    assert spell_adapters_as_loralib(plain) == plain


def artifact(merged: bool, names=LORALIB, **changes) -> ModelArtifact:
    generator = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(*shape, generator=generator) for shape in ((6, 4), (2, 4), (6, 2)))
    if merged:
        weight = weight + 3 / 2 * b @ a
    values = [weight, torch.zeros(6), a, b, torch.ones(1), torch.ones(4, 4), torch.ones(3)]
    config = {"class_name": "X", "hf_feats": {"lora_alpha": 3, "lora_rank": 2}}
    state = OrderedDict(zip(names, values, strict=True))
    return replace(ModelArtifact(config, state, "file", Path("some.pth")), **changes)


@pytest.mark.parametrize("names", [LORALIB, PEFT], ids=["loralib", "peft"])
def test_adapters_come_out_of_the_weights(names):
    plain = artifact(False, names)
    folded = artifact(True, names)
    before = {name: value.clone() for name, value in folded.state.items()}
    found = resolve_adapters(folded, merged=True).state
    for name, value in plain.state.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)
        assert torch.equal(folded.state[name], before[name])


def test_who_is_warned(caplog):
    for merged in (False, True):
        resolve_adapters(artifact(False), merged)
    resolve_adapters(artifact(False, trainer_state=True))
    resolve_adapters(artifact(False, own={"format": 1}))
    resolve_adapters(artifact(False, PEFT))
    assert caplog.text == ""
    original = artifact(True)
    assert resolve_adapters(original) is original
    assert "some.pth has low-rank adapters" in caplog.text and "lora_merged=True" in caplog.text


def test_mistakes_are_named():
    none = artifact(False)
    none.state = OrderedDict(x=torch.ones(2))
    assert resolve_adapters(none, merged=False) is none
    with pytest.raises(ConfigError, match=r"some\.pth has no adapters"):
        resolve_adapters(none, merged=True)
    state = artifact(True).state
    state[LORALIB[2]] = torch.ones(2, 5)
    with pytest.raises(ModelFileError, match=r"\(6, 2\) times \(2, 5\).*\(6, 4\)"):
        unfold_adapters(state, 1.0, "some.pth")
    wrong = artifact(True)
    wrong.config["hf_feats"]["lora_alpha"] = "much"
    with pytest.raises(ConfigError, match="lora_alpha must be a number"):
        resolve_adapters(wrong, merged=True)
