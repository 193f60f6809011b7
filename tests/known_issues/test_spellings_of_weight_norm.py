"""``weight_g`` and ``weight_v`` in the file, ``parametrizations.weight.original0/1`` in the model: "newly initialised".

Right: each spelling loads into the other, with nothing missing, and a file with both read by the tensor reader gives one weight.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from hyperion_lite import HyperTorchModel
from hyperion_lite.pth import fuse_weight_norm, open_pth


class WeightNormed(HyperTorchModel):
    """One weight-normed layer in either spelling."""

    def __init__(self, old: bool = False) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            norm = torch.nn.utils.weight_norm if old else torch.nn.utils.parametrizations.weight_norm
            self.conv = norm(nn.Conv1d(3, 4, 5))


@pytest.mark.parametrize("old", [True, False])
def test_each_loads_into_the_other(tmp_path, old: bool) -> None:
    model = WeightNormed(old)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.7)
    content = {"model_cfg": {"class_name": "WeightNormed", "old": not old}, "model_state_dict": model.state_dict()}
    torch.save(content, tmp_path / "m.pth")
    loaded = HyperTorchModel.auto_load(tmp_path / "m.pth")
    assert loaded.state_dict().keys() != model.state_dict().keys()
    x = torch.randn(2, 3, 20)
    torch.testing.assert_close(loaded.conv(x), model.conv(x))
    with open_pth(tmp_path / "m.pth") as file:
        part = {name: file.read_tensor(f"model_state_dict.{name}") for name in model.state_dict()}
    fused = fuse_weight_norm(part)
    np.testing.assert_allclose(fused["conv.weight"], model.conv.weight.detach().numpy(), rtol=1e-5)
