"""Parts of a network that do not learn: no gradient, no dropout, no moving statistics."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

_M = TypeVar("_M", bound="Freezable")


class Freezable(nn.Module):
    """A module that can be frozen as a whole and stays frozen when a parent is switched to training."""

    def __init__(self) -> None:
        super().__init__()
        self._is_frozen = False
        # what train() asked for last, which a frozen module does not follow
        self._asked_training = True

    @property
    def is_frozen(self) -> bool:
        """Whether :meth:`freeze` holds."""
        return self._is_frozen

    def freeze(self: _M) -> _M:
        """No gradients for any parameter, and evaluation behaviour whatever ``train()`` says, so that buffers never move."""
        asked = self._asked_training
        self._is_frozen = True
        self.requires_grad_(False)
        self.train(False)
        self._asked_training = asked
        return self

    def unfreeze(self: _M) -> _M:
        """Undo :meth:`freeze` for this module and its parts, which do again what ``train()`` or ``eval()`` asked for last."""
        for module in self.modules():
            if isinstance(module, Freezable):
                module._is_frozen = False
        self.requires_grad_(True)
        return self.train(self._asked_training)

    def train(self: _M, mode: bool = True) -> _M:
        """As in torch, but a frozen module stays in evaluation mode. Returns itself."""
        self._asked_training = mode
        return super().train(mode and not self._is_frozen)
