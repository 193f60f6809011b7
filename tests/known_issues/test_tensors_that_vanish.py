"""Of 122 tensors 40 appeared, as parameters were skipped in silence; of a nested checkpoint none did; where a tensor was a view, its
offset or its strides were ignored and the numbers were wrong.

Right: every tensor, under a name that says where it is, with the numbers that were saved.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hyperion_lite.pth import open_pth
from tests.pth.saving import WAYS, saved


def values_of(data: bytes) -> dict[str, np.ndarray]:
    with open_pth(data, verify="all") as file:
        return {name: file.read_tensor(name) for name in file.tensors}


@pytest.mark.parametrize("zipped", [True, False])
def test_parameters_and_buffers_and_plain_tensors(zipped: bool) -> None:
    network = nn.Sequential(*(nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)) for _ in range(17)))
    state = network.state_dict(keep_vars=True)
    assert sum(isinstance(value, nn.Parameter) for value in state.values()) == 68
    found = values_of(saved({**state, "mean": torch.ones(2), "std": torch.ones(2), "step": torch.tensor(7)}, 2, zipped))
    assert len(found) == 122
    for name, tensor in state.items():
        np.testing.assert_array_equal(found[name], tensor.detach().numpy())


def test_nested_dictionaries_and_lists() -> None:
    value = {
        "net": {"encoder": OrderedDict(weight=torch.ones(2)), "heads": [{"w": torch.zeros(3)}, (torch.arange(4),)]},
        "optimizer": {"state": {0: {"exp_avg": torch.full((2,), 0.5)}}, "param_groups": [{"lr": 0.1}]},
    }
    assert {name: array.tolist() for name, array in values_of(saved(value)).items()} == {
        "net.encoder.weight": [1, 1],
        "net.heads.0.w": [0, 0, 0],
        "net.heads.1.0": [0, 1, 2, 3],
        "optimizer.state.0.exp_avg": [0.5, 0.5],
    }


@pytest.mark.parametrize(("protocol", "zipped"), WAYS)
def test_views_of_every_kind(protocol: int, zipped: bool) -> None:
    base = torch.arange(120.0)
    views: dict[str, Any] = {
        "offset": base[100:],
        "shared": base[90:110],
        "transposed": base[10:40].view(5, 6).t(),
        "fortran": torch.from_numpy(np.asfortranarray(np.arange(12.0).reshape(3, 4))),
        "channels last": torch.arange(48.0).view(2, 3, 2, 4).to(memory_format=torch.channels_last),
        "every third": base[2::3],
        "expanded": base[5].expand(2, 3),
        "empty": base[:0],
    }
    found = values_of(saved(views, protocol, zipped))
    assert found.keys() == views.keys()
    for name, tensor in views.items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), err_msg=name)
