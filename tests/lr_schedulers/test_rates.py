"""The curves: against torch's schedules where it has them, against the written formula elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.lr_schedulers import LRScheduler, LRSchedulerFactory
from hyperion_lite.optim import OptimizerFactory
from hyperion_lite.pth import open_pth
from tests.helpers import shared_path


def optimizer_of(*lrs: float) -> torch.optim.Optimizer:
    return OptimizerFactory.create(
        [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in lrs], "sgd", lr=lrs[0]
    )


def schedule(optimizer: torch.optim.Optimizer, lrsch_type: str, **options: object) -> LRScheduler:
    result = LRSchedulerFactory.create(optimizer, lrsch_type, update_lr_on_opt_step=True, **options)
    assert result is not None
    return result


def curve(lrsch_type: str, updates: int, lr: float = 0.1, **options: object) -> list[float]:
    """Rates that the first updates use."""
    optimizer = optimizer_of(lr)
    walking = schedule(optimizer, lrsch_type, **options)
    rates = []
    for _ in range(updates):
        rates.append(optimizer.param_groups[0]["lr"])
        walking.on_opt_step()
    return rates


def torch_curve(cls: type, updates: int, lr: float = 0.1, **options: object) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr)
    walking = cls(optimizer, **options)
    rates = []
    for _ in range(updates):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        walking.step()
    return rates


def test_exponential_like_torch() -> None:
    ours = curve("exp_lr", 30, decay_rate=0.9, decay_steps=1, hold_steps=0)
    assert ours == pytest.approx(torch_curve(torch.optim.lr_scheduler.ExponentialLR, 30, gamma=0.9), rel=1e-12)


def test_cosine_like_torch() -> None:
    ours = curve("cos_lr", 20, t=20, min_lr=0.01)
    theirs = torch_curve(torch.optim.lr_scheduler.CosineAnnealingLR, 20, T_max=20, eta_min=0.01)
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_cosine_restarts_like_torch() -> None:
    ours = curve("cos_lr", 60, t=4, t_mul=2, warm_restarts=True, min_lr=0.01)
    theirs = torch_curve(torch.optim.lr_scheduler.CosineAnnealingWarmRestarts, 60, T_0=4, T_mult=2, eta_min=0.01)
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_one_cycle_like_torch() -> None:
    ours = curve("one_cycle_lr", 40, t=40, pct_start=0.25, div_factor=10, final_div_factor=100)
    theirs = torch_curve(
        torch.optim.lr_scheduler.OneCycleLR,
        39,
        max_lr=0.1,
        total_steps=40,
        pct_start=0.25,
        div_factor=10,
        final_div_factor=100,
        cycle_momentum=False,
    )
    assert ours[:39] == pytest.approx(theirs, rel=1e-9)
    assert ours[39] == pytest.approx(0.1 / 10 / 100)
    assert curve("one_cycle_lr", 60, t=40)[40:] == pytest.approx([0.1 / 25 / 1e4] * 20)


def test_triangular_like_torch() -> None:
    ours = curve("triangular_lr", 30, t=10, min_lr=0.02, warm_restarts=True)
    theirs = torch_curve(
        torch.optim.lr_scheduler.CyclicLR, 30, base_lr=0.02, max_lr=0.1, step_size_up=5, cycle_momentum=False
    )
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_linear_like_torch() -> None:
    ours = curve("linear_lr", 30, decay_steps=20, hold_steps=0, alpha=0.25)
    theirs = torch_curve(torch.optim.lr_scheduler.LinearLR, 30, start_factor=1.0, end_factor=0.25, total_iters=20)
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_noam_formula() -> None:
    ours = curve("noam_lr", 50, d_model=64, lr_factor=2.0, warmup_steps=8)
    for n, rate in enumerate(ours):
        expected = 2.0 * 64**-0.5 * (min(n**-0.5, n * 8**-1.5) if n else 0.0)
        assert rate == pytest.approx(expected, rel=1e-12)
    # the optimizer's own rate does not matter, the ratio of the groups does
    optimizer = optimizer_of(7.0, 3.5)
    walking = schedule(optimizer, "noam_lr", d_model=64, lr_factor=2.0, warmup_steps=8)
    for _ in range(20):
        walking.on_opt_step()
    assert walking.get_lr() == pytest.approx([ours[20], ours[20] / 2])


def test_inverse_power_formula() -> None:
    ours = curve("invpow_lr", 40, power=0.7, hold_steps=5, min_lr=0.03)
    assert ours[:6] == [0.1] * 6
    assert ours[6:] == pytest.approx([max(0.03, 0.1 * (5 / n) ** 0.7) for n in range(6, 40)])
    assert curve("invpow_lr", 3, hold_steps=0) == pytest.approx([0.1, 0.1, 0.1 * 0.5**0.5])


def test_gamma_lowers_the_top_and_alpha_sets_the_bottom() -> None:
    ours = curve("cos_lr", 30, t=5, t_mul=1, gamma=0.5, alpha=0.1, warm_restarts=True)
    assert ours[::5] == pytest.approx([0.1 * 0.5**k if 0.1 * 0.5**k > 0.01 else 0.01 for k in range(6)])
    assert min(ours) == pytest.approx(0.01)
    once = curve("cos_lr", 30, t=5, alpha=0.1)
    assert once[5:] == [pytest.approx(0.01)] * 25


@pytest.mark.parametrize("lrsch_type", ["exp_lr", "cos_lr", "linear_lr", "invpow_lr", "triangular_lr"])
def test_warm_up_is_a_straight_line_to_the_schedule(lrsch_type: str) -> None:
    with_ramp = curve(lrsch_type, 30, warmup_steps=6, min_lr=0.01)
    without = curve(lrsch_type, 30, min_lr=0.01)
    assert with_ramp[:6] == pytest.approx([0.01 + 0.09 * n / 6 for n in range(6)])
    assert with_ramp[6:] == without[6:]


def test_published_hold_and_decay() -> None:
    """The recipe of a published model: held for 40000 updates, then halved every 10000."""
    optimizer = optimizer_of(0.05)
    held = schedule(
        optimizer, "exp_lr", decay_rate=0.5, decay_steps=10000, hold_steps=40000, min_lr=1e-5, warmup_steps=1000
    )
    for step, expected in ((0, 1e-5), (1000, 0.05), (40000, 0.05), (50000, 0.025), (60000, 0.0125), (10**6, 1e-5)):
        held.move_to(epoch=0, step=step)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_groups_and_their_lowest_rates() -> None:
    optimizer = optimizer_of(0.1, 0.01)
    two = schedule(optimizer, "exp_lr", decay_rate=0.5, decay_steps=1, hold_steps=0, min_lr=[0.03, 0.001])
    for _ in range(10):
        two.on_opt_step()
    assert [g["lr"] for g in optimizer.param_groups] == [0.03, 0.001]
    with pytest.raises(ConfigError, match=r"3 values.*2 parameter groups"):
        schedule(optimizer, "exp_lr", min_lr=[0.0, 0.0, 0.0])


def test_rates_of_the_original_trainer() -> None:
    """The file holds the rate that the last update used; ours is set for the next one."""
    optimizer = optimizer_of(0.01)
    for name in ("trainer_ep0001", "trainer_ep0001_step0000000004"):
        with open_pth(shared_path(f"fixtures/hyperion/{name}.pth")) as file:
            state, groups = file.root["lr_scheduler_state_dict"], file.root["optimizer_state_dict"]["param_groups"]
        ours = schedule(optimizer, "exp_lr")
        ours.load_state_dict(state)
        assert list(ours.state_dict()) == list(state) and ours.state_dict() == state
        ours.move_to(state["epoch"], state["step"] - 1)
        assert optimizer.param_groups[0]["lr"] == groups[0]["lr"]


def test_plateau_like_torch() -> None:
    metrics = [1.0, 0.9, 0.9, 0.95, 0.91, math.nan, 0.5, 0.5001, 0.49999, 0.6, 0.7, 0.7, 0.7, 0.7, 0.2] * 2
    for mode, threshold_mode in (("min", "rel"), ("max", "rel"), ("min", "abs"), ("max", "abs")):
        options = {
            "mode": mode,
            "threshold_mode": threshold_mode,
            "factor": 0.5,
            "patience": 1,
            "cooldown": 1,
            "threshold": 0.01,
        }
        first, second = optimizer_of(0.1, 0.02), optimizer_of(0.1, 0.02)
        ours = LRSchedulerFactory.create(first, "red_lr_on_plateau", monitor="val_eer", min_lr=0.003, **options)
        theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(second, min_lr=0.003, **options)
        for epoch, metric in enumerate(metrics):
            ours.on_epoch_begin(epoch)
            ours.on_epoch_end({"val_eer": torch.tensor(metric, dtype=torch.float64)})
            theirs.step(metric)
            assert [g["lr"] for g in first.param_groups] == pytest.approx([g["lr"] for g in second.param_groups])
        assert first.param_groups[0]["lr"] < 0.1


def test_plateau_asks_for_its_metric() -> None:
    ours = LRSchedulerFactory.create(optimizer_of(0.1), "red_lr_on_plateau")
    ours.on_epoch_end(None)
    with pytest.raises(ConfigError, match=r"'val_loss'.*did you mean 'val_los'"):
        ours.on_epoch_end({"val_los": 1.0})


@pytest.mark.parametrize(
    ("lrsch_type", "options", "message"),
    [
        ("exp", {}, "did you mean 'exp_lr'"),
        ("exp_lr", {"decay_step": 3}, "did you mean 'decay_steps'"),
        ("exp_lr", {"decay_steps": 0}, "decay_steps must be above 0"),
        ("exp_lr", {"warmup_steps": -1}, "warmup_steps must be at least 0"),
        ("exp_lr", {"min_lr": -1.0}, "min_lr must be at least 0"),
        ("exp_lr", {"min_lr": "low"}, "min_lr"),
        ("noam_lr", {}, "d_model"),
        ("noam_lr", {"d_model": 8}, "warmup_steps must be at least 1"),
        ("cos_lr", {"t": 0}, "t must be at least 1"),
        ("cos_lr", {"gamma": 1.5}, "gamma must be between"),
        ("one_cycle_lr", {"t": 10, "pct_start": 0.0}, "pct_start"),
        ("red_lr_on_plateau", {"factor": 1.0}, "factor must be between"),
        ("red_lr_on_plateau", {"mode": "mean"}, "mode"),
    ],
)
def test_wrong_options_are_named(lrsch_type: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LRSchedulerFactory.create(optimizer_of(0.1), lrsch_type, **options)
