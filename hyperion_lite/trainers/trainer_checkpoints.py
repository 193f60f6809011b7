"""Saving and restoring a trainer: from its parts to a :class:`~.checkpoint_files.Checkpoint` and back."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hyperion_lite._version import __version__
from hyperion_lite.models.state_loading import optional_names
from hyperion_lite.serialization.directory import CONFIG_FILE, WEIGHTS_FILE
from hyperion_lite.serialization.locate import RNG_STATE_FILE, TRAINER_STATE_FILE
from hyperion_lite.serialization.names import match_weight_norm
from hyperion_lite.trainers.checkpoint_files import (
    CONFIG_YAML,
    OPTIMIZER_FILE,
    Checkpoint,
    UnreadableCheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from hyperion_lite.trainers.checkpoint_store import checkpoint_name, describe, parse_checkpoint_name
from hyperion_lite.trainers.compatibility import (
    class_differences,
    config_differences,
    family_differences,
    optimizer_differences,
    refuse,
    run_identity,
    tensor_differences,
)
from hyperion_lite.trainers.distribution import full_tensor, like_parameter
from hyperion_lite.trainers.metric_accumulator import merge
from hyperion_lite.trainers.optimizer_state import apply_optimizer_state, collect_optimizer_state
from hyperion_lite.trainers.rng_state import apply_rng_state, collect_rng_state, pack_rng_states, state_of_rank
from hyperion_lite.trainers.trainer_phases import TrainerPhases

logger = logging.getLogger(__name__)

STATE_FORMAT = 1


class TrainerCheckpoints(TrainerPhases):
    """The checkpoint methods of a trainer. Formats and guarantees: ``docs/checkpoints.md``.

    Attributes:
        checkpoint_model_names: directories of models in a checkpoint.
        trainer_state_file_name, rng_state_file_name: files of a checkpoint.
        model_config_file_name, model_weights_file_name, optimizer_state_file_name: files of a model directory in it.
    """

    checkpoint_model_names: tuple[str, ...] = ("model",)
    trainer_state_file_name = TRAINER_STATE_FILE
    rng_state_file_name = RNG_STATE_FILE
    model_config_file_name = CONFIG_FILE
    model_weights_file_name = WEIGHTS_FILE
    optimizer_state_file_name = OPTIMIZER_FILE

    # names and places

    def checkpoint_dir_name(self, epoch: int | None = None, step: int | None = None) -> str:
        """Name of the checkpoint at (epoch, step), by default the present ones."""
        return checkpoint_name(self.cur_epoch if epoch is None else epoch, self.global_step if step is None else step)

    def checkpoint_dir(self, epoch: int | None = None, step: int | None = None) -> Path:
        """Directory of the checkpoint at (epoch, step), by default the present ones."""
        return self.store.folder / self.checkpoint_dir_name(epoch, step)

    def checkpoint_model_dir(self, checkpoint_dir: str | os.PathLike[str], model_name: str | None = None) -> Path:
        """Directory of a model in a checkpoint, by default the only one."""
        return Path(checkpoint_dir) / (model_name or self.checkpoint_model_names[0])

    def checkpoint_trainer_state_path(self, checkpoint_dir: str | os.PathLike[str]) -> Path:
        """File with the progress of a checkpoint."""
        return Path(checkpoint_dir) / self.trainer_state_file_name

    def checkpoint_rng_state_path(self, checkpoint_dir: str | os.PathLike[str]) -> Path:
        """File with the random states of a checkpoint."""
        return Path(checkpoint_dir) / self.rng_state_file_name

    def is_complete_checkpoint_dir(self, checkpoint_dir: str | os.PathLike[str]) -> bool:
        """Whether a directory has everything a finished checkpoint has."""
        return self.store.is_complete(checkpoint_dir)

    def find_last_checkpoint_dir(self) -> Path | None:
        """The complete checkpoint with the highest epoch and step; ``None`` without any."""
        found = self.store.complete()
        return found[0] if found else None

    def find_best_checkpoint_dir(self) -> Path | None:
        """The complete checkpoint with the best value of ``best_metric``; ``None`` when none has one."""
        return self.store.best()

    def checkpoint_save_dir(self, epoch: int | None = None, step: int | None = None) -> AbstractContextManager[Path]:
        """Context that yields a temporary directory; it is flushed and renamed to the checkpoint's name if the block ends well.

        After an error nothing is left of it, and an older checkpoint of that name is as it was.
        """
        path = self.checkpoint_dir(epoch, step)
        numbers = parse_checkpoint_name(path.name)
        assert numbers is not None
        return self.store.saving(*numbers)

    # saving

    def save_checkpoint(self, logs: Mapping[str, Any] | None = None) -> Path | None:
        """Save the state of training; every rank has to call it, rank 0 writes.

        Args:
            logs: metrics to store with it.

        Returns:
            The directory; ``None`` when the disk refused it. With ``async_save`` it appears later.
        """
        checkpoint = self._collect_checkpoint(logs)
        epoch, step = self.cur_epoch, self.global_step
        saved = True
        if self.is_main:
            if self.async_save:
                copy = checkpoint.copy_to_host()
                self._saver.submit(lambda: self.store.save(epoch, step, lambda folder: write_checkpoint(folder, copy)))
            else:
                saved = self.store.save(epoch, step, lambda folder: write_checkpoint(folder, checkpoint))
        saved = self.distribution.broadcast_object(saved)
        self._save_schedule.done(self.global_step)
        return self.checkpoint_dir(epoch, step) if saved else None

    def wait_for_checkpoint(self) -> None:
        """Return when an asynchronous save has ended."""
        self._saver.wait()

    def model_config(self) -> dict[str, Any]:
        """Configuration of the model, as a checkpoint stores it."""
        own: dict[str, Any] = getattr(self.module, "get_config", dict)()
        # splitting parameters over ranks changes the class of the object
        return {**json.loads(json.dumps(own)), "class_name": self._model_class_name}

    def _collect_checkpoint(self, logs: Mapping[str, Any] | None) -> Checkpoint:
        ranks = self.distribution.all_gather_object(
            {"rng": collect_rng_state(self.device), "metrics": self._epoch_metrics.state_dict()}
        )
        states = {
            "lr_scheduler": self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None,
            "wd_scheduler": self.wd_scheduler.state_dict() if self.wd_scheduler is not None else None,
            "swa_scheduler": self._swa_scheduler.state_dict() if self._swa_scheduler is not None else None,
            "grad_scaler": self.precision.state_dict(),
        }
        return Checkpoint(
            self._trainer_state(logs, [rank["metrics"] for rank in ranks]),
            pack_rng_states([rank["rng"] for rank in ranks]),
            self.model_config(),
            {name: full_tensor(tensor) for name, tensor in self.module.state_dict().items()},
            self._class_names(),
            collect_optimizer_state(self.optimizer, self.module),
            {name: state for name, state in states.items() if state},
            {name: average.state_dict() for name, average in self._averages.items() if average.num_averaged},
            self._config_yaml(),
            self.checkpoint_model_names[0],
        )

    def _trainer_state(self, logs: Mapping[str, Any] | None, metrics: list[dict[str, list[float]]]) -> dict[str, Any]:
        return {
            "format": STATE_FORMAT,
            "version": __version__,
            "epoch": self.cur_epoch,
            "batch": self.cur_batch,
            "step": self.global_step,
            "logs": {key: _plain(value) for key, value in (logs or {}).items()},
            "progress": {**self._progress_state(), **self._phase_state()},
            "metrics": metrics,
            "sampler": self._position.state_dict(self.cur_batch) if self._position is not None else None,
            "world_size": self.world_size,
            "num_threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "run": self._identity(),
        }

    def _identity(self) -> dict[str, Any]:
        schedulers = {"lr_scheduler": self.lr_scheduler, "wd_scheduler": self.wd_scheduler}
        return run_identity(
            self.model_config(),
            self._class_names(),
            _family(self.optimizer),
            {key: None if part is None else type(part).__name__ for key, part in schedulers.items()},
        )

    def _class_names(self) -> list[str] | None:
        return getattr(self.module, "class_names", None)

    def _config_yaml(self) -> str | None:
        path = self.store.folder / CONFIG_YAML
        return path.read_text(encoding="utf-8") if self.is_main and path.is_file() else None

    # restoring

    def load_last_checkpoint(self) -> dict[str, Any] | None:
        """Continue from the newest checkpoint that can be read; every rank has to call it.

        Returns:
            The logs saved with it, or ``None`` when there is no checkpoint.

        Raises:
            UnreadableCheckpointError: there are checkpoints, and none can be read.
            IncompatibleCheckpointError: it belongs to another model, other classes or another optimizer; lists the differences. Another
                data set is found when :meth:`fit` begins.
        """
        self._saver.wait()
        folder = self.store.folder
        names = [p.name for p in self.store.complete()] if self.is_main else []
        names = self.distribution.broadcast_object(names)
        self._report_incomplete(names)
        for name in names:
            checkpoint = self._read_on_all_ranks(folder / name)
            if checkpoint is not None:
                return self._apply_checkpoint(checkpoint, folder / name)
        if names:
            raise UnreadableCheckpointError(
                f"no checkpoint in {folder} can be read ({', '.join(names)}); move them away to start from the beginning"
            )
        return None

    def load_checkpoint(self, epoch: int, step: int) -> dict[str, Any]:
        """Continue from the checkpoint at (epoch, step). Returns and raises as :meth:`load_last_checkpoint`.

        Raises:
            FileNotFoundError: there is no such checkpoint; names those that there are.
        """
        self._saver.wait()
        path = self.checkpoint_dir(epoch, step)
        if not self.store.is_complete(path):
            there = ", ".join(p.name for p in self.store.complete()) or "none"
            raise FileNotFoundError(f"there is no complete checkpoint {path}; complete ones: {there}")
        return self._apply_checkpoint(read_checkpoint(path, self.checkpoint_model_names[0]), path)

    def _report_incomplete(self, complete: list[str]) -> None:
        if not self.is_main or not self.store.folder.is_dir():
            return
        for path in sorted(self.store.folder.iterdir()):
            if parse_checkpoint_name(path.name) and path.name not in complete:
                logger.warning("%s is not complete and is not used", path)

    def _read_on_all_ranks(self, path: Path) -> Checkpoint | None:
        checkpoint, problem = None, None
        try:
            checkpoint = read_checkpoint(path, self.checkpoint_model_names[0])
        except UnreadableCheckpointError as error:
            problem = str(error)
        problems = [p for p in self.distribution.all_gather_object(problem) if p]
        if problems:
            if self.is_main:
                logger.warning("skipped an unreadable checkpoint, the one before is used: %s", problems[0])
            return None
        return checkpoint

    def _apply_checkpoint(self, checkpoint: Checkpoint, path: Path) -> dict[str, Any]:
        state = checkpoint.trainer_state
        self._restore_phase(state.get("progress") or {})
        checkpoint.model_state = match_weight_norm(checkpoint.model_state, self.module.state_dict())
        refuse(self._differences(checkpoint), str(path))
        load_tensors(self.module, checkpoint.model_state)
        fresh, unused = apply_optimizer_state(self.optimizer, self.module, checkpoint.optimizer)
        self.cur_epoch = int(state["epoch"])
        self.cur_batch = int(state.get("batch", 0))
        self.global_step = int(state.get("step", state.get("global_step", 0)))
        self._restore_parts(checkpoint)
        self._restore_progress(state.get("progress") or {})
        metrics = state.get("metrics") or []
        mine = metrics[self.rank : self.rank + 1] if len(metrics) == self.world_size else [merge(metrics)]
        self._epoch_metrics.load_state_dict(
            mine[0] if mine and (self.is_main or len(metrics) == self.world_size) else {}
        )
        self._sampler_state = state.get("sampler")
        self._rng_state = state_of_rank(checkpoint.rng, self.rank)
        apply_rng_state(self._rng_state, self.device)
        if self.is_main:
            self._report_restored(state, path, fresh, unused)
        self._logs = dict(state.get("logs") or {})
        return dict(self._logs)

    def _differences(self, checkpoint: Checkpoint) -> list[str]:
        run = checkpoint.trainer_state.get("run") or {}
        current = self.model_config()
        found: list[str] = []
        if "model_config_hash" in run:
            found += config_differences(checkpoint.model_config, current)
        elif checkpoint.model_config.get("class_name") != current["class_name"]:
            found.append(f"class_name: {checkpoint.model_config.get('class_name')} -> {current['class_name']}")
        found += class_differences(checkpoint.classes, self._class_names())
        found += family_differences(run, self._identity())
        if not found:
            found += optimizer_differences(checkpoint.optimizer, self.optimizer)
            optional = optional_names(self.module)
            needed = {
                n: t for n, t in self.module.state_dict().items() if n in checkpoint.model_state or n not in optional
            }
            found += tensor_differences(checkpoint.model_state, needed)
        return found

    def _restore_parts(self, checkpoint: Checkpoint) -> None:
        states = checkpoint.states
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for name, part in (("lr_scheduler", self.lr_scheduler), ("wd_scheduler", self.wd_scheduler)):
            if part is None:
                continue
            if name in states:
                part.load_state_dict(states[name])
            else:
                epoch, step = self._lr_origin if name == "lr_scheduler" else (0, 0)
                part.move_to(self.cur_epoch - epoch, self.global_step - step)
                logger.warning(
                    "the checkpoint has no state of the %s; it is put where it is after %d epochs and %d steps",
                    name,
                    self.cur_epoch,
                    self.global_step,
                )
        self.precision.load_state_dict(states.get("grad_scaler", {}))
        self._restore_averages(states, checkpoint.averages)
        if self._swa_scheduler is not None:
            # the rates are those of weight averaging now, the scheduler has just written its own
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _report_restored(self, state: Mapping[str, Any], path: Path, fresh: list[str], unused: list[str]) -> None:
        logger.info("continuing from %s (%s)", path, describe(dict(state)))
        if fresh:
            logger.info("%d parameters begin without optimizer state, for instance %s", len(fresh), fresh[0])
        if unused:
            logger.info("the optimizer state of %d parameters is not used, for instance %s", len(unused), unused[0])
        world_size = state.get("world_size", self.world_size)
        if world_size != self.world_size:
            logger.warning(
                "the run had %d ranks and has %d now: the global batches stay the same, the random numbers inside the model do not",
                world_size,
                self.world_size,
            )
        accumulated = (state.get("progress") or {}).get("grad_acc_steps", self.grad_acc_steps)
        if accumulated != self.grad_acc_steps and self.eff_batch_size is None:
            logger.warning(
                "the run had %d micro-batches in an update (grad_acc_steps) and has %d now",
                accumulated,
                self.grad_acc_steps,
            )
        threads = state.get("num_threads", torch.get_num_threads())
        if threads != torch.get_num_threads():
            logger.warning(
                "the run had %d threads a process and has %d now: sums are rounded in another order, results differ in the last bits "
                "(set OMP_NUM_THREADS=%d for the same)",
                threads,
                torch.get_num_threads(),
                threads,
            )
        if "torch" in state and state["torch"] != torch.__version__:
            logger.warning("the run had torch %s and has %s now: results can differ", state["torch"], torch.__version__)


@torch.no_grad()
def load_tensors(model: nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Copy ``saved`` into the tensors of ``model``, which may be split over ranks; tied names are stored once."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in saved:
            tensor.data.copy_(like_parameter(saved[name].to(tensor.device, tensor.dtype), tensor))


def _family(optimizer: torch.optim.Optimizer) -> str:
    inner = getattr(optimizer, "optim", optimizer)
    return type(inner).__name__


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
