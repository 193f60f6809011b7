"""The phases of a trainer: what happens to model, optimizer and schedules where the next one begins, or where a run is resumed in one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.trainers.mode_schedule import ModeSchedule, PhaseSettings, set_learning_parts
from hyperion_lite.trainers.optimizer_state import apply_optimizer_state, collect_optimizer_state
from hyperion_lite.trainers.trainer_core import TrainerCore
from hyperion_lite.trainers.trainer_parts import make_lr_scheduler, make_optimizer, make_wd_scheduler
from hyperion_lite.trainers.update_step import UpdateStep

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartOptions:
    """What the trainer was given for the parts that a phase builds anew."""

    optim: Any
    lrsched: Any
    wdsched: Any
    grad_clip: float
    grad_clip_norm: float | str


class TrainerPhases(TrainerCore):
    """The schedule of train modes of a trainer, see :mod:`~hyperion_lite.trainers.mode_schedule`.

    A phase begins before the first update whose position has reached its start. The parts that learn are set, the ranks are joined for them
    anew, and the optimizer is made of their parameters; parameters that go on learning keep their optimizer state, and those that were
    frozen begin without. The learning-rate schedule goes on unless the phase says otherwise; the weight-decay schedule always does.

    Attributes:
        phases: the schedule.
        phase: index of the present phase; part of a checkpoint.
    """

    phases: ModeSchedule
    phase: int
    _options: PartOptions

    def _init_phases(self, model: nn.Module, phases: ModeSchedule, options: PartOptions, swa_start: int) -> None:
        """Check that the phases can be done, and prepare ``model`` for the first one."""
        self.phases, self.phase, self._options = phases, 0, options
        self._lr_origin = self._change_origin = (0, 0)
        if len(phases) > 1:
            phases.fit_to(model)
            self._check_phases(swa_start)
        self._apply_to_model(model, phases[0])

    def _check_phases(self, swa_start: int) -> None:
        if swa_start > 0:
            raise ConfigError(
                "stochastic weight averaging has a learning rate of its own from swa_start on; with phases use ema_decay"
            )
        if self.distribution.is_sharded and self.phases.changes_learning:
            raise ConfigError(
                "with fsdp the parts that learn cannot change in the course of training: give all phases the same train_mode and "
                "last_layers, or use ddp or oss_ddp"
            )
        if isinstance(self._options.optim, torch.optim.Optimizer):
            raise ConfigError(
                "phases make the optimizer anew: give it as a configuration or as a function of the parameters"
            )
        for index in range(len(self.phases)):
            settings, where = self.phases[index], f"trainer.phases[{index}]"
            if settings.optim and not _is_config(self._options.optim):
                raise ConfigError(f"{where}.optim needs an optimizer that is given as a configuration")
            try:
                probe = self._make_optimizer([torch.nn.Parameter(torch.zeros(1))], settings)
                if _is_config(self._lrsched_of(settings)) and not isinstance(self._min_lr_of(settings), list):
                    make_lr_scheduler(self._lrsched_of(settings), probe)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error
            if index > 0 and settings.new_lrsched and not _is_config(self._lrsched_of(settings)):
                raise ConfigError(f"{where}.lrsched: there is no configuration of a schedule that could begin anew")

    # building

    def _apply_to_model(self, model: nn.Module, settings: PhaseSettings) -> None:
        if settings.change:
            model.change_config(**settings.change)  # type: ignore[operator]
        set_learning_parts(model, settings)

    def _optim_of(self, settings: PhaseSettings) -> Any:
        return (
            {**(self._options.optim or {}), **settings.optim}
            if _is_config(self._options.optim)
            else self._options.optim
        )

    def _lrsched_of(self, settings: PhaseSettings) -> Any:
        return self._options.lrsched if settings.lrsched is None else settings.lrsched

    def _min_lr_of(self, settings: PhaseSettings) -> Any:
        return dict(self._lrsched_of(settings) or {}).get("min_lr")

    def _make_optimizer(self, parameters: list[nn.Parameter], settings: PhaseSettings) -> torch.optim.Optimizer:
        """An optimizer that nobody uses, to find out whether the options are right."""
        from hyperion_lite.optim.factory import OptimizerFactory

        options = self._optim_of(settings)
        if not _is_config(options):
            return torch.optim.SGD(parameters, lr=1.0)
        return OptimizerFactory.create([{"params": parameters, "layer": 0}], **dict(options))

    def _build_parts(self) -> None:
        """Optimizer, schedules and update step of the present phase, from nothing."""
        settings = self.phases[self.phase]
        self.optimizer = make_optimizer(self._optim_of(settings), self.module, self.distribution)
        self.lr_scheduler = make_lr_scheduler(self._lrsched_of(settings), self.optimizer)
        self.wd_scheduler = make_wd_scheduler(self._options.wdsched, self.optimizer)
        self._build_update_step()

    def _build_update_step(self) -> None:
        self._update_step = UpdateStep(
            self.module,
            self.model,
            self.optimizer,
            self.precision,
            self.distribution,
            self.compute_loss,
            self._options.grad_clip,
            self._options.grad_clip_norm,
        )

    def _set_learning_parts(self, settings: PhaseSettings) -> None:
        before = {name for name, p in self.module.named_parameters() if p.requires_grad}
        self._apply_to_model(self.module, settings)
        after = {name for name, p in self.module.named_parameters() if p.requires_grad}
        if before != after and not self.distribution.is_sharded:
            self.distribution.release(self.model)
            self.model = self.module
            self._update_step.wrapped = self.module
            self.model = self.distribution.wrap(self.module)

    # the course of training

    def _advance_phase(self) -> bool:
        """Begin the phase whose start is reached; whether there was one."""
        index = self.phases.next_after(self.phase, self.cur_epoch, self.global_step)
        if index == self.phase:
            return False
        while self.phase < index:
            self.phase += 1
            self._begin_phase(self.phases[self.phase])
        if self.is_main:
            learning = sum(p.numel() for p in self.module.parameters() if p.requires_grad)
            total = sum(p.numel() for p in self.module.parameters())
            where = f"epoch {self.cur_epoch}, step {self.global_step}"
            logger.info(
                "%s; %d of %d weights learn, from %s on", self.phases.describe(self.phase), learning, total, where
            )
        return True

    def _begin_phase(self, settings: PhaseSettings) -> None:
        position = (self.cur_epoch, self.global_step)
        self._set_learning_parts(settings)
        if settings.new_change:
            self._change_origin = position
        self._renew_optimizer(settings)
        if settings.new_lrsched:
            self._lr_origin = position
            self.lr_scheduler = make_lr_scheduler(self._lrsched_of(settings), self.optimizer)
            if self.lr_scheduler is not None:
                self.lr_scheduler.move_to(0, 0)
        elif self.lr_scheduler is not None:
            self.lr_scheduler.use_optimizer(self.optimizer)
        if self.wd_scheduler is not None:
            self.wd_scheduler.use_optimizer(self.optimizer)
        self._build_update_step()

    def _renew_optimizer(self, settings: PhaseSettings) -> None:
        """An optimizer of the parameters that learn now. Those that learnt before keep their state, bit by bit."""
        old = self.optimizer
        new = make_optimizer(self._optim_of(settings), self.module, self.distribution)
        if self.distribution.ddp_type == "oss_ddp" and self.distribution.world_size > 1:
            # every rank has a part of the state, and the parts change
            saved = self.distribution.broadcast_object(collect_optimizer_state(old, self.module))
            apply_optimizer_state(new, self.module, {"state": saved["state"], "param_groups": []})
        else:
            for group in new.param_groups:
                for parameter in group["params"]:
                    if parameter in old.state:
                        new.state[parameter] = old.state[parameter]
        self.optimizer = new

    def _lr_epoch(self) -> int:
        """The epoch as the learning-rate schedule counts it."""
        return self.cur_epoch - self._lr_origin[0]

    def _rates(self) -> dict[str, float]:
        """As in the base class, with the number of the phase where there are several."""
        rates = super()._rates()
        return {**rates, "phase": self.phase + 1} if len(self.phases) > 1 else rates

    # checkpoints

    def _phase_state(self) -> dict[str, Any]:
        return {"phase": self.phase, "lr_origin": list(self._lr_origin), "change_origin": list(self._change_origin)}

    def _restore_phase(self, state: Mapping[str, Any]) -> None:
        """Make everything as it is in the phase of a checkpoint; its tensors and states come afterwards."""
        phase = int(state.get("phase", 0))
        if phase >= len(self.phases):
            raise ConfigError(
                f"the checkpoint is in phase {phase + 1}, trainer.phases has {len(self.phases)}; give a new exp_path for another schedule"
            )
        self._lr_origin = _position(state.get("lr_origin"))
        self._change_origin = _position(state.get("change_origin"))
        if phase == self.phase:
            return
        self.phase = phase
        self._set_learning_parts(self.phases[phase])
        self._build_parts()


def _is_config(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _position(value: Any) -> tuple[int, int]:
    return (0, 0) if value is None else (int(value[0]), int(value[1]))
