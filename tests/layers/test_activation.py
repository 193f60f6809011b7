"""Activation functions by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.activation import ACTIVATIONS, make_activation

X = torch.linspace(-9, 9, 37).view(1, 37)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_name_works_with_and_without_inplace(name):
    x = X.view(1, 37, 1, 1) if name == "softmax2d" else X
    needed = {"threshold": 0.5, "value": 0.1} if name == "threshold" else {}
    plain = make_activation({"name": name, **needed}).eval()
    inplace = make_activation({"name": name, "inplace": True, **needed}).eval()
    before = x.clone()
    with torch.no_grad():
        torch.testing.assert_close(plain(x), inplace(x))
    assert torch.equal(x, before)


def test_values():
    torch.testing.assert_close(make_activation("swish")(X), X * torch.sigmoid(X))
    clipped = X.clamp(max=6)
    torch.testing.assert_close(make_activation("swish6")(X), clipped * torch.sigmoid(clipped))
    torch.testing.assert_close(make_activation("double_swish")(X), X * torch.sigmoid(X - 1))
    torch.testing.assert_close(make_activation("double_swish6")(X), clipped * torch.sigmoid(clipped - 1))
    torch.testing.assert_close(make_activation("gelu")(X), X * 0.5 * (1 + torch.erf(X / 2**0.5)))
    assert make_activation(None)(X) is X


def test_arguments_of_the_torch_class_are_used_and_the_dict_is_not_changed():
    spec = {"name": "leakyrelu", "negative_slope": 0.5, "inplace": True}
    torch.testing.assert_close(make_activation(spec)(X), nn.functional.leaky_relu(X, 0.5))
    assert spec == {"name": "leakyrelu", "negative_slope": 0.5, "inplace": True}
    torch.testing.assert_close(make_activation({"name": "threshold", "threshold": 1.0, "value": 0.0})(X), X * (X > 1))


def test_softmax_never_mixes_the_items_of_a_batch():
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(make_activation("softmax")(x).sum(1), torch.ones(3, 5))


def test_prelu_has_a_weight_of_its_own():
    first, second = make_activation("prelu"), make_activation("prelu")
    assert list(first.state_dict()) == ["weight"]
    assert first.weight is not second.weight


@pytest.mark.parametrize(
    "spec", ["reluu", {"name": "reluu"}, {"inplace": True}, 3, {"name": "relu", "slope": 1}, {"name": "swish", "a": 1}]
)
def test_wrong_specifications_are_errors(spec):
    with pytest.raises(ConfigError):
        make_activation(spec)


def test_a_near_miss_is_named():
    with pytest.raises(ConfigError, match=r"did you mean 'relu'"):
        make_activation("rellu")
