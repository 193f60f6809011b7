"""What a waveform model accepts as input, brought to one form."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch

from hyperion_lite.core.errors import LengthsError
from hyperion_lite.core.padding import Padding

logger = logging.getLogger(__name__)

Waveforms = torch.Tensor | Sequence[torch.Tensor]
"""(batch, num_samples) or (batch, channels, num_samples), or a list of 1-D tensors of unequal length."""


def prepare_waveforms(
    x: Waveforms, x_lengths: torch.Tensor | None, channel_policy: str | int = "error"
) -> tuple[torch.Tensor, Padding | None]:
    """Check a batch of waveforms and bring it to (batch, num_samples) with zeros in the padding.

    Args:
        x: floating-point waveforms in [-1, 1]; see :data:`Waveforms`.
        x_lengths: (batch,) valid samples before right padding, or a (batch, num_samples) bool mask, True = valid.
        channel_policy: what to do with several channels: ``"error"``, ``"mean"``, or the index of the channel to take. One channel is
            squeezed whatever the policy.

    Raises:
        ValueError: wrong type, shape or dtype; lengths that do not fit; several channels and no policy.
        RuntimeError: lengths on another device than ``x``.
    """
    if not isinstance(x, torch.Tensor):
        x, x_lengths = _pad_list(x, x_lengths)
    if not x.is_floating_point():
        raise ValueError(
            f"waveforms must be floating point in [-1, 1], got {x.dtype}; convert integer PCM first, "
            "for 16 bits: x.float() / 32768"
        )
    if x.dim() == 3:
        x = _one_channel(x, channel_policy)
    if x.dim() != 2:
        raise ValueError(
            f"waveforms must have shape (batch, num_samples) or (batch, channels, num_samples), got {tuple(x.shape)}; "
            "a single waveform needs a batch axis: x[None]"
        )
    if x.size(0) == 0 or x.size(1) == 0:
        raise ValueError(f"an empty batch of waveforms was given: shape {tuple(x.shape)}")
    padding = Padding.from_lengths(x_lengths, x.size(0), x.size(1), "x_lengths", x.device)
    return (x if padding is None else padding.fill(x)), padding


def _pad_list(x: Sequence[torch.Tensor], x_lengths: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    if x_lengths is not None:
        raise LengthsError("x_lengths belong to a padded batch; a list of waveforms has its lengths already")
    items = list(x)
    if not items:
        raise ValueError("an empty list of waveforms was given")
    for index, item in enumerate(items):
        if not isinstance(item, torch.Tensor) or item.dim() != 1 or item.numel() == 0:
            what = tuple(item.shape) if isinstance(item, torch.Tensor) else type(item).__name__
            raise ValueError(f"item {index} of the list must be a non-empty 1-D tensor (num_samples,), got {what}")
    lengths = torch.tensor([item.numel() for item in items], device=items[0].device)
    return torch.nn.utils.rnn.pad_sequence(items, batch_first=True), lengths


def _one_channel(x: torch.Tensor, policy: str | int) -> torch.Tensor:
    channels = x.size(1)
    if channels == 1:
        return x[:, 0]
    if policy == "mean":
        return x.mean(dim=1)
    if isinstance(policy, int) and not isinstance(policy, bool):
        if not 0 <= policy < channels:
            raise ValueError(f"channel_policy takes channel {policy}, but the waveforms have {channels} channels")
        return x[:, policy]
    raise ValueError(
        f"the waveforms have {channels} channels and the model's channel_policy is {policy!r}; mix them down, or set channel_policy to "
        "'mean' or to a channel index"
    )


def warn_about_signal(x: torch.Tensor) -> None:
    """Log the items of ``x`` (batch, num_samples; zeros in the padding) that hold no signal at all, or NaN or infinity."""
    with torch.no_grad():
        peaks = x.abs().amax(dim=-1).tolist()
    silent = [index for index, peak in enumerate(peaks) if peak == 0]
    if silent:
        logger.warning("items %s of the batch are silent: their embeddings mean nothing", silent)
    broken = [index for index, peak in enumerate(peaks) if not math.isfinite(peak)]
    if broken:
        logger.warning(
            "items %s of the batch hold NaN or infinity among their valid samples: so will their embeddings", broken
        )
