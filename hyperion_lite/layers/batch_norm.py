"""Batch normalisation over the valid positions of a padded batch, and of all ranks.

One class for every case: ``torch.nn.BatchNorm*`` to the bit when nothing is padded and training is not distributed; statistics over
valid positions otherwise; statistics over all ranks in distributed training, on any device (torch's own synchronised layer refuses
CPU tensors, and knows no padding).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from hyperion_lite.core.padding import Padding


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _combine_ranks(
    count: torch.Tensor, mean: torch.Tensor, m2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count, mean and sum of squared deviations of the union of what the ranks hold.

    The sums are taken around each rank's own mean and combined by the parallel-variance rule, because a difference of large sums of
    squares loses all digits when the mean is far from zero. Each rank fills its row of a table of zeros, so one all-reduce is enough
    and every rank computes with the same numbers in the same order.
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    num = mean.numel()
    table = mean.new_zeros(world, 2 * num + 1)
    table[rank] = torch.cat([mean, m2, count.reshape(1)])
    dist.all_reduce(table)
    means, m2s, counts = table[:, :num], table[:, num:-1], table[:, -1:]
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    return total, mean, (m2s + counts * (means - mean) ** 2).sum(0)


class _BatchStatsNorm(torch.autograd.Function):
    """Normalise by the statistics of the valid positions of all ranks; outputs (y, mean, biased variance, count)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mask: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        dims = [0, *range(2, x.dim())]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        wide = _wide(x, mask)
        positions = x.numel() // x.size(1)
        if mask is None:
            count = torch.tensor(positions, dtype=wide.dtype, device=x.device)
        else:
            count = (mask.sum() * (positions // mask.numel())).to(wide.dtype)
        mean = wide.sum(dims) / count
        deviation = wide - mean.view(shape)
        if mask is not None:
            deviation = torch.where(mask, deviation, 0.0)
        m2 = deviation.square().sum(dims)
        if _world_size() > 1:
            count, mean, m2 = _combine_ranks(count, mean, m2)
            deviation = wide - mean.view(shape)
        var = m2 / count
        inv_std = torch.rsqrt(var + eps)
        scale = inv_std if weight is None else inv_std * weight
        y = deviation * scale.view(shape)
        if bias is not None:
            y = y + bias.view(shape)
        ctx.save_for_backward(x, weight, bias, mask, mean, inv_std, count)
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, mask, mean, inv_std, count = ctx.saved_tensors
        dims = [0, *range(2, x.dim())]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        grad = _wide(grad, mask)
        x_hat = (_wide(x, mask) - mean.view(shape)) * inv_std.view(shape)
        sums = torch.stack([grad.sum(dims), (grad * x_hat).sum(dims)])
        # parameters get this rank's part, as every other layer's do; the input depends on the statistics of all ranks
        grad_weight = None if weight is None else sums[1].to(weight.dtype)
        grad_bias = None if bias is None else sums[0].to(bias.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            if _world_size() > 1:
                sums = sums.clone()
                dist.all_reduce(sums)
            mean_grad, mean_grad_x_hat = (sums / count).unbind(0)
            scale = inv_std if weight is None else inv_std * weight
            grad_x = (grad - mean_grad.view(shape) - x_hat * mean_grad_x_hat.view(shape)) * scale.view(shape)
            if mask is not None:
                grad_x = torch.where(mask, grad_x, 0.0)
            grad_x = grad_x.to(x.dtype)
        return grad_x, grad_weight, grad_bias, None, None


def _wide(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """``x`` in at least float32, with zeros at the padded positions."""
    wide = x if x.dtype == torch.float64 else x.float()
    return wide if mask is None else torch.where(mask, wide, 0.0)


class _PaddedBatchNorm(_BatchNorm):
    """Batch normalisation with an optional :class:`~hyperion_lite.core.padding.Padding`.

    Parameters and buffers have the names of the torch layers: ``weight``, ``bias``, ``running_mean``, ``running_var``,
    ``num_batches_tracked`` (a state without the last one loads).

    In ``train()``: normalises with the mean and biased variance of the valid positions, of all ranks when ``torch.distributed`` has
    more than one (every rank then takes part in one all-reduce forward and one backward, padded or not); ``running_var`` is updated
    with the unbiased variance. A single valid position has variance zero, gives ``bias`` and leaves finite buffers.
    In ``eval()``: running statistics; padded positions are left as they come out.
    """

    # files written before torch had this counter lack it
    optional_state_keys = ("num_batches_tracked",)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:  # type: ignore[override]
        """Normalise each channel.

        Args:
            x: (batch, channels), (batch, channels, time) or (batch, channels, freq, time), any floating dtype.
            padding: valid positions of the last axis; ``None`` when all are.

        Returns:
            A tensor like ``x``. In training the padded positions of the result are finite whatever ``x`` holds there, and no gradient
            comes from them.
        """
        self._check_input_dim(x)
        batch_stats = self.training or self.running_mean is None
        if not batch_stats:
            if padding is not None and torch.is_grad_enabled():
                # the gradient of weight sums over all positions, and 0 * NaN is NaN
                x = padding.fill(x)
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

        factor = self._count_batch()
        if padding is None and _world_size() == 1 and x.numel() > x.size(1):
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, factor, self.eps)
        mask = None if padding is None else padding.mask_like(x)
        y, mean, var, count = _BatchStatsNorm.apply(x, self.weight, self.bias, mask, self.eps)
        self._update_running(mean, var, count, factor)
        return y

    def _count_batch(self) -> float:
        """Count this batch; returns the weight that it gets in the running statistics."""
        if not (self.training and self.track_running_stats) or self.num_batches_tracked is None:
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    @torch.no_grad()
    def _update_running(self, mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor, factor: float) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        unbiased = var * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        key = f"{prefix}num_batches_tracked"
        if self.num_batches_tracked is not None and key not in state_dict:
            state_dict[key] = torch.zeros_like(self.num_batches_tracked, device="cpu")
        super()._load_from_state_dict(state_dict, prefix, *args)


class BatchNorm1d(_PaddedBatchNorm, nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` for padded batches: (batch, channels) or (batch, channels, time). See the base class."""


class BatchNorm2d(_PaddedBatchNorm, nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` for padded batches: (batch, channels, freq, time). See the base class."""
