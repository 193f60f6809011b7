"""What the parts of a trainer share: its state, its logs, and the hooks of task trainers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hyperion_lite.trainers import batch_device
from hyperion_lite.trainers.async_saver import AsyncSaver
from hyperion_lite.trainers.averaging import WeightAverage
from hyperion_lite.trainers.checkpoint_store import CheckpointStore
from hyperion_lite.trainers.data_position import DataPosition
from hyperion_lite.trainers.distribution import Distribution
from hyperion_lite.trainers.events import Schedule, SignalListener
from hyperion_lite.trainers.gradients import BadBatchCounter
from hyperion_lite.trainers.metric_accumulator import MetricAccumulator, averages, merge
from hyperion_lite.trainers.precision import Precision
from hyperion_lite.trainers.rng_state import apply_rng_state
from hyperion_lite.trainers.update_step import UpdateOutcome, UpdateStep

# with more groups than this, as many layers have, only the range of their rates is logged
_MOST_RATES = 4


class TrainerCore:
    """State of a trainer.

    Attributes:
        device: where the model is.
        module: the bare model.
        model: what is called in the forward pass: ``module``, or what spreads it over ranks.
        optimizer, lr_scheduler, wd_scheduler: schedulers may be ``None``.
        distribution: the ranks.
        precision: autocast and gradient scaler.
        store: the checkpoint directories.
        loggers: what is told about the course of training.
        exp_path: experiment directory.
        cur_epoch: epochs finished.
        cur_batch: micro-batches of the present epoch that are done.
        global_step: real optimizer steps so far.
        data_seconds, step_seconds: time spent waiting for training batches, and in training epochs altogether.
    """

    device: torch.device
    module: nn.Module
    model: nn.Module
    optimizer: torch.optim.Optimizer
    lr_scheduler: Any
    wd_scheduler: Any
    distribution: Distribution
    precision: Precision
    store: CheckpointStore
    loggers: Any
    exp_path: Path
    num_epochs: int
    max_steps: int | None
    grad_acc_steps: int
    eff_batch_size: int | None
    log_interval: int
    input_key: str
    target_key: str
    async_save: bool
    signals: SignalListener
    _model_class_name: str
    _update_step: UpdateStep
    _saver: AsyncSaver
    _save_schedule: Schedule
    _val_schedule: Schedule
    _bad_batches: BadBatchCounter
    _averages: dict[str, WeightAverage]
    _averages_finished: bool
    _swa_scheduler: Any

    def __init__(self) -> None:
        self.cur_epoch = self.cur_batch = self.global_step = 0
        self.data_seconds = self.step_seconds = 0.0
        self._items_since_log, self._audio_since_log = 0, 0.0
        self._epoch_begun = self._validation_due = self._save_due = False
        self._validated: tuple[int, dict[str, float]] | None = None
        self._epoch_metrics = MetricAccumulator()
        self._logs: dict[str, Any] = {}
        self._position: DataPosition | None = None
        self._val_data: Any = None
        self._sampler_state: dict[str, Any] | None = None
        self._rng_state: dict[str, Any] | None = None

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

    def on_phase_begin(self, new_data: bool) -> None:
        """Hook: a phase of the schedule begins, with batches of another loader if ``new_data``. Not called where a run is resumed in it."""

    def on_step_begin(self) -> None:
        """Hook: an update begins."""

    def on_epoch_end(self, logs: dict[str, Any]) -> None:
        """Hook: an epoch has ended; ``logs`` may be added to."""

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
        values = [float(g["lr"]) for g in groups]
        if len(values) <= _MOST_RATES:
            rates = {f"lr_{i}" if i else "lr": value for i, value in enumerate(values)}
        else:
            rates = {"lr": values[0], "lr_min": min(values), "lr_max": max(values)}
        if self.precision.scaler.is_enabled():
            rates["grad_scale"] = float(self.precision.scaler.get_scale())
        return rates

    def _log_position(self) -> dict[str, Any]:
        """Where training stands, in the terms of :mod:`hyperion_lite.loggers.logger`."""
        return {
            "epoch": self.cur_epoch,
            "step": self.global_step,
            "batch": self.cur_batch,
            "num_batches": None if self._position is None else self._position.num_batches(),
            "num_epochs": self.num_epochs,
            "max_steps": self.max_steps,
        }

    def _log_step(self, outcome: UpdateOutcome) -> None:
        logs = self._log_position()
        logs.update(num_items=self._items_since_log, audio_seconds=self._audio_since_log)
        self._items_since_log, self._audio_since_log = 0, 0.0
        logs.update({f"train_{n}": v for n, v in self._epoch_metrics.averages().items()})
        if outcome.grad_norm is not None:
            logs["grad_norm"] = outcome.grad_norm
        self.loggers.on_batch_end({**logs, **self._rates()})

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

    def _restore_averages(self, states: Mapping[str, Any], averages: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Continue the weight averages of a checkpoint, see :class:`~.trainer_averages.TrainerAverages`."""
        raise NotImplementedError

    def _restore_rng(self) -> None:
        # after the iterator was made, which may draw numbers that the interrupted run had drawn at the start of the epoch
        if self._rng_state is not None:
            apply_rng_state(self._rng_state, self.device)
            self._rng_state = None
