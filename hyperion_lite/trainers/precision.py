"""Mixed precision: which dtype the forward pass computes in, and loss scaling where that dtype needs it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal

import torch

from hyperion_lite.core.errors import ConfigError

AMPDType = Literal["float16", "bfloat16"]
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Precision:
    """Autocast and gradient scaler of a device.

    Args:
        device: where the model is.
        use_amp: mixed precision; without it everything here does nothing.
        amp_dtype: ``float16`` scales the loss, ``bfloat16`` does not need it.

    Raises:
        ConfigError: an unknown dtype.
    """

    def __init__(self, device: torch.device, use_amp: bool = False, amp_dtype: AMPDType = "float16") -> None:
        if amp_dtype not in _DTYPES:
            raise ConfigError(f"amp_dtype must be one of {', '.join(_DTYPES)}, got {amp_dtype!r}")
        self.device = device
        self.enabled = use_amp
        self.dtype = _DTYPES[amp_dtype]
        self.scaler = torch.amp.GradScaler(device.type, enabled=use_amp and self.dtype is torch.float16)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of a forward pass and its loss."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.enabled)

    def backward(self, loss: torch.Tensor) -> None:
        """Backward pass of the scaled loss."""
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients back to their own scale, once before they are looked at."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer and adapt the scale.

        Returns:
            Whether the parameters were updated: not when the scaler found infinite gradients.
        """
        if not self.scaler.is_enabled():
            optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def state_dict(self) -> dict[str, Any]:
        """Scale and growth tracker; empty without a scaler."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scale; a state of a run without a scaler, or for one without, is left aside."""
        if state and self.scaler.is_enabled():
            self.scaler.load_state_dict(state)
