"""What weight-decay schedules share: when they move, parameter groups, state.

The rules are those of the learning-rate schedules: a function of the number of updates (``update_wd_on_opt_step``) or of epochs so far,
moved by ``on_epoch_begin``, ``on_opt_step`` and ``on_epoch_end``.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.factory_options import at_least
from hyperion_lite.core.schedule_state import check_state_keys, report_changes

logger = logging.getLogger(__name__)

_OPTIONS = ("initial_wd", "final_wd", "warmup_steps", "update_wd_on_opt_step")


class WDScheduler(Configurable):
    """Base of the weight-decay schedules. A subclass gives :meth:`progress`.

    Groups without weight decay (biases and normalisation, usually) stay without, unless no group has any. The others go from
    ``initial_wd`` to ``final_wd``. A group whose own weight decay differs from the largest one gets the same fraction of both.

    Args:
        optimizer: whose groups get their ``weight_decay``. A group's ``initial_wd``, by default its ``weight_decay``, is remembered.
        initial_wd: weight decay at the start.
        final_wd: weight decay at the end; ``None`` for that of the optimizer.
        warmup_steps: positions from the one to the other.
        update_wd_on_opt_step: positions are updates, not epochs.

    Raises:
        ConfigError: values out of range.
    """

    config_exclude: ClassVar[Collection[str]] = ("optimizer",)

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_wd: float = 0.0,
        final_wd: float | None = None,
        warmup_steps: int = 100,
        update_wd_on_opt_step: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.initial_wd = at_least("initial_wd", initial_wd, 0.0)
        self.warmup_steps = at_least("warmup_steps", warmup_steps, 0)
        self.update_wd_on_opt_step = update_wd_on_opt_step
        self.epoch = 0
        self.step = 0
        own = max(self._own())
        self.final_wd = at_least("final_wd", own if final_wd is None else final_wd, 0.0)
        self.apply()

    @abstractmethod
    def progress(self, position: int) -> float:
        """How much of the way is done, in [0, 1], at ``position`` updates or epochs."""

    def _own(self) -> list[float]:
        groups = self.optimizer.param_groups
        return [group.setdefault("initial_wd", group["weight_decay"]) for group in groups]

    def get_wd(self) -> list[float]:
        """The weight decay of each group at the present position."""
        done = self.progress(self.step if self.update_wd_on_opt_step else self.epoch)
        present = self.initial_wd + (self.final_wd - self.initial_wd) * done
        own = self._own()
        largest = max(own)
        return [present * (value / largest) if largest > 0 else present for value in own]

    def apply(self) -> None:
        """Write :meth:`get_wd` into the groups of the optimizer."""
        for group, value in zip(self.optimizer.param_groups, self.get_wd(), strict=True):
            group["weight_decay"] = value

    def on_epoch_begin(self, epoch: int | None = None, **_: Any) -> None:
        """An epoch begins, or is continued after a resume; ``epoch`` counts from 0."""
        if epoch is not None:
            self.epoch = epoch
        self.apply()

    def on_opt_step(self) -> None:
        """The optimizer has changed the weights."""
        self.step += 1
        if self.update_wd_on_opt_step:
            self.apply()

    def on_epoch_end(self, metrics: Mapping[str, Any] | None = None) -> None:
        """An epoch is complete."""
        self.epoch += 1

    def move_to(self, epoch: int, step: int) -> None:
        """Put the schedule where it is after ``epoch`` epochs and ``step`` updates."""
        self.epoch = at_least("epoch", epoch, 0)
        self.step = at_least("step", step, 0)
        self.apply()

    def use_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Go on from the present position with another optimizer."""
        self.optimizer = optimizer
        self.apply()

    def state_dict(self) -> dict[str, Any]:
        """Position, options, and the groups' own weight decays, as plain numbers, lists and bools."""
        options = {key: getattr(self, key) for key in _OPTIONS}
        return {**options, "epoch": self.epoch, "step": self.step, "base_wds": self._own()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state`` and write its weight decays into the optimizer. Load the optimizer's own state before.

        Options in ``state`` replace those that the schedule was made with; a difference is reported. When the optimizer has another
        number of groups than before, each keeps its own ``initial_wd``.

        Raises:
            ConfigError: the state of another kind of schedule.
        """
        wrong = check_state_keys(type(self).__name__, state, {*_OPTIONS, "epoch", "step", "base_wds"})
        if wrong:
            raise ConfigError(f"{wrong} Resume with the wdsch_type that the state was saved with")
        report_changes(self, state, _OPTIONS)
        for key in (*_OPTIONS, "epoch", "step"):
            setattr(self, key, state[key])
        saved, groups = list(state["base_wds"]), self.optimizer.param_groups
        if len(saved) != len(groups):
            logger.warning(
                "the weight-decay schedule was saved with %d parameter groups, the optimizer has %d now; each group keeps its own",
                len(saved),
                len(groups),
            )
        elif sorted(saved) != sorted(self._own()):
            for group, value in zip(groups, saved, strict=True):
                group["initial_wd"] = value
        self.apply()
