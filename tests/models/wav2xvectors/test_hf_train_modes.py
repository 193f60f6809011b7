"""Train modes of models with a Hugging Face encoder: what learns, what stays as it is, in every mode and family."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.models.wav2xvectors.hf_wav2xvector import HFWav2XVector
from hyperion_lite.optim import OptimizerFactory
from hyperion_lite.trainers.gradient_checkpointing import enable_gradient_checkpointing
from tests.helpers import slow_but
from tests.models.wav2xvectors.hf_learning_models import (
    LORA_MODES,
    MODELS,
    MODES,
    learns,
    make_batch,
    make_model,
)

FROZEN_ENCODER = tuple(mode for mode in MODES if "frozen" in mode or mode.startswith("ft-"))[:6]
NOGRAD = ("ft-xvector-nograd", "hf-feats-frozen-nograd")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: make_model(name).eval() for name in MODELS}


def expected_names(model: Any, mode: str, name: str) -> set[str]:
    return {parameter for parameter, _ in model.named_parameters() if learns(parameter, mode, name)}


def loss_of(model: Any, seed: int = 0) -> torch.Tensor:
    x, lengths, y = make_batch(seed)
    return torch.nn.functional.cross_entropy(model(x, lengths, y), y)


def train(model: Any, steps: int = 3) -> None:
    optimizer = OptimizerFactory.create(model.trainable_param_groups(), opt_type="adam", lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def test_these_are_the_modes():
    assert tuple(HFWav2XVector.valid_train_modes) == MODES
    assert {name for mode in MODES for name in [mode] if learns("feat_fuser.x", mode, "wavlm")} == {
        *("full", "hf-feats-frozen", "hf-feats-frozen-nograd", "hf-feat-extractor-frozen"),
        *LORA_MODES,
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", slow_but(MODELS, ["wavlm", "hubert-batch-norm", "bert"]))
def test_what_the_mode_says_learns_and_everything_else_stays_as_it_is(models, name, mode):
    model = copy.deepcopy(models[name])
    model.set_train_mode(mode)
    model.train()
    expected = expected_names(model, mode, name)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == expected
    if mode == "frozen":
        assert not expected and not any(module.training for module in model.modules())
        return
    loss_of(model).backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == expected
    model.zero_grad(set_to_none=True)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    train(model)
    model.eval().train()
    train(model, 1)
    changed = {n for n, t in model.state_dict().items() if not torch.equal(t, before[n])}
    buffers = {n for n, _ in model.named_buffers()}
    assert changed - buffers == expected
    statistics = {n for n in buffers if "running_" in n}
    frozen = {
        n for n in statistics if n.startswith("hf_feats.") and mode != "hf-feat-extractor-frozen" and mode != "full"
    }
    frozen |= {n for n in statistics if mode == "ft-embed-affine" and not n.startswith("xvector.classif_net.")}
    assert changed & statistics == statistics - frozen


@pytest.mark.parametrize("name", slow_but(MODELS, ["wavlm", "hubert-batch-norm", "bert", "whisper"]))
@torch.no_grad()
def test_modes_change_no_embedding_and_dropout_and_masks_are_off_where_all_is_frozen(models, name):
    model = copy.deepcopy(models[name])
    x, lengths, _ = make_batch()
    embeddings = model.extract_embed(x, lengths)
    frames = model.hf_feats(x, lengths).last_hidden_state
    for mode in MODES:
        # statistics that a mode before has moved
        model.load_state_dict(models[name].state_dict())
        model.set_train_mode(mode)
        assert torch.equal(model.eval().extract_embed(x, lengths), embeddings), mode
        model.train()
        found = [model.hf_feats(x, lengths).last_hidden_state for _ in range(2)]
        same = torch.equal(found[0], found[1]) and torch.equal(found[0], frames)
        assert same == (mode in FROZEN_ENCODER), mode
        assert model.feat_fuser.training == learns("feat_fuser.x", mode, name), mode


@pytest.mark.parametrize("name", ["wavlm", "bert", "hubert-batch-norm"])
def test_modes_follow_each_other_without_leftovers(models, name):
    model = copy.deepcopy(models[name]).train()
    fresh = {}
    for mode in MODES:
        other = copy.deepcopy(models[name])
        other.set_train_mode(mode)
        other.train()
        fresh[mode] = state_of_learning(other)
    for mode in ("hf-lora", "full", "frozen", "hf-all-bias-lora", "hf-feats-frozen", *MODES, *reversed(MODES)):
        model.set_train_mode(mode)
        assert model.train_mode == mode
        assert state_of_learning(model) == fresh[mode], mode
    model.train_last_layers(1)
    model.set_train_mode("hf-lora")
    assert state_of_learning(model) == fresh["hf-lora"]
    model.unfreeze()
    assert state_of_learning(model) == fresh["full"]


def state_of_learning(model: Any) -> tuple[dict[str, bool], dict[str, bool]]:
    return (
        {n: p.requires_grad for n, p in model.named_parameters()},
        {n: m.training for n, m in model.named_modules() if any(True for _ in m.children()) or "dropout" in n},
    )


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "frozen"])
def test_gradients_reach_the_waveform_but_through_a_part_without_graph(models, mode):
    model = copy.deepcopy(models["wavlm"])
    model.set_train_mode(mode)
    x, lengths, y = make_batch()
    for training in (True, False):
        wave = x.clone().requires_grad_()
        torch.nn.functional.cross_entropy(model.train(training)(wave, lengths, y), y).backward()
        if training and mode in NOGRAD:
            assert wave.grad is None
        else:
            assert wave.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", NOGRAD)
def test_without_graph_nothing_of_the_frozen_part_is_kept(models, mode):
    model = copy.deepcopy(models["wavlm"])
    model.set_train_mode(mode)
    x, lengths, _ = make_batch()
    wave = x.requires_grad_()
    feats = model.train().forward_feats(wave, lengths).feats
    assert feats.requires_grad == (mode == "hf-feats-frozen-nograd")
    assert model.eval().forward_feats(wave, lengths).feats.requires_grad
    assert model.eval().extract_embed(wave, lengths).requires_grad


@pytest.mark.parametrize(
    "mode", ["full", "hf-lora", "hf-feats-frozen", "hf-feats-frozen-nograd", "hf-feat-extractor-frozen"]
)
def test_gradient_checkpointing_changes_no_gradient(models, mode):
    grads = []
    for checkpointing in (False, True):
        model = copy.deepcopy(models["wavlm"])
        if checkpointing:
            assert enable_gradient_checkpointing(model) > 0
        model.set_train_mode(mode)
        model.train()
        torch.manual_seed(5)
        loss_of(model).backward()
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() == expected_names(model, mode, "wavlm")
    for n, grad in grads[0].items():
        torch.testing.assert_close(grads[1][n], grad, rtol=1e-5, atol=1e-7)


def test_no_masks_where_the_frames_come_from_frozen_layers(models):
    model = copy.deepcopy(models["wavlm"]).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for layer in model.hf_feats.encoder_layers():
        layer.attention.dropout = 0.0
    x, lengths, _ = make_batch()

    def repeats() -> bool:
        return torch.equal(*(model.hf_feats(x, lengths).last_hidden_state for _ in range(2)))

    assert not repeats()
    model.train_last_layers(1)
    assert model.hf_feats.training and repeats()
    model.set_train_mode("hf-feat-extractor-frozen")
    assert not repeats()


@pytest.mark.parametrize("mode", [m for m in MODES if m != "frozen"])
@pytest.mark.parametrize("name", ["wavlm", "whisper"])
def test_groups_of_the_optimizer(name, mode):
    rates = {"feat_extract_lr": 1e-5, "encoder_lr": 1e-4, "bias_weight_decay": 0.03}
    model = make_model(name, **rates)
    model.set_train_mode(mode)
    expected = {}
    for n, p in model.named_parameters():
        if not learns(n, mode, name):
            continue
        in_front = n.startswith("hf_feats.") and any(k in n for k in (".feature_extractor.", ".conv1.", ".conv2."))
        rate = (1e-5 if in_front else 1e-4) if n.startswith("hf_feats.") else None
        expected[n] = rate, 0.03 if n.startswith("hf_feats.") and p.dim() <= 1 else None
    names = {id(p): n for n, p in model.named_parameters()}
    found = {
        names[id(p)]: (group.get("lr"), group.get("weight_decay"))
        for group in model.trainable_param_groups()
        for p in group["params"]
    }
    assert found == expected
    assert sum(len(group["params"]) for group in model.trainable_param_groups()) == len(expected)


def test_layers_below_the_last_ones_are_frozen_adapters_and_all(models):
    model = copy.deepcopy(models["wavlm"]).train()
    model.train_last_layers(1)
    learning = {n for n, p in model.named_parameters() if p.requires_grad and n.startswith("hf_feats.")}
    assert learning and all(".encoder.layers.1." in n for n in learning)
    loss_of(model).backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None and n.startswith("hf_feats.")} == learning


def test_modes_of_adapters_need_some(models):
    plain = make_model("wavlm", trained=False, use_lora=False)
    assert not set(plain.valid_train_modes) & set(LORA_MODES)
    for mode in LORA_MODES:
        with pytest.raises(ConfigError, match=f"{mode}.*use_lora.*load_adapters"):
            plain.set_train_mode(mode)
    assert plain.train_mode == "full"
    with pytest.raises(ValueError, match=r"hf-loar.*it has: full"):
        plain.set_train_mode("hf-loar")
    assert tuple(copy.deepcopy(models["wavlm"]).valid_train_modes) == MODES


def test_statistics_move_where_the_weights_of_the_norm_learn_and_nowhere_else(models):
    model = copy.deepcopy(models["hubert-batch-norm"])
    norm = next(m for n, m in model.hf_feats.named_modules() if n.endswith("batch_norm"))
    for mode in (*LORA_MODES, "hf-feats-frozen"):
        model.set_train_mode(mode)
        model.train()
        before = {n: b.clone() for n, b in norm.named_buffers()}
        loss_of(model)
        assert not norm.training
        assert all(torch.equal(b, before[n]) for n, b in norm.named_buffers())
    model.set_train_mode("full")
    loss_of(model)
    assert not torch.equal(norm.running_mean, before["running_mean"])
