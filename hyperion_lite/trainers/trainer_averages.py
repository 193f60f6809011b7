"""Averages of the weights in the course of training: when they begin, are updated and finished."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from torch.optim.swa_utils import SWALR

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.serialization.directory import write_directory
from hyperion_lite.trainers.accumulation import UpdateBatches
from hyperion_lite.trainers.averaging import WeightAverage, batch_norms, update_batch_norm
from hyperion_lite.trainers.batch_device import to_device
from hyperion_lite.trainers.data_position import DataPosition
from hyperion_lite.trainers.rng_state import kept_rng_state
from hyperion_lite.trainers.trainer_checkpoints import TrainerCheckpoints

logger = logging.getLogger(__name__)

SWA, EMA = "swa_model", "ema_model"


class TrainerAverages(TrainerCheckpoints):
    """Stochastic weight averaging and the exponential moving average of a trainer.

    SWA begins at step ``swa_start``: the learning rate goes to ``swa_lr`` in ``swa_anneal_steps`` steps (cosine) and stays there, and
    every ``swa_update_steps`` steps the weights enter the average. At the end of training the batch-norm statistics of the averages are
    computed on training data, the last checkpoint gets them, and they are saved as model directories of the experiment.
    """

    def _init_averages(
        self,
        swa_start: int,
        swa_lr: float,
        swa_anneal_steps: int,
        swa_update_steps: int,
        bn_update_steps: int,
        ema_decay: float,
    ) -> None:
        if min(swa_start, swa_anneal_steps, bn_update_steps) < 0 or swa_update_steps < 1:
            raise ConfigError(
                "swa_start, swa_anneal_steps and bn_update_steps must not be negative, and swa_update_steps must be at least 1"
            )
        self._swa_start, self._swa_lr = swa_start, swa_lr
        self._swa_anneal_steps, self._swa_update_steps = swa_anneal_steps, swa_update_steps
        self._bn_update_steps = bn_update_steps
        self._swa_scheduler: Any = None
        self._averages: dict[str, WeightAverage] = {}
        self._averages_finished = False
        if swa_start > 0:
            self._averages[SWA] = WeightAverage(self.module)
        if ema_decay > 0:
            self._averages[EMA] = WeightAverage(self.module, ema_decay)

    def _make_swa_scheduler(self) -> SWALR:
        return SWALR(self.optimizer, swa_lr=self._swa_lr, anneal_epochs=self._swa_anneal_steps)

    def _update_averages(self) -> None:
        """Called after each real update, once the schedulers have moved."""
        self._averages_finished = False
        if EMA in self._averages:
            self._averages[EMA].update()
        since = self.global_step - self._swa_start
        if SWA in self._averages and since >= 0:
            if self._swa_scheduler is None:
                self._swa_scheduler = self._make_swa_scheduler()
            if since % self._swa_update_steps == 0:
                self._averages[SWA].update()

    def _restore_averages(self, states: Mapping[str, Any], averages: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        if "swa_scheduler" in states and SWA in self._averages:
            self._swa_scheduler = self._make_swa_scheduler()
            self._swa_scheduler.load_state_dict(states["swa_scheduler"])
        for name, tensors in averages.items():
            average = self._averages.get(name)
            if average is None:
                logger.warning("the checkpoint has averaged weights %s, which this run does not continue", name)
            else:
                average.load_state_dict(tensors)

    def _finish_averages(self, train_data: Any) -> None:
        """At the end of training: statistics of the averages, the last checkpoint with them, model directories."""
        averages = {name: average for name, average in self._averages.items() if average.num_averaged}
        if not averages or self._averages_finished:
            return
        self._restore_rng()
        for name, average in averages.items():
            # a run that is made longer later goes on with the numbers that it would have drawn without this
            with average.applied(), kept_rng_state(self.device):
                self._update_statistics(train_data)
            state = average.state_dict()
            if self.is_main:
                weights = {key.removeprefix("module."): value for key, value in state.items() if key != "n_averaged"}
                write_directory(self.exp_path / name, self.model_config(), weights, self._class_names())
                logger.info("the average of %d weights is in %s", average.num_averaged, self.exp_path / name)
        self._averages_finished = True
        self.save_checkpoint(self._logs)

    @torch.no_grad()
    def _update_statistics(self, train_data: Any) -> None:
        self.module.train()
        if not batch_norms(self.module):
            return
        batches = map(self.preprocess_batch, DataPosition(train_data).begin(self.cur_epoch, 0))
        limited = islice(batches, self._bn_update_steps or None)
        # as in training, all ranks make the same number of forward passes
        updates = UpdateBatches(iter(limited), 1, self.distribution, self.batch_size)
        with update_batch_norm(self.module), self.precision.autocast():
            for group in updates:
                self.compute_loss(to_device(group[0].data, self.device))
