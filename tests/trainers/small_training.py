"""A small model, a task trainer for it, and data, for tests of the training loop."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hyperion_lite.layers.batch_norm import BatchNorm1d
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.trainers.torch_trainer_base import TorchTrainerBase

NUM_CLASSES = 3
FEATS = 6


class SmallClassifier(HyperTorchModel):
    """Frames (batch, 6, time) to logits: two layers with optional batch norm and dropout, mean over time, output."""

    valid_train_modes = ("full", "frozen", "ft-out")

    def __init__(
        self, hid_dim: int = 8, num_classes: int = NUM_CLASSES, use_norm: bool = True, dropout_rate: float = 0.2
    ) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(FEATS, hid_dim), nn.Linear(hid_dim, hid_dim)])
        self.norm = BatchNorm1d(hid_dim) if use_norm else None
        self.dropout = nn.Dropout(dropout_rate)
        self.out = nn.Linear(hid_dim, num_classes)

    def frozen_modules(self, mode: str) -> list[nn.Module]:
        if mode == "ft-out":
            return [self.body] + ([self.norm] if self.norm is not None else [])
        return super().frozen_modules(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.mean(-1)
        for layer in self.body:
            h = torch.tanh(layer(h))
        if self.norm is not None:
            h = self.norm(h)
        return self.out(self.dropout(h))


class SmallTrainer(TorchTrainerBase):
    """Batches: ``x`` (batch, 6, time) float, ``y`` (batch,) int64, ``id`` list. Metrics: ``acc``."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        options.setdefault("input_key", "x")
        options.setdefault("loggers", RecordingLogger())
        super().__init__(model, **options)

    def compute_loss(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        logits = self.model(batch["x"])
        return F.cross_entropy(logits.float() if logits.dtype != torch.float64 else logits, batch["y"]), {
            "acc": (logits.argmax(1) == batch["y"]).double().mean()
        }


class RecordingLogger:
    """Keeps what a trainer tells its loggers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.events.append((name, args[0] if args else kwargs))

    def named(self, name: str) -> list[Any]:
        return [value for event, value in self.events if event == name]


class Batches:
    """Fixed batches with an epoch; an epoch is a rotation of the items, so that epochs differ."""

    def __init__(
        self, num_items: int = 20, batch_size: int = 4, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.y = torch.arange(num_items) % NUM_CLASSES
        noise = torch.randn(num_items, FEATS, 5, generator=generator, dtype=torch.float64)
        self.x = (noise + 2.0 * F.one_hot(self.y, FEATS)[:, :, None]).to(dtype)
        self.batch_size = batch_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.y) // self.batch_size)

    def items(self, index: torch.Tensor) -> dict[str, Any]:
        return {"x": self.x[index], "y": self.y[index], "id": [f"seg{int(i)}" for i in index]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        order = torch.roll(torch.arange(len(self.y)), 3 * self.epoch)
        for index in order.split(self.batch_size):
            yield self.items(index)


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def adam(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01)


def make_trainer(
    path: Any,
    seed: int = 0,
    model: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    cls: type[SmallTrainer] | None = None,
    **options: Any,
) -> SmallTrainer:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    network = SmallClassifier(**(model or {})).to(dtype)
    options.setdefault("optim", adam)
    options.setdefault("num_epochs", 2)
    return (cls or SmallTrainer)(network, exp_path=str(path), device="cpu", **options)


def assert_same_state(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name
