"""Where a reference function gets its tensors from: a stored state dict, or random numbers drawn as the names are asked for."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor


class Tensors:
    """A flat table of named tensors; with ``seed`` it draws what is missing, without it a missing name is an error."""

    def __init__(
        self, stored: dict[str, Tensor] | None = None, seed: int | None = None, dtype: torch.dtype = torch.float32
    ):
        self.table: OrderedDict[str, Tensor] = OrderedDict(stored or {})
        self.asked: set[str] = set()
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def get(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        if name not in self.table and self.generator is not None:
            self.table[name] = self._draw(shape, kind)
        value = self.table[name]
        assert tuple(value.shape) == shape, f"{name}: stored {tuple(value.shape)}, specified {shape}"
        self.asked.add(name)
        return value.to(self.dtype) if value.is_floating_point() else value

    def put(self, name: str, value: Tensor) -> None:
        """Stores a computed table (a window, a filter bank) unless the file already has it."""
        self.table.setdefault(name, value)

    def unused(self) -> set[str]:
        return set(self.table) - self.asked

    def _draw(self, shape: tuple[int, ...], kind: str) -> Tensor:
        normal = torch.randn(shape, generator=self.generator)
        uniform = torch.rand(shape, generator=self.generator)
        if kind == "scale":
            return 0.6 + 0.9 * uniform
        if kind == "variance":
            return 0.5 + 1.5 * uniform
        if kind == "shift":
            return 0.3 * normal
        if kind == "counts":
            return (5 * uniform).floor()
        if kind == "steps":
            return torch.tensor(7)
        fan_in = max(1, normal[0].numel()) if len(shape) > 1 else 1
        return normal * 1.3 / fan_in**0.5


class Scope:
    """A prefix in a table of tensors."""

    def __init__(self, tensors: Tensors, prefix: str = ""):
        self.tensors, self.prefix = tensors, prefix

    def __truediv__(self, name: str | int) -> Scope:
        return Scope(self.tensors, f"{self.prefix}{name}.")

    def __call__(self, name: str, *shape: int, kind: str = "weight") -> Tensor:
        return self.tensors.get(self.prefix + name, shape, kind)

    def put(self, name: str, value: Tensor) -> Tensor:
        self.tensors.put(self.prefix + name, value)
        return self(name, *value.shape)

    def has(self, name: str) -> bool:
        return self.prefix + name in self.tensors.table
