"""The training loop. Its parts are in modules of their own, see :mod:`hyperion_lite.trainers`."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError, HyperionLiteError
from hyperion_lite.trainers import batch_device
from hyperion_lite.trainers.accumulation import UpdateBatches, steps_for
from hyperion_lite.trainers.async_saver import AsyncSaver
from hyperion_lite.trainers.checkpoint_store import BestMode, CheckpointStore
from hyperion_lite.trainers.data_position import DataPosition
from hyperion_lite.trainers.distribution import DDPType, Distribution, default_device
from hyperion_lite.trainers.events import Schedule, SignalListener
from hyperion_lite.trainers.gradient_checkpointing import enable_gradient_checkpointing
from hyperion_lite.trainers.gradients import BadBatchCounter
from hyperion_lite.trainers.metric_accumulator import MetricAccumulator, averages, merge
from hyperion_lite.trainers.precision import AMPDType, Precision
from hyperion_lite.trainers.rng_state import apply_rng_state, kept_rng_state
from hyperion_lite.trainers.trainer_averages import TrainerAverages
from hyperion_lite.trainers.trainer_checkpoints import TrainerCheckpoints
from hyperion_lite.trainers.trainer_parts import make_loggers, make_lr_scheduler, make_optimizer, make_wd_scheduler
from hyperion_lite.trainers.update_step import UpdateOutcome, UpdateStep

logger = logging.getLogger(__name__)

REQUEUE_EXIT_CODE = 75
"""Exit code after a signal: the checkpoint is written, run the same command again (``EX_TEMPFAIL`` of sysexits.h)."""


class TrainingInterrupted(HyperionLiteError):
    """A signal asked for an end; the state is that between two updates."""


class TorchTrainerBase(TrainerCheckpoints, TrainerAverages, Configurable):
    """Trains a model: loop, checkpoints, logging, accumulation, validation, mixed precision, ranks, schedulers, averages.

    A task trainer defines :meth:`compute_loss`, and may override :meth:`preprocess_batch`, :meth:`batch_size`,
    :meth:`validation_epoch` and the ``on_*`` hooks. It says in its docstring which batch keys it needs, their layouts, the dtype of the
    target and what its metrics are.

    Args:
        model: what is trained; moved to the device.
        optim: configuration of :class:`~hyperion_lite.optim.factory.OptimizerFactory`, an optimizer, or a function of parameter groups.
        lrsched: configuration of the learning-rate scheduler, or null for a constant rate.
        wdsched: configuration of the weight-decay scheduler, or null.
        exp_path: experiment directory: checkpoints and logs.
        num_epochs: epochs to train.
        max_steps: optimizer steps to train, exactly; null for no limit.
        grad_acc_steps: micro-batches of an optimizer step.
        eff_batch_size: items of an optimizer step over all ranks; replaces grad_acc_steps.
        val_steps: validate every so many steps, beside the end of each epoch; 0 for not.
        val_hours: validate every so many hours; 0 for not.
        save_steps: save every so many steps, beside the end of each epoch; 0 for not.
        save_hours: save every so many hours; 0 for not.
        device: torch device; null for the GPU of this process where there is one.
        loggers: a list of loggers in place of the usual ones.
        ddp: train over the ranks of torchrun; null for whenever there are several.
        ddp_type: ddp, oss_ddp (optimizer state split over the ranks) or fsdp (parameters too).
        cpu_offload: with fsdp on GPUs, keep parameters in host memory.
        use_amp: mixed precision.
        amp_dtype: float16 (with loss scaling) or bfloat16.
        log_interval: steps between two lines of progress.
        use_tensorboard: log to TensorBoard.
        use_wandb: log to Weights and Biases.
        wandb: options of the W&B run.
        grad_clip: largest norm of the gradient, 0 or less for no clipping.
        grad_clip_norm: order of that norm, or "inf".
        swa_start: step at which stochastic weight averaging begins; 0 for none.
        swa_lr: learning rate while averaging.
        swa_anneal_steps: steps from the present learning rate to swa_lr.
        swa_update_steps: steps between two updates of the average.
        bn_update_steps: largest number of batches for the batch-norm statistics of the averages, 0 for a whole epoch.
        ema_decay: decay of an exponential moving average of the weights; 0 for none.
        input_key: entry of a batch with the input.
        target_key: entry of a batch with the target.
        train_mode: which parts of the model learn, one of its valid_train_modes; null leaves the model as it is.
        keep_last: how many of the newest checkpoints are kept; null for all.
        keep_best: how many of the best are kept beside them.
        best_metric: entry of the logs that tells which is best.
        best_mode: min or max.
        compile: compile the model with torch.compile.
        gradient_checkpointing: compute activations of the model's blocks twice to save memory.
        async_save: write checkpoints in the background.
        max_bad_steps: updates of an epoch that may be skipped because the loss or gradient is not finite.

    Raises:
        ConfigError: options that do not go together.
    """

    config_exclude: ClassVar[Collection[str]] = ("model",)

    def __init__(
        self,
        model: nn.Module,
        optim: Any = None,
        lrsched: Any = None,
        wdsched: Any = None,
        exp_path: str = "./train",
        num_epochs: int = 100,
        max_steps: int | None = None,
        grad_acc_steps: int = 1,
        eff_batch_size: int | None = None,
        val_steps: int | None = None,
        val_hours: float | None = None,
        save_steps: int | None = None,
        save_hours: float | None = None,
        device: str | None = None,
        loggers: Any = None,
        ddp: bool | None = None,
        ddp_type: DDPType = "ddp",
        cpu_offload: bool = False,
        use_amp: bool = False,
        amp_dtype: AMPDType = "float16",
        log_interval: int = 100,
        use_tensorboard: bool = False,
        use_wandb: bool = False,
        wandb: dict[str, Any] | None = None,
        grad_clip: float = 0.0,
        grad_clip_norm: float | Literal["inf"] = 2.0,
        swa_start: int = 0,
        swa_lr: float = 1e-3,
        swa_anneal_steps: int = 50000,
        swa_update_steps: int = 50000,
        bn_update_steps: int = 5000,
        ema_decay: float = 0.0,
        input_key: str = "audio",
        target_key: str = "speaker",
        train_mode: str | None = None,
        keep_last: int | None = None,
        keep_best: int = 0,
        best_metric: str | None = "val_loss",
        best_mode: BestMode = "min",
        compile: bool = False,
        gradient_checkpointing: bool = False,
        async_save: bool = False,
        max_bad_steps: int = 20,
    ) -> None:
        _check_counts(num_epochs=num_epochs, grad_acc_steps=grad_acc_steps, log_interval=log_interval)
        self.device = default_device() if device is None else torch.device(device)
        self.distribution = Distribution(ddp, ddp_type, self.device, cpu_offload)
        self.precision = Precision(self.device, use_amp, amp_dtype)
        self.num_epochs, self.max_steps = num_epochs, max_steps
        self.grad_acc_steps, self.eff_batch_size = grad_acc_steps, eff_batch_size
        self.log_interval = log_interval
        self.input_key, self.target_key = input_key, target_key
        self.async_save = async_save
        self.exp_path = Path(exp_path)

        self._model_class_name = type(model).__name__
        self.module = model.to(self.device)
        if train_mode is not None:
            model.set_train_mode(train_mode)  # type: ignore[operator]
        if gradient_checkpointing:
            enable_gradient_checkpointing(model)
        if compile:
            model.compile()
        self.model = self.distribution.wrap(model)
        self.optimizer = make_optimizer(optim, self.module, self.distribution)
        self.lr_scheduler = make_lr_scheduler(lrsched, self.optimizer)
        self.wd_scheduler = make_wd_scheduler(wdsched, self.optimizer)
        self._init_averages(swa_start, swa_lr, swa_anneal_steps, swa_update_steps, bn_update_steps, ema_decay)
        self._update_step = UpdateStep(
            self.module,
            self.model,
            self.optimizer,
            self.precision,
            self.distribution,
            self.compute_loss,
            grad_clip,
            grad_clip_norm,
        )
        self.store = CheckpointStore(
            self.exp_path, self.checkpoint_model_names, keep_last, keep_best, best_metric, best_mode
        )
        self._saver = AsyncSaver()
        self.signals = SignalListener()
        self._save_schedule = Schedule(save_steps, save_hours, "save")
        self._val_schedule = Schedule(val_steps, val_hours, "val")
        self._bad_batches = BadBatchCounter(max_bad_steps)
        self.loggers = make_loggers(loggers, self.exp_path, log_interval, use_tensorboard, use_wandb, wandb)

        self.cur_epoch = self.cur_batch = self.global_step = 0
        self.data_seconds = self.step_seconds = 0.0
        self._epoch_begun = self._validation_due = self._save_due = False
        self._validated: tuple[int, dict[str, float]] | None = None
        self._epoch_metrics = MetricAccumulator()
        self._logs: dict[str, Any] = {}
        self._position: DataPosition | None = None
        self._val_data: Any = None
        self._sampler_state: dict[str, Any] | None = None
        self._rng_state: dict[str, Any] | None = None

    # what a task trainer supplies

    def compute_loss(self, batch: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
        """Loss of a batch.

        Args:
            batch: what :meth:`preprocess_batch` returned, tensors on the device. Call ``self.model``, not ``self.module``, so that
                gradients are exchanged between ranks.

        Returns:
            The loss, averaged over the items of the batch, and metrics averaged likewise: numbers, or tensors without axes (which
            cost no waiting for the device). ``loss`` is added to them.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define compute_loss")

    def preprocess_batch(self, batch: Any) -> Any:
        """Hook: change a collated batch on the host, before its tensors move to the device."""
        return batch

    def batch_size(self, batch: Any) -> int:
        """Number of items of a batch: the first axis of ``input_key``, else of the first tensor."""
        return batch_device.batch_size(batch, self.input_key)

    def on_epoch_begin(self) -> None:
        """Hook: an epoch begins, or is continued. ``cur_epoch``, ``cur_batch`` and ``global_step`` say where."""

    def on_step_begin(self) -> None:
        """Hook: an update begins."""

    def on_epoch_end(self, logs: dict[str, Any]) -> None:
        """Hook: an epoch has ended; ``logs`` may be added to."""

    # properties

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self.distribution.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.distribution.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.distribution.is_main

    # the loop

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
                self._finish_averages(train_data)
            except TrainingInterrupted as stop:
                self._save_and_exit(stop)
            finally:
                self._saver.wait()
        self.loggers.on_train_end(self._logs)
        return dict(self._logs)

    def _begin_fit(self, train_data: Any, val_data: Any) -> None:
        if self.is_main:
            self.exp_path.mkdir(parents=True, exist_ok=True)
            self.store.clean()
        self.distribution.barrier()
        self._val_data = val_data
        self._position = DataPosition(train_data)
        self._position.load_state_dict(self._sampler_state)
        self._sampler_state = None
        if self.eff_batch_size is not None:
            size = self._position.mean_batch_size()
            if size is None:
                raise ConfigError(
                    "eff_batch_size needs a loader whose sampler tells its batch sizes; give grad_acc_steps"
                )
            self.grad_acc_steps = steps_for(self.eff_batch_size, size)
        self.loggers.on_train_begin(epochs=self.num_epochs, epoch=self.cur_epoch, step=self.global_step)

    def _is_finished(self) -> bool:
        return self.cur_epoch >= self.num_epochs or self._steps_done()

    def _steps_done(self) -> bool:
        return self.max_steps is not None and self.global_step >= self.max_steps

    def _fit_epoch(self, train_data: Any) -> dict[str, Any]:
        if not self._epoch_begun:
            self._begin_epoch()
        self.on_epoch_begin()
        assert self._position is not None
        self.loggers.on_epoch_begin(self.cur_epoch, batches=self._position.num_batches())
        logs = self.train_epoch(train_data)
        num_batches = self._position.num_batches()
        complete = not self._steps_done() or (num_batches is not None and self.cur_batch >= num_batches)
        if self._val_data is not None:
            logs.update(self._validate())
        if complete:
            for scheduler in (self.lr_scheduler, self.wd_scheduler):
                if scheduler is not None:
                    scheduler.on_epoch_end(logs)
            self.cur_epoch += 1
            self.cur_batch = 0
            self._epoch_begun = False
            self._epoch_metrics.reset()
        self.on_epoch_end(logs)
        self.loggers.on_epoch_end(logs)
        self.save_checkpoint(logs)
        return logs

    def _begin_epoch(self) -> None:
        self._epoch_begun = True
        self._epoch_metrics.reset()
        self._bad_batches.count = 0
        for scheduler in (self.lr_scheduler, self.wd_scheduler):
            if scheduler is not None:
                scheduler.on_epoch_begin(self.cur_epoch)

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
                self.on_step_begin()
                outcome = self._update_step.run(group, self._poll)
                self.cur_batch += len(group)
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

    def _restore_rng(self) -> None:
        # after the iterator was made, which may draw numbers that the interrupted run had drawn at the start of the epoch
        if self._rng_state is not None:
            apply_rng_state(self._rng_state, self.device)
            self._rng_state = None

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
                self.loggers.on_batch_end(self._step_logs(outcome))
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
        elif self.lr_scheduler is not None:
            self.lr_scheduler.on_opt_step()
        if self.wd_scheduler is not None:
            self.wd_scheduler.on_opt_step()

    def _run_due(self) -> None:
        """Validate and save where that is due; an interrupted validation stays due, in the checkpoint too."""
        if not (self._validation_due or self._save_due):
            return
        logs = self._train_logs()
        if self._validation_due and self._val_data is not None:
            logs.update(self._validate())
            self.loggers.on_validation_end(logs)
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

    # logs and state

    def _over_ranks(self, metrics: MetricAccumulator) -> dict[str, float]:
        return averages(merge(self.distribution.all_gather_object(metrics.state_dict())))

    def _train_logs(self) -> dict[str, Any]:
        logs: dict[str, Any] = {f"train_{n}": v for n, v in self._over_ranks(self._epoch_metrics).items()}
        logs.update(self._rates())
        if self._bad_batches.count:
            logs["bad_steps"] = self._bad_batches.count
        return logs

    def _rates(self) -> dict[str, float]:
        groups = self.optimizer.param_groups
        rates = {f"lr_{i}" if i else "lr": float(g["lr"]) for i, g in enumerate(groups)}
        if self.precision.scaler.is_enabled():
            rates["grad_scale"] = float(self.precision.scaler.get_scale())
        return rates

    def _step_logs(self, outcome: UpdateOutcome) -> dict[str, Any]:
        logs: dict[str, Any] = {"epoch": self.cur_epoch, "batch": self.cur_batch, "step": self.global_step}
        logs.update({f"train_{n}": v for n, v in self._epoch_metrics.averages().items()})
        if outcome.grad_norm is not None:
            logs["grad_norm"] = outcome.grad_norm
        return {**logs, **self._rates()}

    def _progress_state(self) -> dict[str, Any]:
        return {
            "epoch_begun": self._epoch_begun,
            "validation_due": self._validation_due,
            "save_due": self._save_due and self._validation_due,
            "validated": None if self._validated is None else list(self._validated),
            "bad_steps": self._bad_batches.count,
            "grad_acc_steps": self.grad_acc_steps,
            "averages_finished": self._averages_finished,
        }

    def _restore_progress(self, state: Mapping[str, Any]) -> None:
        self._epoch_begun = bool(state.get("epoch_begun", self.cur_batch > 0))
        self._validation_due = bool(state.get("validation_due", False))
        self._save_due = bool(state.get("save_due", False))
        validated = state.get("validated")
        self._validated = None if validated is None else (int(validated[0]), dict(validated[1]))
        self._bad_batches.count = int(state.get("bad_steps", 0))
        self._averages_finished = bool(state.get("averages_finished", False))

    def _save_and_exit(self, stop: TrainingInterrupted) -> None:
        if self.is_main:
            logger.warning("%s: saving a checkpoint and ending; run the same command again to continue", stop)
        self.save_checkpoint(self._train_logs())
        self._saver.wait()
        raise SystemExit(REQUEUE_EXIT_CODE) from stop


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
