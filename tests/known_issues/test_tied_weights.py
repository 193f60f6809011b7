"""A model with tied weights could not be saved: the format refuses tensors that share memory.

Right: the tensor is stored once, and is one tensor again after loading.
"""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from torch import nn

from hyperion_lite import HyperTorchModel


class TiedAutoencoder(HyperTorchModel):
    """A decoder with the weight of the encoder."""

    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.encoder = nn.Linear(size, size)
        self.decoder = nn.Linear(size, size, bias=False)
        self.decoder.weight = self.encoder.weight


@pytest.mark.parametrize("form", ["m", "m.pth"])
def test_stored_once_and_tied_again(tmp_path, form: str) -> None:
    model = TiedAutoencoder()
    model.save(tmp_path / form)
    loaded = HyperTorchModel.auto_load(tmp_path / form)
    assert loaded.decoder.weight is loaded.encoder.weight
    assert torch.equal(loaded.decoder.weight, model.decoder.weight)
    loaded.encoder(torch.ones(1, 5)).sum().backward()
    assert loaded.decoder.weight.grad is loaded.encoder.weight.grad is not None
    if form == "m":
        with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
            assert sorted(file.keys()) == ["encoder.bias", "encoder.weight"] or sorted(file.keys()) == [
                "decoder.weight",
                "encoder.bias",
            ]
