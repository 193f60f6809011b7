"""Writes a model file, loads it with the package, and measures how far the package is from the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hyperion_lite import HyperTorchModel
from tests.reference.model import run
from tests.reference.tensors import Tensors

TOLERANCE = 1e-5


def distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference, in units of the largest expected value where that is above 1."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    error = (found.double() - expected.double()).abs().max().item() / max(1.0, expected.abs().max().item())
    return error if error == error else float("inf")


def tensors_for(config: dict[str, Any], x: Tensor, seed: int, rules: str = "legacy") -> Tensors:
    """Random tensors with the names and shapes that the configuration asks for."""
    tensors = Tensors(seed=seed)
    with torch.no_grad():
        run(tensors, x, config, rules)
    return tensors


def agree(model: HyperTorchModel, config: dict[str, Any], tensors: Tensors, x: Tensor, rules: str = "legacy") -> None:
    """Every embedding layer and the logits. Where rounding to float32 spoils the reference itself, float64 decides.

    ``model`` may be cast to float64.
    """
    with torch.no_grad():
        embeddings, logits = run(Tensors(tensors.table, dtype=torch.float64), x, config, rules)
        rounded, rounded_logits = run(Tensors(tensors.table), x, config, rules)
        expected = [*embeddings, logits]
        rounding = max(distance(r, e) for r, e in zip([*rounded, rounded_logits], expected, strict=True))
        if rounding <= TOLERANCE / 5:
            compare(model, x, expected, TOLERANCE)
        else:
            compare(model.double(), x.double(), expected, 1e-8)


def compare(model: HyperTorchModel, x: Tensor, expected: list[Tensor], tolerance: float) -> None:
    *embeddings, logits = expected
    errors = [distance(model.extract_embed(x, embed_layer=i), e) for i, e in enumerate(embeddings)]
    errors.append(distance(model(x), logits))
    assert max(errors) <= tolerance, f"errors by embedding layer, then of the logits: {errors}"


def save(path: Path, config: Any, state: dict[str, Tensor], **more: Any) -> Path:
    torch.save({"model_cfg": config, "model_state_dict": state, **more}, path)
    return path
