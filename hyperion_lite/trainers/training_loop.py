"""The course of training: epochs, updates, what follows an update, validation, and the end."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from hyperion_lite.core.errors import ConfigError, HyperionLiteError
from hyperion_lite.trainers import batch_device
from hyperion_lite.trainers.accumulation import UpdateBatches, steps_for
from hyperion_lite.trainers.data_position import DataPosition
from hyperion_lite.trainers.metric_accumulator import MetricAccumulator
from hyperion_lite.trainers.rng_state import kept_rng_state
from hyperion_lite.trainers.trainer_averages import TrainerAverages
from hyperion_lite.trainers.update_step import UpdateOutcome

logger = logging.getLogger(__name__)

REQUEUE_EXIT_CODE = 75
"""Exit code after a signal: the checkpoint is written, run the same command again (``EX_TEMPFAIL`` of sysexits.h)."""


class TrainingInterrupted(HyperionLiteError):
    """A signal asked for an end; the state is that between two updates."""


class TrainingLoop(TrainerAverages):
    """``fit`` and what it is made of."""

    def fit(self, train_data: Any, val_data: Any = None) -> dict[str, Any]:
        """Train until ``num_epochs`` or ``max_steps``, from where :meth:`load_last_checkpoint` left off.

        Args:
            train_data: a loader of :func:`hyperion_lite.data.loader.make_loader`, or an iterable of batches, see
                :class:`~.data_position.DataPosition`.
            val_data: batches for validation; an iterable that gives the same each time.

        Returns:
            Logs of the last epoch (of the checkpoint when there was nothing left to do).

        Raises:
            SystemExit: with code 75, after SIGTERM or SIGINT, once the checkpoint is written.
            NonFiniteLossError: too many bad batches.
            ValueError: another data set than the checkpoint's, or no data.
        """
        self._begin_fit(train_data, val_data)
        with self.signals:
            try:
                while not self._is_finished():
                    self._logs = self._fit_epoch(train_data)
                self._finish_averages(self._data_of_phase(train_data))
            except TrainingInterrupted as stop:
                self._save_and_exit(stop)
            finally:
                self._saver.wait()
        self.loggers.on_train_end({**self._log_position(), **self._logs})
        return dict(self._logs)

    def _begin_fit(self, train_data: Any, val_data: Any) -> None:
        if self.is_main:
            self.exp_path.mkdir(parents=True, exist_ok=True)
            self.store.clean()
        self.distribution.barrier()
        self._val_data = val_data
        self._use_data(self._data_of_phase(train_data))
        assert self._position is not None
        self._position.load_state_dict(self._sampler_state)
        self._sampler_state = None
        self.loggers.on_train_begin(self._log_position())

    def _data_of_phase(self, train_data: Any) -> Any:
        """The batches of the present phase, of data that differs between phases."""
        return train_data.for_phase(self.phase) if hasattr(train_data, "for_phase") else train_data

    def _use_data(self, data: Any) -> None:
        self._position = DataPosition(data)
        if self.eff_batch_size is not None:
            size = self._position.mean_batch_size()
            if size is None:
                raise ConfigError(
                    "eff_batch_size needs a loader whose sampler tells its batch sizes; give grad_acc_steps"
                )
            self.grad_acc_steps = steps_for(self.eff_batch_size, size)

    def _is_finished(self) -> bool:
        return self.cur_epoch >= self.num_epochs or self._steps_done()

    def _steps_done(self) -> bool:
        return self.max_steps is not None and self.global_step >= self.max_steps

    def _fit_epoch(self, train_data: Any) -> dict[str, Any]:
        if not self._epoch_begun:
            begun = self._advance_phase()
            train_data = self._data_of_phase(train_data)
            assert self._position is not None
            new_data = self._position.data is not train_data
            if new_data:
                self._use_data(train_data)
            if begun:
                self.on_phase_begin(new_data)
            self._begin_epoch()
        train_data = self._data_of_phase(train_data)
        self.on_epoch_begin()
        assert self._position is not None
        self.loggers.on_epoch_begin(self._log_position())
        logs = self.train_epoch(train_data)
        num_batches = self._position.num_batches()
        complete = not self._steps_done() or (num_batches is not None and self.cur_batch >= num_batches)
        if self._val_data is not None:
            logs.update(self._validate())
        self.on_epoch_end(logs)
        self.loggers.on_epoch_end({**self._log_position(), **logs})
        if complete:
            for scheduler in self._moving_schedulers():
                scheduler.on_epoch_end(logs)
            self.cur_epoch += 1
            self.cur_batch = 0
            self._epoch_begun = False
            self._epoch_metrics.reset()
        self.save_checkpoint(logs)
        return logs

    def _begin_epoch(self) -> None:
        self._epoch_begun = True
        self._epoch_metrics.reset()
        self._bad_batches.count = 0
        for scheduler in self._moving_schedulers():
            scheduler.on_epoch_begin(self._lr_epoch() if scheduler is self.lr_scheduler else self.cur_epoch)

    def _moving_schedulers(self) -> list[Any]:
        """The schedulers in force: weight averaging has a learning rate of its own."""
        schedulers = [self.lr_scheduler if self._swa_scheduler is None else None, self.wd_scheduler]
        return [scheduler for scheduler in schedulers if scheduler is not None]

    def train_epoch(self, data_loader: Any) -> dict[str, Any]:
        """Train on the batches of the present epoch that are left.

        Returns:
            Averages over the items of all ranks under ``train_`` and their names, learning rates, and the number of skipped updates.

        Raises:
            TrainingInterrupted: a signal came.
            ValueError: there are no batches.
        """
        if self._position is None or self._position.data is not data_loader:
            self._position = DataPosition(data_loader)
        batches = self._position.begin(self.cur_epoch, self.cur_batch)
        self._restore_rng()
        updates = UpdateBatches(
            map(self.preprocess_batch, batches), self.grad_acc_steps, self.distribution, self.batch_size
        )
        self.module.train()
        self._run_due()
        begin = time.perf_counter()
        if not self._steps_done():
            for group in updates:
                if self._advance_phase():
                    self.module.train()
                    self.on_phase_begin(new_data=False)
                self.on_step_begin()
                outcome = self._update_step.run(group, self._poll)
                self.cur_batch += len(group)
                self._items_since_log += updates.num_items
                seconds = sum(batch_device.audio_seconds(micro.data, self.input_key) for micro in group)
                self._audio_since_log += self.world_size * seconds
                self._after_update(outcome)
                if self._steps_done():
                    break
        self.data_seconds += updates.wait_seconds
        self.step_seconds += time.perf_counter() - begin
        if self.cur_batch == 0:
            raise ValueError(
                "the training data gave no batch; look at the data set and the batch limits of its sampler"
            )
        return self._train_logs()

    def _poll(self) -> list[bool]:
        clock = self.is_main
        return [
            self.signals.received is not None,
            clock and self._save_schedule.due_by_clock(),
            clock and self._val_data is not None and self._val_schedule.due_by_clock(),
        ]

    def _after_update(self, outcome: UpdateOutcome) -> None:
        """What follows an update: schedulers, averages, logs; and what is due now, agreed by all ranks."""
        stop, save, validate = outcome.flags
        if outcome.bad is not None:
            self._bad_batches.add(outcome.bad, outcome.bad_ids, self.cur_epoch, self.global_step)
        for metrics, num_items in outcome.metrics:
            self._epoch_metrics.update(metrics, num_items)
        if outcome.updated:
            self.global_step += 1
            self._step_schedulers()
            self._update_averages()
            if self.global_step % self.log_interval == 0:
                self._log_step(outcome)
        self._save_due = save or self._save_schedule.due_by_steps(self.global_step)
        self._validation_due = self._val_data is not None and (
            validate or self._val_schedule.due_by_steps(self.global_step)
        )
        if stop:
            raise TrainingInterrupted(f"signal {self.signals.received}")
        self._run_due()

    def _step_schedulers(self) -> None:
        if self._swa_scheduler is not None:
            self._swa_scheduler.step()
        for scheduler in self._moving_schedulers():
            scheduler.on_opt_step()

    def _run_due(self) -> None:
        """Validate and save where that is due; an interrupted validation stays due, in the checkpoint too."""
        if not (self._validation_due or self._save_due):
            return
        logs = self._train_logs()
        if self._validation_due and self._val_data is not None:
            logs.update(self._validate())
            self.loggers.on_validation_end({**self._log_position(), **logs})
        self._validation_due = False
        if self._save_due:
            self._save_due = False
            self.save_checkpoint(logs)

    def _validate(self) -> dict[str, float]:
        """Validation logs of the present step, computed once."""
        if self._validated is None or self._validated[0] != self.global_step:
            with kept_rng_state(self.device):
                logs = self.validation_epoch(self._val_data)
            self._validated = (self.global_step, logs)
            self._val_schedule.done(self.global_step)
            self.module.train()
        return dict(self._validated[1])

    def validation_epoch(self, data_loader: Any) -> dict[str, float]:
        """Validate on all batches.

        Returns:
            Averages over the items of all ranks under ``val_`` and their names. Items that only fill up ranks do not count.

        Raises:
            TrainingInterrupted: a signal came.
        """
        self.module.eval()
        metrics = MetricAccumulator()
        batches = iter(data_loader)
        batch, index = None, -1
        while True:
            following = next(batches, None)
            index += following is not None
            more, stop = self.distribution.any_of(following is not None, self.signals.received is not None)
            if stop:
                raise TrainingInterrupted(f"signal {self.signals.received}")
            if not more:
                break
            if following is not None:
                batch = following
                num_items, values = self.validation_step(index, batch)
                metrics.update(values, num_items)
            elif self.distribution.is_sharded and batch is not None:
                # this rank has run out, but the others need its part of the parameters
                self.validation_step(index, batch)
        self.module.train()
        return {f"val_{name}": value for name, value in self._over_ranks(metrics).items()}

    def validation_step(self, batch_idx: int, batch_data: Any) -> tuple[int, dict[str, Any]]:
        """Validate on one collated batch; no gradients, evaluation mode is up to the caller.

        Args:
            batch_idx: its number.
            batch_data: as the loader gives it: goes through :meth:`preprocess_batch`, then its tensors to the device; ids and other
                metadata stay on the host.

        Returns:
            Number of items that count, and their metrics.
        """
        batch = batch_device.without_repeats(self.preprocess_batch(batch_data))
        num_items = self.batch_size(batch)
        if num_items == 0:
            return 0, {}
        with torch.no_grad(), self.precision.autocast():
            loss, metrics = self.compute_loss(batch_device.to_device(batch, self.device))
        return num_items, {"loss": loss, **metrics}

    def _save_and_exit(self, stop: TrainingInterrupted) -> None:
        if self.is_main:
            logger.warning("%s: saving a checkpoint and ending; run the same command again to continue", stop)
        self.save_checkpoint(self._train_logs())
        self._saver.wait()
        self.loggers.on_train_end(self._log_position())
        raise SystemExit(REQUEUE_EXIT_CODE) from stop
