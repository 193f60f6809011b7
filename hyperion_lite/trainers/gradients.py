"""Between backward and optimizer step: clipping, and what to do about losses and gradients that are not finite."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from hyperion_lite.core.errors import HyperionLiteError
from hyperion_lite.trainers.distribution import full_tensor

logger = logging.getLogger(__name__)


class NonFiniteLossError(HyperionLiteError, ArithmeticError):
    """Too many updates of an epoch had to be skipped because the loss or its gradient was NaN or infinite."""


def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, norm_type: float | str = 2.0
) -> torch.Tensor | None:
    """Scale all gradients so that their joint norm is at most ``max_norm``.

    Args:
        parameters: whose gradients are scaled; those without are passed over.
        max_norm: 0 or less for no clipping.
        norm_type: order of the norm, ``"inf"`` for the largest absolute value.

    Returns:
        The norm before clipping, ``None`` without clipping.
    """
    if max_norm <= 0:
        return None
    norm = nn.utils.clip_grad_norm_(list(parameters), max_norm, norm_type=float(norm_type))
    return full_tensor(norm)


def missing_gradients(model: nn.Module) -> list[str]:
    """Names of trainable parameters that the backward pass did not reach."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


class BufferSnapshot:
    """Copies of the buffers that a forward pass can change, to be put back when a batch turns out to be bad."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [b for b in model.buffers() if b.numel() and b.device.type != "meta"]
        self._copies = [b.detach().clone() for b in self._buffers]

    @torch.no_grad()
    def take(self) -> None:
        """Remember the present values."""
        for copy, buffer in zip(self._copies, self._buffers, strict=True):
            copy.copy_(buffer)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the remembered values back."""
        for copy, buffer in zip(self._copies, self._buffers, strict=True):
            buffer.copy_(copy)


class BadBatchCounter:
    """Counts skipped updates of an epoch and ends training when there are too many.

    Args:
        limit: number of skipped updates that an epoch may have.

    Attributes:
        count: of the present epoch.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def add(self, what: str, ids: Sequence[str], epoch: int, step: int) -> None:
        """Count an update that was skipped because ``what`` was not finite.

        Args:
            what: the quantity.
            ids: of the items of the batches on the ranks where it happened.
            epoch: the present epoch.
            step: optimizer steps so far.

        Raises:
            NonFiniteLossError: more than ``limit`` in this epoch.
        """
        self.count += 1
        shown = ", ".join(ids[:20]) + (f" and {len(ids) - 20} more" if len(ids) > 20 else "")
        where = f"epoch {epoch}, after step {step}, items: {shown or 'unknown'}"
        if self.count > self.limit:
            raise NonFiniteLossError(
                f"{what} was NaN or infinite in {self.count} updates of one epoch, more than the {self.limit} that max_bad_steps "
                f"allows; last: {where}. Look at these items, lower the learning rate, or use grad_clip"
            )
        logger.warning("%s is NaN or infinite, the update is skipped (%d in this epoch): %s", what, self.count, where)
