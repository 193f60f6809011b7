"""Adapters in models: files, merging, averages, conversion of the original toolkit's checkpoints."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hyperion_lite.cli.main import main
from hyperion_lite.core.errors import HyperionLiteError
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.optim import OptimizerFactory
from hyperion_lite.serialization.lora_names import loralib_name
from hyperion_lite.trainers.averaging import WeightAverage
from tests.contracts.model_tester import relative_error
from tests.helpers import slow_but
from tests.models.wav2xvectors.hf_learning_models import LORA_MODES, MODES, make_batch, make_model


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("wavlm").eval()


def embed(model: Any) -> torch.Tensor:
    x, lengths, _ = make_batch()
    with torch.no_grad():
        return model.extract_embed(x, lengths)


def train(model: Any, mode: str, average: WeightAverage | None = None) -> torch.optim.Optimizer:
    model.set_train_mode(mode)
    model.train()
    optimizer = OptimizerFactory.create(model.trainable_param_groups(), opt_type="adam", lr=0.01)
    for step in range(2):
        x, lengths, y = make_batch(step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x, lengths, y), y).backward()
        optimizer.step()
        if average is not None:
            average.update()
    return optimizer


@pytest.mark.parametrize("mode", slow_but(MODES, ["full", "frozen", "hf-lora"]))
def test_files_do_not_depend_on_the_mode(model, tmp_path, mode):
    own = copy.deepcopy(model)
    expected = {n: t.clone() for n, t in own.state_dict().items()}
    for training in (True, False):
        own.set_train_mode(mode)
        own.train(training)
        for name in ("m.pth", "m"):
            own.save(tmp_path / name)
            again = HyperTorchModel.auto_load(tmp_path / name)
            state = again.state_dict()
            assert state.keys() == expected.keys() and all(torch.equal(t, expected[n]) for n, t in state.items())
            assert again.get_config() == model.get_config() and again.train_mode == "full"
            again.set_train_mode(mode)
    assert torch.equal(embed(HyperTorchModel.auto_load(tmp_path / "m")), embed(model))


@pytest.mark.parametrize("name", ["m.pth", "m"])
def test_a_merged_file_is_a_plain_model_that_needs_no_peft(model, tmp_path, monkeypatch, name):
    own = copy.deepcopy(model)
    own.save(tmp_path / name, merge_lora=True)
    assert own.hf_feats.lora_settings is not None and torch.equal(embed(own), embed(model))
    monkeypatch.setitem(sys.modules, "peft", None)
    merged = HyperTorchModel.auto_load(tmp_path / name)
    assert not any("lora" in n or "base_layer" in n for n in merged.state_dict())
    assert merged.get_config()["hf_feats"]["use_lora"] is False
    assert relative_error(embed(merged), embed(model)) <= 1e-5
    again = merged.copy()
    again.save(tmp_path / name, merge_lora=True)
    assert torch.equal(embed(HyperTorchModel.auto_load(tmp_path / name)), embed(merged))


@pytest.mark.parametrize("mode", ["full", "hf-feats-frozen", *LORA_MODES])
def test_a_merged_model_trains_on(model, mode):
    own = copy.deepcopy(model)
    own.set_train_mode(mode)
    assert own.merge_lora() is own
    assert own.train_mode == ("full" if mode in LORA_MODES else mode)
    assert not set(own.valid_train_modes) & set(LORA_MODES)
    assert relative_error(embed(own.eval()), embed(model)) <= 1e-5
    train(own, own.train_mode)
    own.train_last_layers(1)
    assert relative_error(embed(own.eval()), embed(model)) > 1e-3


def test_merging_keeps_how_many_layers_learn(model):
    own = copy.deepcopy(model)
    own.train_last_layers(1)
    before = {
        n.replace(".base_layer", "").replace(".base_model.model", "")
        for n, p in own.named_parameters()
        if p.requires_grad
    }
    own.merge_lora()
    assert {n for n, p in own.named_parameters() if p.requires_grad} == {n for n in before if ".lora_" not in n}


@pytest.mark.parametrize("mode", LORA_MODES)
def test_adapters_alone_make_the_trained_model_of_the_base(tmp_path, mode):
    base = make_model("hubert", trained=False, use_lora=False)
    tuned = make_model("hubert", trained=False)
    tuned.load_state_dict({n: base.state_dict().get(plain_name(n), t) for n, t in tuned.state_dict().items()})
    heads = {n: t.clone() for n, t in tuned.state_dict().items() if not n.startswith("hf_feats.")}
    train(tuned, mode)
    tuned.load_state_dict({**tuned.state_dict(), **heads})
    tuned.save_adapters(tmp_path / "a")
    assert relative_error(embed(base.eval()), embed(tuned.eval())) > 1e-5
    base.load_adapters(tmp_path / "a")
    assert torch.equal(embed(base.eval()), embed(tuned))
    base.set_train_mode(mode)
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    assert config["bias"] == {"hf-lora": "none", "hf-all-bias-lora": "all", "hf-lora-with-bias": "lora_only"}[mode]


def plain_name(name: str) -> str:
    return name.replace("base_model.model.", "").replace(".base_layer", "")


@pytest.mark.parametrize("decay", [None, 0.5])
def test_averages_leave_what_is_frozen_as_it_is(model, decay):
    own = copy.deepcopy(model)
    before = {n: t.clone() for n, t in own.state_dict().items()}
    average = WeightAverage(own, decay)
    train(own, "hf-lora", average)
    last = {n: t.clone() for n, t in own.state_dict().items()}
    with average.applied():
        averaged = {n: t.clone() for n, t in own.state_dict().items()}
    assert all(torch.equal(t, last[n]) for n, t in own.state_dict().items())
    frozen = {n for n in before if n.startswith("hf_feats.") and "lora_" not in n}
    assert frozen and all(torch.equal(averaged[n], before[n]) for n in frozen)
    adapters = {n for n in before if "lora_" in n}
    assert all(not torch.equal(averaged[n], last[n]) for n in adapters)
    other = WeightAverage(copy.deepcopy(model), decay)
    other.load_state_dict(average.state_dict())
    assert all(torch.equal(t, average.state_dict()[n]) for n, t in other.state_dict().items())


def test_a_file_that_claims_a_rank_it_does_not_have_is_refused(model, tmp_path):
    model.save(tmp_path / "m")
    path = tmp_path / "m/config.json"
    config = json.loads(path.read_text())
    for rank, message in ((3, "wrong shapes"), (10**7, "many times larger"), (-1, "lora_rank must be at least 1")):
        config["hf_feats"]["lora_rank"] = rank
        path.write_text(json.dumps(config))
        with pytest.raises(HyperionLiteError, match=message):
            HyperTorchModel.auto_load(tmp_path / "m")


def original_checkpoint(path: Path, model: Any, optimizer: torch.optim.Optimizer, average: WeightAverage) -> None:
    """As the original toolkit's trainer writes: loralib's names, its optimizer numbered in the order of its model, weights as they are."""
    state = {loralib_name(n): t for n, t in model.state_dict().items()}
    # loralib's layers have their adapter last
    names: list[str] = []
    for name in state:
        if ".lora_" not in name:
            names.append(name)
            root = name.rpartition(".")[0]
            if name.endswith(".bias") and f"{root}.lora_A" in state:
                names += [f"{root}.lora_A", f"{root}.lora_B"]
    assert len(names) == len(state)
    parameters = {loralib_name(n): p for n, p in model.named_parameters()}
    learning = [n for n in names if n in parameters and parameters[n].requires_grad]
    optimizer_state = {i: dict(optimizer.state[parameters[n]]) for i, n in enumerate(learning)}
    group = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    swa = {"n_averaged": torch.tensor(2)}
    averaged = average.state_dict()
    swa |= {f"module.{loralib_name(n)}": averaged[f"module.{n}"] for n in model.state_dict()}
    torch.save(
        {
            "epoch": 1,
            "batch": 0,
            "global_step": 2,
            "model_cfg": {k: v for k, v in model.get_config().items() if k != "channel_policy"},
            "model_state_dict": {n: state[n] for n in names},
            "optimizer_state_dict": {
                "state": optimizer_state,
                "param_groups": [{**group, "params": list(range(len(learning)))}],
            },
            "swa_model_state_dict": swa,
        },
        path,
    )


@pytest.mark.parametrize("mode", ["full", *LORA_MODES])
def test_checkpoints_of_the_original_are_converted_with_optimizer_and_average(tmp_path, mode):
    model = make_model("wavlm", encoder_lr=None)
    average = WeightAverage(model)
    optimizer = train(model, mode, average)
    original_checkpoint(tmp_path / "model_ep0001.pth", model, optimizer, average)
    target = tmp_path / "checkpoint_ep0001_step0000000002"
    assert main(["convert", str(tmp_path / "model_ep0001.pth"), str(target), "--trainer-state"]) == 0
    state = HyperTorchModel.auto_load(target).state_dict()
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    stored = torch.load(target / "model/optimizer.pt", weights_only=True)["state"]
    names = {id(p): n for n, p in model.named_parameters()}
    assert stored.keys() == {names[id(p)] for p in optimizer.state}
    for parameter, values in optimizer.state.items():
        assert torch.equal(stored[names[id(parameter)]]["exp_avg"], values["exp_avg"])
    again = WeightAverage(HyperTorchModel.auto_load(target))
    again.load_state_dict(load_file(target / "model/swa_model.safetensors"))
    assert all(torch.equal(t, average.state_dict()[n]) for n, t in again.state_dict().items())
    averaged = HyperTorchModel.auto_load(target, model_name="swa_model").state_dict()
    assert all(torch.equal(t, average.state_dict()[f"module.{n}"]) for n, t in averaged.items())


def test_merging_from_the_command_line(model, tmp_path, capsys):
    model.save(tmp_path / "tuned")
    assert main(["convert", str(tmp_path / "tuned"), str(tmp_path / "plain"), "--merge-lora"]) == 0
    assert str(tmp_path / "plain/model") in capsys.readouterr().out
    plain = HyperTorchModel.auto_load(tmp_path / "plain")
    assert not any("lora" in n for n in plain.state_dict()) and relative_error(embed(plain), embed(model)) <= 1e-5
    for arguments, message in (
        (["tuned", "plain", "--merge-lora"], "exists"),
        (["plain", "other", "--merge-lora"], "no low-rank adapters"),
        (["tuned", "other", "--merge-lora", "--trainer-state"], "leave --trainer-state out"),
    ):
        paths = [str(tmp_path / a) if not a.startswith("-") else a for a in arguments]
        assert main(["convert", *paths]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_weights_that_hold_the_adapters_already_are_told_on_the_command_line(model, tmp_path):
    folded = {loralib_name(n): t.clone() for n, t in model.state_dict().items()}
    for name in [n for n in folded if n.endswith(".lora_A")]:
        root = name[: -len(".lora_A")]
        folded[f"{root}.weight"] += 3 / 2 * folded[f"{root}.lora_B"] @ folded[f"{root}.lora_A"]
    config = {k: v for k, v in model.get_config().items() if k != "channel_policy"}
    torch.save({"model_cfg": config, "model_state_dict": folded}, tmp_path / "folded.pth")
    assert main(["convert", str(tmp_path / "folded.pth"), str(tmp_path / "new"), "--lora-merged"]) == 0
    found = HyperTorchModel.auto_load(tmp_path / "new")
    assert relative_error(embed(found), embed(model)) <= 1e-5
    assert any("lora_A" in n for n in found.state_dict())
