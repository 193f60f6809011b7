"""What holds for every schedule: when it moves, its state, changing groups, its configuration."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hyperion_lite.core.config import check_config
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.lr_schedulers import LRScheduler, LRSchedulerFactory
from hyperion_lite.optim import OptimizerFactory

OPTIONS: dict[str, dict[str, object]] = {
    "exp_lr": {"decay_rate": 0.7, "decay_steps": 3, "hold_steps": 2},
    "invpow_lr": {"power": 0.3, "hold_steps": 4},
    "noam_lr": {"d_model": 16},
    "cos_lr": {"t": 3, "t_mul": 1.5, "gamma": 0.8, "alpha": 0.01, "warm_restarts": True},
    "triangular_lr": {"t": 4, "t_mul": 2, "warm_restarts": True},
    "one_cycle_lr": {"t": 12},
    "red_lr_on_plateau": {"patience": 1, "cooldown": 1, "factor": 0.6},
    "linear_lr": {"decay_steps": 9, "hold_steps": 1},
}
TYPES = sorted(OPTIONS)


def make(
    lrsch_type: str, on_step: bool, warmup_steps: int = 2, num_groups: int = 2
) -> tuple[torch.optim.Optimizer, LRScheduler]:
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": 0.1 / (i + 1)} for i in range(num_groups)]
    optimizer = OptimizerFactory.create(groups, "sgd", lr=0.1)
    options = {**OPTIONS[lrsch_type], "min_lr": 1e-4, "warmup_steps": max(warmup_steps, int(lrsch_type == "noam_lr"))}
    schedule = LRSchedulerFactory.create(optimizer, lrsch_type, update_lr_on_opt_step=on_step, **options)
    assert schedule is not None
    return optimizer, schedule


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def walk(
    optimizer: torch.optim.Optimizer, schedule: LRScheduler, start: int, stop: int, per_epoch: int = 3
) -> list[list[float]]:
    """Rates of the updates ``start`` to ``stop``, as a trainer makes them."""
    used = []
    for update in range(start, stop):
        epoch, batch = divmod(update, per_epoch)
        if batch == 0 or update == start:
            schedule.on_epoch_begin(epoch)
        used.append(rates(optimizer))
        schedule.on_opt_step()
        if batch == per_epoch - 1:
            schedule.on_epoch_end({"val_loss": [1.0, 0.8, 0.9, 0.85, 0.7, 0.71, 0.72, 0.73][epoch % 8]})
    return used


def test_every_type_is_tested() -> None:
    assert set(OPTIONS) == set(LRSchedulerFactory.lrsch_types)


def test_no_type_no_schedule() -> None:
    optimizer, _ = make("exp_lr", True)
    assert LRSchedulerFactory.create(optimizer) is None


@pytest.mark.parametrize("lrsch_type", TYPES)
@settings(max_examples=15, deadline=None)
@given(stop=st.integers(0, 30), on_step=st.booleans(), warmup_steps=st.integers(0, 7), reload_optimizer=st.booleans())
def test_a_resumed_schedule_goes_on_with_the_same_bits(
    lrsch_type: str, stop: int, on_step: bool, warmup_steps: int, reload_optimizer: bool
) -> None:
    straight = walk(*make(lrsch_type, on_step, warmup_steps), 0, 40)
    optimizer, schedule = make(lrsch_type, on_step, warmup_steps)
    first = walk(optimizer, schedule, 0, stop)
    state = copy.deepcopy(schedule.state_dict())
    new_optimizer, resumed = make(lrsch_type, on_step, warmup_steps)
    if reload_optimizer:
        new_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert rates(new_optimizer) == resumed.get_lr()
    if schedule.update_lr_on_opt_step or stop % 3:
        assert rates(new_optimizer) == rates(optimizer)
    assert first + walk(new_optimizer, resumed, stop, 40) == straight


@pytest.mark.parametrize("lrsch_type", TYPES)
def test_the_state_is_plain_and_loads_without_pickle(lrsch_type: str, tmp_path) -> None:
    optimizer, schedule = make(lrsch_type, True)
    walk(optimizer, schedule, 0, 10)
    torch.save(schedule.state_dict(), tmp_path / "lr_scheduler.pt")
    assert torch.load(tmp_path / "lr_scheduler.pt", weights_only=True) == schedule.state_dict()


@pytest.mark.parametrize("lrsch_type", [t for t in TYPES if t != "red_lr_on_plateau"])
@pytest.mark.parametrize("on_step", [False, True])
def test_put_at_a_position_it_is_where_it_would_have_walked(lrsch_type: str, on_step: bool) -> None:
    optimizer, schedule = make(lrsch_type, on_step)
    walk(optimizer, schedule, 0, 17)
    other_optimizer, other = make(lrsch_type, on_step)
    other.move_to(epoch=17 // 3, step=17)
    assert rates(other_optimizer) == rates(optimizer)


@pytest.mark.parametrize("lrsch_type", TYPES)
def test_by_epochs_the_rate_is_constant_inside_an_epoch(lrsch_type: str) -> None:
    if lrsch_type == "noam_lr":
        pytest.skip("counts updates only")
    used = walk(*make(lrsch_type, False, warmup_steps=0), 0, 24)
    assert all(used[i] == used[i - i % 3] for i in range(24))
    assert len({tuple(u) for u in used}) > 2


def test_warm_up_counts_updates_when_the_schedule_counts_epochs() -> None:
    used = walk(*make("exp_lr", False, warmup_steps=5, num_groups=1), 0, 12)
    assert [u[0] for u in used[:5]] == pytest.approx([1e-4 + (0.1 - 1e-4) * n / 5 for n in range(5)])
    assert used[5] == [0.1]


@pytest.mark.parametrize("lrsch_type", TYPES)
def test_a_skipped_update_moves_nothing(lrsch_type: str) -> None:
    optimizer, schedule = make(lrsch_type, True)
    walk(optimizer, schedule, 0, 4)
    before, state = rates(optimizer), copy.deepcopy(schedule.state_dict())
    schedule.get_lr()
    schedule.state_dict()["min_lrs"].append(3.0)
    assert rates(optimizer) == before and schedule.state_dict() == state


def test_state_of_another_type_is_refused() -> None:
    _, cosine = make("cos_lr", True)
    _, exponential = make("exp_lr", True)
    with pytest.raises(ConfigError, match=r"ExponentialLR.*lacks decay_rate.*has alpha.*lrsch_type"):
        exponential.load_state_dict(cosine.state_dict())


def test_saved_options_win_and_the_difference_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    _, saved = make("exp_lr", True)
    _optimizer, schedule = make("exp_lr", True)
    schedule.decay_rate = 0.123
    with caplog.at_level(logging.WARNING):
        schedule.load_state_dict(saved.state_dict())
    assert schedule.decay_rate == 0.7
    assert "decay_rate 0.7 (configured 0.123)" in caplog.text


def test_a_group_added_while_training(caplog: pytest.LogCaptureFixture) -> None:
    optimizer, schedule = make("exp_lr", True)
    walk(optimizer, schedule, 0, 4)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.02})
    with caplog.at_level(logging.INFO):
        schedule.on_opt_step()
    assert rates(optimizer)[2] == pytest.approx(0.02 * 0.7 ** ((5 - 2) / 3))
    assert "3 parameter groups, it had 2" in caplog.text
    assert len(schedule.state_dict()["base_lrs"]) == len(schedule.state_dict()["min_lrs"]) == 3


@pytest.mark.parametrize("num_groups", [1, 3])
def test_resume_with_another_number_of_groups(num_groups: int, caplog: pytest.LogCaptureFixture) -> None:
    optimizer, schedule = make("cos_lr", True)
    walk(optimizer, schedule, 0, 7)
    new_optimizer, resumed = make("cos_lr", True, num_groups=num_groups)
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(schedule.state_dict())
    assert f"saved with 2 parameter groups, the optimizer has {num_groups} now" in caplog.text
    assert rates(new_optimizer)[: min(2, num_groups)] == rates(optimizer)[: min(2, num_groups)]
    assert resumed.step == 7


def test_groups_in_another_order_keep_their_rates() -> None:
    optimizer, schedule = make("exp_lr", True)
    walk(optimizer, schedule, 0, 7)
    new_optimizer, resumed = make("exp_lr", True)
    new_optimizer.param_groups.reverse()
    resumed.load_state_dict(schedule.state_dict())
    assert rates(new_optimizer) == rates(optimizer)[::-1]


def test_rates_in_a_tensor_stay_in_that_tensor() -> None:
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=rate, capturable=False, foreach=False)
    schedule = LRSchedulerFactory.create(
        optimizer, "exp_lr", decay_rate=0.5, decay_steps=1, hold_steps=0, update_lr_on_opt_step=True
    )
    schedule.on_opt_step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.05)


def test_command_line_and_filter() -> None:
    parser = ArgumentParser()
    LRSchedulerFactory.add_class_args(parser, "lrsched")
    config = parser.parse_args(["--lrsched.lrsch-type", "cos_lr", "--lrsched.min_lr", "[1e-3, 1e-4]"]).as_dict()[
        "lrsched"
    ]
    check_config(LRSchedulerFactory, config)
    optimizer, _ = make("exp_lr", True)
    assert LRSchedulerFactory.create(optimizer, **config).min_lrs == [1e-3, 1e-4]
    assert LRSchedulerFactory.filter_args(t=3, lr=1.0, optimizer=optimizer) == {"t": 3}
