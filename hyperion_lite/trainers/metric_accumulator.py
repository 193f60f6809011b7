"""Averages of metrics over items, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

State = dict[str, list[float]]


class MetricAccumulator:
    """Weighted sums of metrics; the weights are numbers of items.

    Tensors are summed where they are, in float64 where the device has it, so that nothing waits until the averages are asked for.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._weights: dict[str, float] = {}

    def update(self, metrics: Mapping[str, Any], num_items: int) -> None:
        """Add the ``metrics`` of a batch: averages over its ``num_items`` items, numbers or tensors without axes."""
        if num_items <= 0:
            return
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor):
                wide = torch.float32 if value.device.type == "mps" else torch.float64
                value = value.detach().to(wide)
            self._sums[name] = self._sums.get(name, 0.0) + value * num_items
            self._weights[name] = self._weights.get(name, 0.0) + num_items

    def state_dict(self) -> State:
        """Name -> [sum, weight], plain numbers."""
        return {name: [float(total), self._weights[name]] for name, total in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._sums = {name: float(pair[0]) for name, pair in state.items()}
        self._weights = {name: float(pair[1]) for name, pair in state.items()}

    def reset(self) -> None:
        """Forget everything."""
        self._sums.clear()
        self._weights.clear()

    def averages(self) -> dict[str, float]:
        """Name -> average over the items seen by this process."""
        return averages(self.state_dict())


def merge(states: Iterable[Mapping[str, Any]]) -> State:
    """The sums of several processes, in their order, which fixes the rounding."""
    merged: State = {}
    for state in states:
        for name, (total, weight) in state.items():
            pair = merged.setdefault(name, [0.0, 0.0])
            pair[0] += total
            pair[1] += weight
    return merged


def averages(state: Mapping[str, Any]) -> dict[str, float]:
    """Name -> average of a state."""
    return {name: total / weight for name, (total, weight) in state.items() if weight}
