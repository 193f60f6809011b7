"""Schedules that go in cycles: cosine with restarts, triangular, one-cycle."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.factory_options import at_least, fraction, positive
from hyperion_lite.lr_schedulers.lr_scheduler import LRScheduler


class CyclicLR(LRScheduler):
    """Base of schedules whose cycle number ``k`` has ``t * t_mul ** k`` positions and the top rate ``initial_lr * gamma ** k``.

    Args:
        optimizer: whose groups are scheduled.
        t: positions of the first cycle.
        t_mul: each cycle is so many times longer than the one before.
        gamma: factor of the top rate from cycle to cycle.
        alpha: bottom of a cycle as a fraction of the initial rate; the bottom is never below ``min_lr``.
        warm_restarts: whether there are cycles after the first; without, the rate stays where the first one ends.
        min_lr: lowest rate.
        warmup_steps: updates of the linear rise; the cycles are counted from the start of training all the same.
        update_lr_on_opt_step: positions are updates, not epochs.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("t", "t_mul", "gamma", "alpha", "warm_restarts")

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        t: float = 10,
        t_mul: float = 1,
        gamma: float = 1.0,
        alpha: float = 0.0,
        warm_restarts: bool = False,
        **base_options: Any,
    ) -> None:
        super().__init__(optimizer, **base_options)
        self.t = at_least("t", t, 1)
        self.t_mul = at_least("t_mul", t_mul, 1)
        self.gamma = fraction("gamma", gamma)
        self.alpha = fraction("alpha", alpha)
        self.warm_restarts = warm_restarts
        self.apply()

    @abstractmethod
    def shape(self, phase: float) -> float:
        """Height between 0 (bottom) and 1 (top) at ``phase`` in [0, 1] of a cycle."""

    def cycle(self, position: int) -> tuple[int, float]:
        """Number of the cycle, from 0, and how much of it is over, in [0, 1)."""
        if self.t_mul == 1:
            number = int(position // self.t)
            return number, (position - number * self.t) / self.t
        number, start, length = 0, 0.0, float(self.t)
        while position >= start + length:
            number, start, length = number + 1, start + length, length * self.t_mul
        return number, (position - start) / length

    def rate(self, position: int, base_lr: float, min_lr: float) -> float:
        """See the class."""
        number, phase = self.cycle(position)
        if number > 0 and not self.warm_restarts:
            number, phase = 0, 1.0
        bottom = max(min_lr, self.alpha * base_lr)
        top = max(bottom, base_lr * self.gamma**number)
        return bottom + (top - bottom) * self.shape(phase)


class CosineLR(CyclicLR):
    """Half a cosine from the top to the bottom: ``bottom + (top - bottom) * (1 + cos(pi * phase)) / 2``.

    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017, equation 5.
    """

    def shape(self, phase: float) -> float:
        """See the class."""
        return (1.0 + math.cos(math.pi * phase)) / 2.0


class TriangularLR(CyclicLR):
    """Straight up from the bottom to the top and down again: ``bottom + (top - bottom) * (1 - abs(2 * phase - 1))``.

    Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017. Give a ``min_lr`` or an ``alpha``, or the first rate is 0.
    """

    def shape(self, phase: float) -> float:
        """See the class."""
        return 1.0 - abs(2.0 * phase - 1.0)


class OneCycleLR(LRScheduler):
    """One rise to the initial rate and one long fall, both along half a cosine.

    From ``initial_lr / div_factor`` at 0 to ``initial_lr`` at ``pct_start * t - 1``, then to ``initial_lr / div_factor /
    final_div_factor`` at ``t - 1``, and no change after that. Smith and Topin, "Super-Convergence", 2018; positions and defaults as
    ``torch.optim.lr_scheduler.OneCycleLR`` has them.

    Args:
        optimizer: whose groups are scheduled.
        t: positions of the cycle.
        pct_start: share of the rise.
        div_factor: initial rate over the first rate.
        final_div_factor: first rate over the last rate.
        min_lr: lowest rate.
        warmup_steps: updates of the linear rise.
        update_lr_on_opt_step: positions are updates, not epochs.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("t", "pct_start", "div_factor", "final_div_factor")

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        t: float = 10,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        **base_options: Any,
    ) -> None:
        super().__init__(optimizer, **base_options)
        self.t = at_least("t", t, 2)
        self.pct_start = fraction("pct_start", pct_start)
        self.div_factor = at_least("div_factor", div_factor, 1)
        self.final_div_factor = positive("final_div_factor", final_div_factor)
        if pct_start * t < 1 or pct_start == 1:
            raise ConfigError(f"pct_start {pct_start} leaves no position of {t} for the rise or for the fall")
        self.apply()

    def rate(self, position: int, base_lr: float, min_lr: float) -> float:
        """See the class."""
        first = base_lr / self.div_factor
        top = self.pct_start * self.t - 1.0
        if position <= top:
            return _cosine(first, base_lr, position / top if top > 0 else 1.0)
        return _cosine(base_lr, first / self.final_div_factor, min((position - top) / (self.t - 1.0 - top), 1.0))


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1.0 + math.cos(math.pi * done)) / 2.0
