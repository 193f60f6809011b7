"""A limit on what a configuration may allocate, for configurations out of files that nobody vouches for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hyperion_lite.core.errors import ModelFileError

_SIZED = frozenset({torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full})
_RANGES = frozenset({torch.arange, torch.linspace, torch.eye})

_SPARE_ELEMENTS = 64_000_000
_SPARE_CALLS = 4_000


class AllocationBudget(TorchFunctionMode):
    """While it is active, tensors may be made only up to a budget.

    A model file states layer sizes and has the tensors of those layers. A model that needs many times the elements of the file cannot
    fit it, and building it could take all memory, or for ever, before that is noticed.

    Args:
        state: the tensors that the model is to take.
        source: the file, for the message.
    """

    def __init__(self, state: Iterable[torch.Tensor], source: object) -> None:
        super().__init__()
        sizes = [tensor.numel() for tensor in state]
        self._elements = float(4 * sum(sizes) + _SPARE_ELEMENTS)
        self._calls = 20 * len(sizes) + _SPARE_CALLS
        self._source = source

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SIZED or func in _RANGES:
            self._spend(_requested(func, args, kwargs))
        return func(*args, **kwargs)

    def _spend(self, elements: float) -> None:
        self._elements -= elements
        self._calls -= 1
        if self._elements < 0 or self._calls < 0:
            raise ModelFileError(
                f"{self._source}: its configuration describes a model that is many times larger than the tensors it holds"
            )


def _requested(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """Elements that a call of a factory function will make."""
    numbers = [float(a) for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    if func is torch.arange:
        start, end, step = [0.0, *numbers, 1.0][:3] if len(numbers) == 1 else [*numbers, 1.0, 1.0][:3]
        return abs(end - start) / abs(step) if step else 0.0
    if func is torch.linspace:
        return float(kwargs.get("steps", numbers[2] if len(numbers) > 2 else 0))
    if func is torch.eye:
        return numbers[0] * (numbers[1] if len(numbers) > 1 else numbers[0]) if numbers else 0.0
    shape = kwargs.get("size", args[0] if args and isinstance(args[0], (tuple, list, torch.Size)) else numbers)
    return float(math.prod(float(size) for size in shape))
