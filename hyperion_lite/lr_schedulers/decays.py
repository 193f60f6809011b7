"""Schedules that fall from the initial rate: exponential, inverse power, Noam, linear."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from hyperion_lite.core.factory_options import at_least, fraction, positive
from hyperion_lite.lr_schedulers.lr_scheduler import LRScheduler


class ExponentialLR(LRScheduler):
    """``initial_lr * decay_rate ** ((n - hold_steps) / decay_steps)`` from ``hold_steps`` on, the initial rate before.

    Continuous in ``n``: the rate changes a little at every position and by ``decay_rate`` in ``decay_steps``.

    Args:
        optimizer: whose groups are scheduled.
        decay_rate: factor of ``decay_steps`` positions.
        decay_steps: positions in which the rate changes by ``decay_rate``.
        hold_steps: positions before the rate begins to fall, warm-up included.
        min_lr: lowest rate.
        warmup_steps: updates of the linear rise.
        update_lr_on_opt_step: positions are updates, not epochs.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("decay_rate", "decay_steps", "hold_steps")

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        decay_rate: float = 0.01,
        decay_steps: float = 100,
        hold_steps: float = 10,
        **base_options: Any,
    ) -> None:
        super().__init__(optimizer, **base_options)
        self.decay_rate = positive("decay_rate", decay_rate)
        self.decay_steps = positive("decay_steps", decay_steps)
        self.hold_steps = at_least("hold_steps", hold_steps, 0)
        self.apply()

    def rate(self, position: int, base_lr: float, min_lr: float) -> float:
        """See the class."""
        if position < self.hold_steps:
            return base_lr
        return float(base_lr * self.decay_rate ** ((position - self.hold_steps) / self.decay_steps))


class InvPowLR(LRScheduler):
    """``initial_lr * (h / n) ** power`` from ``h = max(hold_steps, 1)`` on, the initial rate before.

    Args:
        optimizer: whose groups are scheduled.
        power: exponent.
        hold_steps: positions before the rate begins to fall, warm-up included.
        min_lr: lowest rate.
        warmup_steps: updates of the linear rise.
        update_lr_on_opt_step: positions are updates, not epochs.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("power", "hold_steps")

    def __init__(
        self, optimizer: torch.optim.Optimizer, power: float = 0.5, hold_steps: float = 10, **base_options: Any
    ) -> None:
        super().__init__(optimizer, **base_options)
        self.power = positive("power", power)
        self.hold_steps = at_least("hold_steps", hold_steps, 0)
        self.apply()

    def rate(self, position: int, base_lr: float, min_lr: float) -> float:
        """See the class."""
        start = max(self.hold_steps, 1)
        return base_lr if position < start else float(base_lr * (start / position) ** self.power)


class NoamLR(LRScheduler):
    """``lr_factor * d_model ** -0.5 * min(n ** -0.5, n * warmup_steps ** -1.5)``, always counted in updates.

    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, equation 3. The optimizer's ``lr`` does not matter, but a group with half
    of it gets half the rate.

    Args:
        optimizer: whose groups are scheduled.
        d_model: width of the transformer.
        lr_factor: factor of the whole schedule.
        warmup_steps: updates of the linear rise, at least 1.
        min_lr: lowest rate.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("d_model", "lr_factor", "reference_lr")

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        d_model: int,
        lr_factor: float = 1.0,
        warmup_steps: int = 25000,
        min_lr: float | list[float] = 0.0,
    ) -> None:
        super().__init__(optimizer, min_lr, at_least("warmup_steps", warmup_steps, 1), update_lr_on_opt_step=True)
        self.d_model = positive("d_model", d_model)
        self.lr_factor = positive("lr_factor", lr_factor)
        self.reference_lr = positive("lr of the optimizer", float(optimizer.defaults["lr"]))
        self.apply()

    def _peak(self, base_lr: float) -> float:
        return base_lr / self.reference_lr * self.lr_factor / math.sqrt(self.d_model * self.warmup_steps)

    def rate(self, position: int, base_lr: float, min_lr: float) -> float:
        """See the class; used after the rise only."""
        return self._peak(base_lr) * math.sqrt(self.warmup_steps / position)


class LinearLR(LRScheduler):
    """A straight line from the initial rate at ``hold_steps`` down to the final one at ``hold_steps + decay_steps``.

    The final rate is the larger of ``min_lr`` and ``alpha * initial_lr``.

    Args:
        optimizer: whose groups are scheduled.
        decay_steps: positions of the way down.
        hold_steps: positions before the rate begins to fall, warm-up included.
        alpha: final rate as a fraction of the initial one.
        min_lr: lowest rate.
        warmup_steps: updates of the linear rise.
        update_lr_on_opt_step: positions are updates, not epochs.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("decay_steps", "hold_steps", "alpha")

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        decay_steps: float = 100,
        hold_steps: float = 10,
        alpha: float = 0.0,
        **base_options: Any,
    ) -> None:
        super().__init__(optimizer, **base_options)
        self.decay_steps = positive("decay_steps", decay_steps)
        self.hold_steps = at_least("hold_steps", hold_steps, 0)
        self.alpha = fraction("alpha", alpha)
        self.apply()

    def rate(self, position: int, base_lr: float, min_lr: float) -> float:
        """See the class."""
        done = min(max((position - self.hold_steps) / self.decay_steps, 0.0), 1.0)
        final = max(min_lr, self.alpha * base_lr)
        return base_lr * (1.0 - done) + final * done
