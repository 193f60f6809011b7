from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hyperion_lite.core.config import check_config
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.optim import OptimizerFactory


def parameters(n: int = 2) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(3, 2, generator=generator)) for _ in range(n)]


def step(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], number: int = 3) -> None:
    for i in range(number):
        for p in params:
            p.grad = torch.sin(p.detach() * (i + 1))
        optimizer.step()


DIRECT = {
    "sgd": (
        {"momentum": 0.9, "nesterov": True},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.02),
    ),
    "adam": (
        {"amsgrad": True, "beta2": 0.95},
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.95), amsgrad=True, weight_decay=0.02),
    ),
    "adamw": ({"beta1": 0.8}, lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.99), weight_decay=0.02)),
    "radam": (
        {"decoupled_weight_decay": True},
        lambda p: torch.optim.RAdam(p, lr=0.1, betas=(0.9, 0.99), weight_decay=0.02, decoupled_weight_decay=True),
    ),
    "nadam": (
        {"momentum_decay": 0.01},
        lambda p: torch.optim.NAdam(p, lr=0.1, betas=(0.9, 0.99), weight_decay=0.02, momentum_decay=0.01),
    ),
    "rmsprop": (
        {"rmsprop_alpha": 0.9, "centered": True, "momentum": 0.5},
        lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.9, centered=True, momentum=0.5, weight_decay=0.02),
    ),
    "adagrad": (
        {"lr_decay": 0.1, "init_acc_val": 0.3},
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.3, weight_decay=0.02),
    ),
}


def test_every_type_is_compared() -> None:
    assert set(DIRECT) == set(OptimizerFactory.opt_types)


@pytest.mark.parametrize("opt_type", sorted(DIRECT))
def test_steps_are_those_of_the_torch_optimizer(opt_type: str) -> None:
    options, direct = DIRECT[opt_type]
    ours, theirs = parameters(), parameters()
    step(OptimizerFactory.create(ours, opt_type, lr=0.1, weight_decay=0.02, **options), ours)
    step(direct(theirs), theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not torch.equal(ours[0], parameters()[0])


def test_groups_keep_their_own_options_and_are_not_changed() -> None:
    a, b, c = parameters(3)
    groups = [{"params": [a]}, {"params": [b], "lr": 0.5}, {"params": c, "weight_decay": 0.0}]
    before = copy.copy([dict(g) for g in groups])
    optimizer = OptimizerFactory.create(groups, "sgd", lr=0.1, weight_decay=0.3)
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.5, 0.1]
    assert [g["initial_lr"] for g in optimizer.param_groups] == [0.1, 0.5, 0.1]
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.3, 0.0]
    assert all(
        set(now) == set(old) and all(now[k] is old[k] for k in old) for now, old in zip(groups, before, strict=True)
    )


def test_generators_and_empty_groups() -> None:
    a, b = parameters()
    optimizer = OptimizerFactory.create(p for p in (a, b))
    assert len(optimizer.param_groups[0]["params"]) == 2
    optimizer = OptimizerFactory.create([{"params": iter([a])}, {"params": []}, {"params": [b]}])
    assert [len(g["params"]) for g in optimizer.param_groups] == [1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lrr": 0.1}, "did you mean 'lr'"),
        ({"opt_type": "adm"}, "did you mean 'adam'"),
        ({"lr": "fast"}, "expected float"),
        ({"lr": -0.1}, "learning rate"),
        ({"opt_type": "sgd", "nesterov": True}, "momentum"),
        ({"opt_type": "radam", "fused": True}, "fused"),
        ({"oss": True}, "process group"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerFactory.create(parameters(), **options)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "train mode"),
        ([{"params": []}], "train mode"),
        ([{"parms": parameters()}], "no 'params'"),
        ([{"params": parameters(), "weight_dekay": 0.1}], "did you mean 'weight_decay'"),
        ([{"params": parameters()}, *parameters()], "mixed"),
    ],
)
def test_wrong_groups_are_named(groups: list, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerFactory.create(groups)


def test_a_parameter_in_two_groups_is_refused() -> None:
    (p,) = parameters(1)
    with pytest.raises(ConfigError, match="more than one parameter group"):
        OptimizerFactory.create([{"params": [p]}, {"params": [p]}])


def test_numbers_that_yaml_leaves_as_text() -> None:
    assert OptimizerFactory.create(parameters(), lr="1e-3").param_groups[0]["lr"] == 0.001


def test_command_line_and_filter() -> None:
    parser = ArgumentParser()
    OptimizerFactory.add_class_args(parser, "optim")
    config = parser.parse_args(["--optim.opt-type", "sgd", "--optim.lr", "1e-2"]).as_dict()["optim"]
    check_config(OptimizerFactory, config)
    assert isinstance(OptimizerFactory.create(parameters(), **config), torch.optim.SGD)
    assert OptimizerFactory.filter_args(lr=1.0, grad_clip=3) == {"lr": 1.0}


def test_state_round_trip_in_the_middle() -> None:
    straight, stopped = parameters(), parameters()
    optimizer = OptimizerFactory.create(straight, "adam", lr=0.1, amsgrad=True)
    step(optimizer, straight, 4)
    first = OptimizerFactory.create(stopped, "adam", lr=0.1, amsgrad=True)
    step(first, stopped, 4)
    second = OptimizerFactory.create(stopped, "adam", lr=0.7)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    step(optimizer, straight)
    step(second, stopped)
    assert all(torch.equal(a, b) for a, b in zip(straight, stopped, strict=True))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="gloo is not built in")
@pytest.mark.parametrize("opt_type", ["adamw", "sgd"])
def test_state_split_over_ranks(opt_type: str, tmp_path) -> None:
    whole, split = parameters(), parameters()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        groups = [{"params": [split[0]]}, {"params": [split[1]], "lr": 0.3}]
        optimizer = OptimizerFactory.create(groups, opt_type, lr=0.1, oss=True)
        assert [g["initial_lr"] for g in optimizer.param_groups] == [0.1, 0.3]
        direct = OptimizerFactory.create([{"params": [whole[0]]}, {"params": [whole[1]], "lr": 0.3}], opt_type, lr=0.1)
        for change in (1.0, 0.5):
            for one in (optimizer, direct):
                for group in one.param_groups:
                    group["lr"] = group["initial_lr"] * change
                    group["weight_decay"] = 0.1 * change
            step(optimizer, split, 2)
            step(direct, whole, 2)
    finally:
        torch.distributed.destroy_process_group()
    assert all(torch.equal(a, b) for a, b in zip(whole, split, strict=True))
