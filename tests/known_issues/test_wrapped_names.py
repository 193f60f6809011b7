"""Weights saved from a compiled or distributed model carry ``_orig_mod.``, ``module.`` or both, nested: all tensors were missing.

Right: the wrappers' parts of the names are taken off, in any nesting, and only where a wrapper put them.
"""

from __future__ import annotations

import pytest
import torch

from hyperion_lite import HyperTorchModel
from tests.models.small_models import build

PREFIXES = ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module._orig_mod."]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_wrapped_weights_load(tmp_path, prefix: str) -> None:
    model = build("ecapa")
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({"model_cfg": model.get_config(), "model_state_dict": state}, tmp_path / "m.pth")
    for loaded in (
        HyperTorchModel.auto_load(tmp_path / "m.pth"),
        HyperTorchModel.load(cfg=model.get_config(), state_dict=state),
    ):
        assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())


class Compiled(torch.nn.Module):
    """Has the names of what ``torch.compile`` gives, without the seconds that it takes."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def test_a_model_that_was_compiled_in_a_wrapper() -> None:
    model = build("ecapa")
    wrapped = Compiled(torch.nn.DataParallel(model))
    state = wrapped.state_dict()
    assert all(name.startswith("_orig_mod.module.") for name in state)
    loaded = HyperTorchModel.load(cfg=model.get_config(), state_dict=state)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
