"""torch 2.6 refuses older checkpoints: their configuration holds enums, numpy scalars and namespaces, which its safe mode knows not.

Right: they load, with every such object as the plain value it stands for, and without switching any safety off: nothing in the
file is executed.
"""

from __future__ import annotations

import argparse
import enum
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hyperion_lite import HyperTorchModel
from tests.models.small_models import build, make_item


@pytest.fixture
def old_module(monkeypatch) -> types.ModuleType:
    """The module that the toolkit had when the file was written."""
    names = ["hyperion", "hyperion.torch", "hyperion.torch.defs"]
    modules = [types.ModuleType(name) for name in names]
    for name, module in zip(names, modules, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    kind = enum.Enum("PoolType", {"ATT": "ch-wise-att-mean+stddev"}, type=str, module=names[-1])
    modules[-1].PoolType = kind
    return modules[-1]


def test_they_load_as_plain_values(tmp_path, monkeypatch, old_module) -> None:
    model = build("wav2-ecapa")
    config = model.get_config()
    old: dict[str, Any] = {**config, "xvector": argparse.Namespace(**config["xvector"])}
    old["xvector"].embed_dim = np.int64(12)
    old["xvector"].margin = np.float32(0.25)
    old["xvector"].pool_net = {**config["xvector"]["pool_net"], "pool_type": old_module.PoolType.ATT}
    content = {
        "model_cfg": old,
        "model_state_dict": model.state_dict(),
        "batch_metrics": {"loss": np.float64(1.5)},
        "save_dir": Path("/exp/xvector"),
    }
    torch.save(content, tmp_path / "old.pth")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "old.pth", weights_only=True)

    for name in ("hyperion.torch.defs", "hyperion.torch", "hyperion"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(torch, "load", None)
    loaded = HyperTorchModel.auto_load(tmp_path / "old.pth")
    expected = {**config, "xvector": {**config["xvector"], "margin": 0.25}}
    assert loaded.get_config() == expected
    x = make_item(model, 8000)[None]
    with torch.inference_mode():
        assert torch.equal(loaded.extract_embed(x), model.extract_embed(x))
