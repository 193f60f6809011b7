"""Leaving automatic mixed precision for arithmetic that needs float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_disabled(x: torch.Tensor) -> AbstractContextManager[object]:
    """Context in which operations on the device type of ``x`` keep the dtype of their operands."""
    device_type = x.device.type
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type=device_type, enabled=False)


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """``x`` in float32, or float64 when it is in that already."""
    return x if x.dtype == torch.float64 else x.float()
