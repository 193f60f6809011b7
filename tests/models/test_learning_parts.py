"""Freezing, unfreezing, the layers of an encoder, and parameter groups."""

from __future__ import annotations

import copy

import pytest
import torch

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.layer_stack import LayerStack
from hyperion_lite.optim import OptimizerFactory
from tests.models.small_models import XVECTORS, build, make_item
from tests.trainers.small_training import SmallClassifier

NAMES = ["wav2-ecapa", "wav2-fwse-res2", "wav2-sum-of-layers"]


def learning(model: torch.nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_unfrozen_trains_as_before(name: str) -> None:
    model = build(name).train()
    modes = {n: m.training for n, m in model.named_modules()}
    model.freeze()
    assert not any(m.training for m in model.modules())
    model.unfreeze()
    assert {n: m.training for n, m in model.named_modules()} == modes
    model.eval().freeze().unfreeze()
    assert not any(m.training for m in model.modules())


def test_train_while_frozen_holds_once_it_is_unfrozen() -> None:
    model = build("wav2-ecapa").eval().freeze()
    assert not model.train().training
    assert model.unfreeze().training
    encoder = model.xvector.encoder_net
    assert encoder.freeze().unfreeze().training and all(m.training for m in encoder.modules())


@pytest.mark.parametrize("name", sorted(XVECTORS))
def test_an_encoder_that_is_unfrozen_trains_what_it_trained_before(name: str) -> None:
    encoder = build(name).encoder_net
    before = learning(encoder)
    assert not learning(encoder.freeze())
    assert learning(encoder.unfreeze()) == before


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_told_from_the_input_up(name: str) -> None:
    model = build(name)
    stack = model.layer_stack()
    depths = stack.depths()
    encoder = model.xvector.encoder_net
    assert depths.keys() == {id(p) for p in encoder.parameters()}
    first, last = stack.layers[0], stack.layers[-1]
    assert {depths[id(p)] for p in first.parameters()} == {len(stack.layers) - 1}
    assert {depths[id(p)] for p in last.parameters()} == {0}
    assert {depths[id(p)] for p in encoder.in_block.parameters()} == {len(stack.layers)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_only_the_last_layers_learn(name: str, count: int) -> None:
    model = build(name).train()
    everything = learning(model)
    model.train_last_layers(count)
    stack = model.layer_stack()
    depths = stack.depths()
    frozen = {n for n, p in model.named_parameters() if depths.get(id(p), -1) >= count}
    assert learning(model) == everything - frozen and frozen
    before = copy.deepcopy(dict(model.named_buffers()))
    model.train()
    modes = {n: m.training for n, m in model.named_modules()}
    # one more train() wakes nothing
    assert {n: m.training for n, m in model.train().named_modules()} == modes
    x = torch.stack([make_item(model, 9000), make_item(model, 9000)])
    model(x, y=torch.tensor([0, 1])).sum().backward()
    for n, p in model.named_parameters():
        assert (p.grad is not None) == (n in learning(model)), n
    modules = dict(model.named_modules())
    for n, b in model.named_buffers():
        owner = modules[n.rpartition(".")[0]]
        own = {k for k, _ in owner.named_parameters(prefix=n.rpartition(".")[0])}
        if own & frozen:
            assert not owner.training and torch.equal(b, before[n]), n
        elif own and "running_mean" in n and not n.startswith("feats"):
            assert not torch.equal(b, before[n]), n
    model.set_train_mode("full")
    assert learning(model) == everything and all(m.training for m in model.modules())


@pytest.mark.parametrize("name", ["wav2-ecapa", "hf-wavlm-group"])
@pytest.mark.parametrize("what", ["last layers", "frozen", "ft-embed-affine"])
def test_a_change_of_the_head_leaves_what_learns(name: str, what: str) -> None:
    model = build(name)
    if what == "last layers":
        model.train_last_layers(1)
    else:
        model.set_train_mode(what)
    model.train()
    before, modes = learning(model), {n: m.training for n, m in model.named_modules()}
    model.change_config(xvector={"margin": 0.1})
    assert learning(model) == before
    model.rebuild_output_layer(num_classes=11)
    assert learning(model) == before
    assert {n: m.training for n, m in model.named_modules()} == modes


def test_what_cannot_go_by_layer_says_so() -> None:
    with pytest.raises(ConfigError, match="SmallClassifier does not tell the layers"):
        SmallClassifier().train_last_layers(1)
    with pytest.raises(ConfigError, match="does not tell the layers"):
        SmallClassifier().trainable_param_groups(by_layer=True)
    model = build("wav2-ecapa")
    count = len(model.layer_stack().layers)
    with pytest.raises(ValueError, match=f"has {count} layers, so there are no last {count + 1}"):
        model.train_last_layers(count + 1)
    with pytest.raises(ConfigError, match="layer_decay needs parameter groups with 'layer'"):
        OptimizerFactory.create(model.trainable_param_groups(), layer_decay=0.5)
    with pytest.raises(ConfigError, match="layer_decay must be above 0"):
        OptimizerFactory.create(model.trainable_param_groups(by_layer=True), layer_decay=1.5)


def test_rates_fall_towards_the_input() -> None:
    model = build("wav2-ecapa")
    groups = model.trainable_param_groups(by_layer=True)
    optimizer = OptimizerFactory.create(groups, lr=0.1, layer_decay=0.5)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    stack = model.layer_stack()
    depths = stack.depths()
    assert rates.keys() == {id(p) for p in model.parameters()}
    for parameter in model.parameters():
        expected = 0.1 * 0.5 ** (depths.get(id(parameter), -1) + 1)
        assert rates[id(parameter)] == pytest.approx(expected)
    # the first group has the rate of the head, and schedules start from each group's own
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert [g["initial_lr"] for g in optimizer.param_groups] == [g["lr"] for g in optimizer.param_groups]
    assert len(optimizer.param_groups) == len(stack.layers) + 2


def test_biases_and_rates_of_parts_make_groups_of_their_own() -> None:
    model = build("wav2-ecapa")
    model.xvector.bias_weight_decay = 0.01
    encoder = model.xvector.encoder_net
    encoder.trainable_param_groups = lambda: [{"params": list(encoder.in_block.parameters()), "lr": 1e-5}]
    groups = model.trainable_param_groups(by_layer=True)
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    optimizer = OptimizerFactory.create(groups, lr=0.1, weight_decay=0.2, layer_decay=0.5)
    depth = len(model.layer_stack().layers) + 1
    stem = {id(p) for p in encoder.in_block.parameters()}
    for group in optimizer.param_groups:
        biases = {p.dim() <= 1 for p in group["params"]}
        assert len(biases) == 1 and group["weight_decay"] == (0.01 if biases.pop() else 0.2)
        if any(id(p) in stem for p in group["params"]):
            assert group["lr"] == pytest.approx(1e-5 * 0.5**depth)


@pytest.mark.parametrize("name", ["convnext1d", "convnext2d-merged", "conformer", "conformer-block", "ecapa"])
def test_norms_and_biases_have_their_own_weight_decay_whatever_their_shape(name: str) -> None:
    model = build(name)
    model.bias_weight_decay = 0.0
    decayed = {id(p) for g in model.trainable_param_groups() if "weight_decay" not in g for p in g["params"]}
    assert decayed
    for path, module in model.named_modules():
        # position biases of relative attention are called u and v
        own = dict(module.named_parameters(recurse=False))
        small = own if "Norm" in type(module).__name__ else {k: p for k, p in own.items() if k in ("bias", "u", "v")}
        assert not [f"{path}.{k}" for k, p in small.items() if id(p) in decayed]
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)):
            assert id(module.weight) in decayed, path


def test_parts_that_work_on_the_layers_can_be_named() -> None:
    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = torch.nn.Parameter(torch.zeros(2))
            self.last_norm = torch.nn.LayerNorm(2)
            self.dropout = torch.nn.Dropout(0.1)
            self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])
            self.out = torch.nn.Linear(2, 2)

    encoder = Encoder()
    stack = LayerStack(encoder, tuple(encoder.layers), top=(encoder.last_norm,))
    depths = stack.depths()
    found = {name.split(".")[0]: depths[id(p)] for name, p in encoder.named_parameters() if "layers" not in name}
    assert found == {"position": 3, "last_norm": 0, "out": 0}
    modules, parameters = stack.below(1)
    assert modules == [encoder.dropout, *encoder.layers[:2]]
    assert {id(p) for p in parameters} == {
        id(encoder.position),
        *(id(p) for layer in encoder.layers[:2] for p in layer.parameters()),
    }
