"""The training loop. Its parts are in modules of their own, see :mod:`hyperion_lite.trainers`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.lr_schedulers.factory import LRSchedulerFactory
from hyperion_lite.optim.factory import OptimizerFactory
from hyperion_lite.trainers.async_saver import AsyncSaver
from hyperion_lite.trainers.checkpoint_store import BestMode, CheckpointStore
from hyperion_lite.trainers.distribution import DDPType, Distribution, resolve_device
from hyperion_lite.trainers.events import Schedule, SignalListener
from hyperion_lite.trainers.gradient_checkpointing import enable_gradient_checkpointing
from hyperion_lite.trainers.gradients import BadBatchCounter
from hyperion_lite.trainers.mode_schedule import ModeSchedule
from hyperion_lite.trainers.precision import AMPDType, Precision
from hyperion_lite.trainers.trainer_parts import make_loggers
from hyperion_lite.trainers.trainer_phases import PartOptions
from hyperion_lite.trainers.training_loop import TrainingLoop
from hyperion_lite.wd_schedulers.factory import WDSchedulerFactory

logger = logging.getLogger(__name__)


class TorchTrainerBase(TrainingLoop, Configurable):
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
        phases: parts of the run, each with a start and what changes there: what learns, learning rates, margins, batches; see
            :class:`~hyperion_lite.trainers.mode_schedule.TrainingPhase`.
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

    config_exclude: ClassVar[Collection[str]] = ("model", "loggers")
    nested_configs: ClassVar[Mapping[str, type[Configurable]]] = {
        "optim": OptimizerFactory,
        "lrsched": LRSchedulerFactory,
        "wdsched": WDSchedulerFactory,
    }

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
        phases: list[dict[str, Any]] | None = None,
        keep_last: int | None = None,
        keep_best: int = 0,
        best_metric: str | None = "val_loss",
        best_mode: BestMode = "min",
        compile: bool = False,
        gradient_checkpointing: bool = False,
        async_save: bool = False,
        max_bad_steps: int = 20,
    ) -> None:
        super().__init__()
        _check_counts(num_epochs=num_epochs, grad_acc_steps=grad_acc_steps, log_interval=log_interval)
        self.device = resolve_device(device)
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
        options = PartOptions(optim, lrsched, wdsched, grad_clip, grad_clip_norm)
        self._init_phases(model, ModeSchedule(phases, train_mode), options, swa_start)
        if gradient_checkpointing:
            enable_gradient_checkpointing(model)
        if compile:
            model.compile()
        self.model = self.distribution.wrap(model)
        self._build_parts()
        self._init_averages(swa_start, swa_lr, swa_anneal_steps, swa_update_steps, bn_update_steps, ema_decay)
        self.store = CheckpointStore(
            self.exp_path, self.checkpoint_model_names, keep_last, keep_best, best_metric, best_mode
        )
        self._saver = AsyncSaver()
        self.signals = SignalListener()
        self._save_schedule = Schedule(save_steps, save_hours, "save")
        self._val_schedule = Schedule(val_steps, val_hours, "val")
        self._bad_batches = BadBatchCounter(max_bad_steps)
        self.loggers = make_loggers(loggers, self.exp_path, use_tensorboard, use_wandb, wandb)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
