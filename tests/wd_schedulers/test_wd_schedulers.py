from __future__ import annotations

import copy
import logging
import math

import pytest
import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.optim import OptimizerFactory
from hyperion_lite.wd_schedulers import CosineWD, WDScheduler, WDSchedulerFactory


def make(*decays: float, on_step: bool = True, **options: object) -> tuple[torch.optim.Optimizer, WDScheduler]:
    groups = [{"params": [nn.Parameter(torch.ones(1))], "weight_decay": wd} for wd in decays]
    optimizer = OptimizerFactory.create(groups, "adamw", lr=0.1)
    schedule = WDSchedulerFactory.create(optimizer, "cos_wd", update_wd_on_opt_step=on_step, **options)
    assert isinstance(schedule, CosineWD)
    return optimizer, schedule


def decays_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["weight_decay"] for group in optimizer.param_groups]


def test_formula() -> None:
    optimizer, schedule = make(0.4, initial_wd=0.04, warmup_steps=10)
    for n in range(15):
        expected = 0.4 - (0.4 - 0.04) * (1 + math.cos(math.pi * n / 10)) / 2 if n < 10 else 0.4
        assert decays_of(optimizer) == pytest.approx([expected])
        schedule.on_opt_step()


def test_groups_without_weight_decay_stay_without() -> None:
    optimizer, schedule = make(0.4, 0.0, 0.1, initial_wd=0.04, final_wd=0.8, warmup_steps=4)
    assert decays_of(optimizer) == pytest.approx([0.04, 0.0, 0.01])
    schedule.move_to(epoch=0, step=4)
    assert decays_of(optimizer) == pytest.approx([0.8, 0.0, 0.2])
    optimizer, _ = make(0.0, 0.0, initial_wd=0.04, final_wd=0.4)
    assert decays_of(optimizer) == pytest.approx([0.04, 0.04])


def test_by_epochs() -> None:
    optimizer, schedule = make(0.4, on_step=False, warmup_steps=2)
    seen = []
    for epoch in range(4):
        schedule.on_epoch_begin(epoch)
        schedule.on_opt_step()
        seen += decays_of(optimizer)
        schedule.on_epoch_end()
    assert seen == pytest.approx([0.0, 0.2, 0.4, 0.4])


@pytest.mark.parametrize("reload_optimizer", [False, True])
@pytest.mark.parametrize("stop", [0, 3, 9])
def test_a_resumed_schedule_goes_on_with_the_same_bits(stop: int, reload_optimizer: bool, tmp_path) -> None:
    optimizer, schedule = make(0.4, 0.1, initial_wd=0.04, warmup_steps=7)
    for _ in range(stop):
        schedule.on_opt_step()
    torch.save(schedule.state_dict(), tmp_path / "wd_scheduler.pt")
    new_optimizer, resumed = make(0.4, 0.1, initial_wd=0.04, warmup_steps=7)
    if reload_optimizer:
        new_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed.load_state_dict(torch.load(tmp_path / "wd_scheduler.pt", weights_only=True))
    for _ in range(5):
        assert decays_of(new_optimizer) == decays_of(optimizer)
        assert resumed.state_dict() == schedule.state_dict()
        schedule.on_opt_step()
        resumed.on_opt_step()


def test_resume_with_a_schedule_made_on_a_restored_optimizer() -> None:
    """The groups hold a weight decay of the middle then; the end of the way must not be taken from it."""
    optimizer, schedule = make(0.4, initial_wd=0.04, warmup_steps=8)
    for _ in range(3):
        schedule.on_opt_step()
    again = WDSchedulerFactory.create(optimizer, "cos_wd", initial_wd=0.04, warmup_steps=8, update_wd_on_opt_step=True)
    again.load_state_dict(schedule.state_dict())
    assert again.final_wd == 0.4 and again.get_wd() == schedule.get_wd()


def test_resume_with_another_number_of_groups(caplog: pytest.LogCaptureFixture) -> None:
    _, schedule = make(0.4, 0.1)
    optimizer, resumed = make(0.4)
    schedule.move_to(epoch=0, step=50)
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(schedule.state_dict())
    assert "saved with 2 parameter groups, the optimizer has 1 now" in caplog.text
    assert decays_of(optimizer) == pytest.approx([0.2])


def test_mistakes_are_named() -> None:
    optimizer, schedule = make(0.4)
    with pytest.raises(ConfigError, match="did you mean 'cos_wd'"):
        WDSchedulerFactory.create(optimizer, "cos_w")
    with pytest.raises(ConfigError, match="did you mean 'final_wd'"):
        WDSchedulerFactory.create(optimizer, "cos_wd", finalwd=3)
    with pytest.raises(ConfigError, match="final_wd must be at least 0"):
        WDSchedulerFactory.create(optimizer, "cos_wd", final_wd=-1.0)
    with pytest.raises(ConfigError, match=r"lacks .*wdsch_type"):
        schedule.load_state_dict({"step": 3})
    assert WDSchedulerFactory.create(optimizer) is None


def test_command_line_and_filter() -> None:
    parser = ArgumentParser()
    WDSchedulerFactory.add_class_args(parser, "wdsched")
    config = parser.parse_args(["--wdsched.wdsch_type", "cos_wd", "--wdsched.final-wd", "0.4"]).as_dict()["wdsched"]
    optimizer, _ = make(0.1)
    assert WDSchedulerFactory.create(optimizer, **config).final_wd == 0.4
    assert WDSchedulerFactory.filter_args(initial_wd=0.1, lr=1.0) == {"initial_wd": 0.1}
