"""What all learning-rate schedules share: when they move, warm-up, parameter groups, state.

A schedule is a function of a position. With ``update_lr_on_opt_step`` the position is the number of optimizer updates so far, without
it the number of epochs so far; both count from the start of training, warm-up included. The update that follows ``n`` updates uses
the rate at ``n``. Nothing is accumulated, so a schedule that is put at a position gives the same bits as one that walked there.

The caller decides when a schedule moves:

* ``on_epoch_begin(epoch)``: the epoch with this number, counted from 0, begins or is continued;
* ``on_opt_step()``: the optimizer has really changed the weights. An update that was skipped is not reported here;
* ``on_epoch_end(metrics)``: an epoch is complete.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.factory_options import at_least
from hyperion_lite.core.schedule_state import check_state_keys, report_changes

logger = logging.getLogger(__name__)


class LRScheduler(Configurable):
    """Base of the learning-rate schedules.

    A subclass gives :meth:`rate`, and in ``option_keys`` the attributes that make up its state beside those of this class. Those of
    them that change in training are in ``position_keys`` too.

    Args:
        optimizer: whose groups get their ``lr``. A group's ``initial_lr``, by default its ``lr``, is the rate that is scheduled.
        min_lr: the rate never falls below this; one number, or one for each group.
        warmup_steps: in the first updates the rate rises linearly, ``min_lr + (initial_lr - min_lr) * n / warmup_steps`` after ``n``
            updates, whatever the schedule itself counts.
        update_lr_on_opt_step: count updates instead of epochs.

    Raises:
        ConfigError: values out of range, or as many ``min_lr`` as there are no groups.
    """

    config_exclude: ClassVar[Collection[str]] = ("optimizer",)
    option_keys: ClassVar[tuple[str, ...]] = ()
    position_keys: ClassVar[tuple[str, ...]] = ("epoch", "step")

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        min_lr: float | list[float] = 0.0,
        warmup_steps: int = 0,
        update_lr_on_opt_step: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.min_lrs = _per_group(min_lr, len(optimizer.param_groups))
        self.warmup_steps = at_least("warmup_steps", warmup_steps, 0)
        self.update_lr_on_opt_step = update_lr_on_opt_step
        self.epoch = 0
        self.step = 0
        self._num_groups = 0
        self._follow_groups()

    @abstractmethod
    def rate(self, position: int, base_lr: float, min_lr: float) -> float:
        """The rate of one group.

        Args:
            position: updates or epochs so far.
            base_lr: the group's initial rate.
            min_lr: the group's lowest rate. The result may be below, it is raised afterwards.
        """

    @property
    def base_lrs(self) -> list[float]:
        """Initial rate of each group."""
        return [group["initial_lr"] for group in self.optimizer.param_groups]

    @property
    def in_warmup(self) -> bool:
        """Whether the rate still rises."""
        return self.step < self.warmup_steps

    def get_lr(self) -> list[float]:
        """The rate of each group at the present position."""
        self._follow_groups()
        return [self._group_lr(base, low) for base, low in zip(self.base_lrs, self.min_lrs, strict=True)]

    def _group_lr(self, base_lr: float, min_lr: float) -> float:
        if self.in_warmup:
            return min_lr + (self._peak(base_lr) - min_lr) * (self.step / self.warmup_steps)
        position = self.step if self.update_lr_on_opt_step else self.epoch
        return max(min_lr, self.rate(position, base_lr, min_lr))

    def _peak(self, base_lr: float) -> float:
        """Rate at the end of the warm-up."""
        return base_lr

    def apply(self) -> None:
        """Write :meth:`get_lr` into the groups of the optimizer."""
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                # a compiled or captured optimizer step reads the rate from this tensor
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def on_epoch_begin(self, epoch: int | None = None, **_: Any) -> None:
        """An epoch begins, or is continued after a resume.

        Args:
            epoch: its number, from 0; ``None`` for the one after those that have ended.
        """
        if epoch is not None:
            self.epoch = epoch
        self.apply()

    def on_opt_step(self) -> None:
        """The optimizer has changed the weights."""
        was_in_warmup = self.in_warmup
        self.step += 1
        if self.update_lr_on_opt_step or was_in_warmup:
            self.apply()

    def on_epoch_end(self, metrics: Mapping[str, Any] | None = None) -> None:
        """An epoch is complete. The rate of the next one is set when that begins.

        Args:
            metrics: values of the epoch, the same on every rank.
        """
        self.epoch += 1

    def move_to(self, epoch: int, step: int) -> None:
        """Put the schedule where it is after ``epoch`` epochs and ``step`` updates, for a training run whose schedule state is lost."""
        self.epoch = at_least("epoch", epoch, 0)
        self.step = at_least("step", step, 0)
        self.apply()

    def use_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Go on from the present position with another optimizer; each of its groups has its own ``initial_lr``."""
        self.optimizer = optimizer
        self.apply()

    def state_dict(self) -> dict[str, Any]:
        """Position and options as plain numbers, lists and bools."""
        return {
            "min_lrs": list(self.min_lrs),
            "base_lrs": self.base_lrs,
            "warmup_steps": self.warmup_steps,
            "epoch": self.epoch,
            "step": self.step,
            "update_lr_on_opt_step": self.update_lr_on_opt_step,
            **{key: getattr(self, key) for key in self.option_keys},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state`` and write its rates into the optimizer. Load the optimizer's own state before.

        Options in ``state`` replace those that the schedule was made with; a difference is reported. When the optimizer has another
        number of groups than before, each keeps its own ``initial_lr``, which a restored optimizer has from the saved groups.

        Raises:
            ConfigError: the state of another kind of schedule.
        """
        options = ("warmup_steps", "update_lr_on_opt_step", *self.option_keys)
        expected = {"min_lrs", "base_lrs", *options, *self.position_keys}
        wrong = check_state_keys(type(self).__name__, state, expected)
        if wrong:
            raise ConfigError(f"{wrong} Resume with the lrsch_type that the state was saved with")
        report_changes(self, state, [key for key in options if key not in self.position_keys])
        for key in (*options, *self.position_keys):
            setattr(self, key, state[key])
        self._load_groups(list(state["base_lrs"]), list(state["min_lrs"]))
        self.apply()

    def _load_groups(self, base_lrs: Sequence[float], min_lrs: Sequence[float]) -> None:
        groups = self.optimizer.param_groups
        if len(base_lrs) != len(groups):
            logger.warning(
                "the learning-rate schedule was saved with %d parameter groups, the optimizer has %d now; each group goes on from "
                "its own initial rate: %s",
                len(base_lrs),
                len(groups),
                ", ".join(f"{lr:g}" for lr in self.base_lrs),
            )
            return
        self.min_lrs = list(min_lrs)
        # the same rates in another order: the optimizer's state, which goes by parameter, has put them where they belong
        if sorted(base_lrs) != sorted(self.base_lrs):
            for group, lr in zip(groups, base_lrs, strict=True):
                group["initial_lr"] = lr

    def _follow_groups(self) -> None:
        """Take in groups that were added to, or removed from, the optimizer."""
        groups = self.optimizer.param_groups
        for group in groups:
            group.setdefault("initial_lr", float(group["lr"]))
        if self._num_groups and len(groups) != self._num_groups:
            logger.info("the optimizer has %d parameter groups, it had %d", len(groups), self._num_groups)
            if len(set(self.min_lrs)) > 1:
                logger.warning("the lowest rate of every parameter group is %g from now on", min(self.min_lrs))
            self.min_lrs = [min(self.min_lrs)] * len(groups)
        self._num_groups = len(groups)


def _per_group(value: float | list[float], num_groups: int) -> list[float]:
    values = [float(v) for v in value] if isinstance(value, (list, tuple)) else [float(value)] * num_groups
    if len(values) != num_groups:
        raise ConfigError(f"min_lr has {len(values)} values, the optimizer {num_groups} parameter groups")
    for number in values:
        at_least("min_lr", number, 0.0)
    return values
