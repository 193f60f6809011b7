"""One optimizer step, in the prescribed order.

For each micro-batch: forward under autocast; loss times the micro-batch's share of the update; backward of the scaled loss, without
exchange of gradients until the last one. Then: check that the losses are finite; unscale; clip; optimizer step; scaler update. Schedulers
and averages follow only where the parameters were really updated, which is up to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.trainers.accumulation import MicroBatch
from hyperion_lite.trainers.batch_device import batch_ids, to_device
from hyperion_lite.trainers.distribution import Distribution
from hyperion_lite.trainers.gradients import BufferSnapshot, clip_gradients, missing_gradients
from hyperion_lite.trainers.precision import Precision

ComputeLoss = Callable[[Any], tuple[torch.Tensor, Mapping[str, Any]]]


@dataclass
class UpdateOutcome:
    """What an update did.

    Attributes:
        updated: whether the parameters changed.
        metrics: of each micro-batch, with its number of items; empty when the update was skipped for a bad loss or gradient.
        bad: what was not finite, or ``None``.
        bad_ids: ids of the items, on all ranks, whose loss was not finite.
        grad_norm: norm of the gradient before clipping, where it is clipped.
        flags: what was polled, agreed by all ranks.
    """

    updated: bool
    metrics: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    bad: str | None = None
    bad_ids: list[str] = field(default_factory=list)
    grad_norm: float | None = None
    flags: list[bool] = field(default_factory=list)


class UpdateStep:
    """Runs updates of a model.

    Args:
        model: the bare model.
        wrapped: what is called in the forward pass.
        optimizer: of the model's trainable parameters.
        precision: autocast and scaler.
        distribution: the ranks.
        compute_loss: batch on the device -> (loss averaged over the items of the batch, metrics).
        grad_clip: largest norm of the gradient, 0 or less for no clipping.
        grad_clip_norm: order of that norm.
        id_key: entry of a batch with the ids, for messages.
    """

    def __init__(
        self,
        model: nn.Module,
        wrapped: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        distribution: Distribution,
        compute_loss: ComputeLoss,
        grad_clip: float = 0.0,
        grad_clip_norm: float | str = 2.0,
        id_key: str = "id",
    ) -> None:
        self.model = model
        self.wrapped = wrapped
        self.optimizer = optimizer
        self.precision = precision
        self.distribution = distribution
        self.compute_loss = compute_loss
        self.grad_clip = grad_clip
        self.grad_clip_norm = grad_clip_norm
        self.id_key = id_key
        self._buffers = BufferSnapshot(model)

    def run(self, micro_batches: Sequence[MicroBatch], poll: Callable[[], list[bool]] = list) -> UpdateOutcome:
        """Make one update.

        Args:
            micro_batches: of this rank; every rank gives the same number.
            poll: flags of this rank, asked once the gradients are there.

        Raises:
            ConfigError: with several ranks, parameters that no gradient reaches; names them.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self.distribution.sync_buffers(self.model)
        self._buffers.take()
        losses: list[torch.Tensor] = []
        metrics: list[tuple[dict[str, Any], int]] = []
        for micro in micro_batches:
            loss, batch_metrics = self._forward_backward(micro)
            losses.append(loss)
            metrics.append(({"loss": loss, **batch_metrics}, micro.num_items))
        self._check_reached()

        finite = torch.stack(losses).isfinite().tolist()
        bad, *flags = self.distribution.any_of(not all(finite), *poll())
        if bad:
            return self._skip("the loss", self._ids(micro_batches, finite), flags)

        self.precision.unscale(self.optimizer)
        norm = clip_gradients(self.model.parameters(), self.grad_clip, self.grad_clip_norm)
        grad_norm = None if norm is None else float(norm)
        if grad_norm is not None and not math.isfinite(grad_norm) and not self.precision.scaler.is_enabled():
            return self._skip("the gradient", self._ids(micro_batches, [False] * len(finite)), flags)
        updated = self.precision.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        return UpdateOutcome(updated, metrics, grad_norm=grad_norm, flags=flags)

    def _forward_backward(self, micro: MicroBatch) -> tuple[torch.Tensor, dict[str, Any]]:
        data = to_device(micro.data, self.distribution.device)
        with self.distribution.accumulating(self.wrapped, micro.last):
            with self.precision.autocast():
                loss, metrics = self.compute_loss(data)
            self.precision.backward(loss * micro.share)
        detached = {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in metrics.items()}
        return loss.detach(), detached

    def _check_reached(self) -> None:
        if self.distribution.world_size == 1:
            return
        missing = missing_gradients(self.model)
        if missing:
            shown = ", ".join(missing[:20])
            raise ConfigError(
                f"{len(missing)} trainable parameters got no gradient: {shown}. With several ranks every parameter has to take part in "
                "the loss; freeze these (train_mode, or requires_grad_(False))"
            )

    def _skip(self, what: str, ids: list[str], flags: list[bool]) -> UpdateOutcome:
        """Undo what the forward passes left behind: gradients, and batch statistics that may hold NaN."""
        self.optimizer.zero_grad(set_to_none=True)
        self._buffers.restore()
        return UpdateOutcome(False, bad=what, bad_ids=ids, flags=flags)

    def _ids(self, micro_batches: Sequence[MicroBatch], finite: Sequence[bool]) -> list[str]:
        mine: list[str] = []
        for micro, good in zip(micro_batches, finite, strict=True):
            mine += [] if good else batch_ids(micro.data, self.id_key)
        return [i for ids in self.distribution.all_gather_object(mine) for i in ids]
