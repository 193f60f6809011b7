"""Normalisation layers: torch's numbers without padding, an item's own numbers with it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.norm import NORM_KINDS, BatchNorm1d, BatchNorm2d, make_norm


def padded(x: torch.Tensor, lengths: list[int], value: float = float("nan")) -> tuple[torch.Tensor, Padding]:
    padding = Padding(torch.tensor(lengths), x.size(-1))
    return padding.fill(x, value), padding


def valid_positions(x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """(1, channels, [freq,] sum of lengths): the valid parts one after the other."""
    return torch.cat([item[..., :n] for item, n in zip(x, lengths, strict=True)], dim=-1)[None]


def randomise(layer: nn.Module) -> None:
    for p in layer.parameters():
        nn.init.normal_(p)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("ours", "theirs", "shape"),
    [
        (BatchNorm1d, nn.BatchNorm1d, (4, 3)),
        (BatchNorm1d, nn.BatchNorm1d, (4, 3, 5)),
        (BatchNorm2d, nn.BatchNorm2d, (4, 3, 2, 5)),
    ],
)
def test_batch_norm_without_padding_is_torchs_to_the_bit(ours, theirs, shape, training):
    torch.manual_seed(0)
    layer, reference = ours(3).train(training), theirs(3).train(training)
    randomise(layer)
    reference.load_state_dict(layer.state_dict())
    for _ in range(3):
        x = torch.randn(shape) * 3 + 1
        assert torch.equal(layer(x), reference(x))
    for name, value in reference.state_dict().items():
        assert torch.equal(layer.state_dict()[name], value), name


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=2, max_size=4), two_d=st.booleans())
def test_batch_norm_in_training_sees_valid_positions_only(lengths, two_d):
    torch.manual_seed(1)
    shape = (len(lengths), 3, 2, 7) if two_d else (len(lengths), 3, 7)
    cls = BatchNorm2d if two_d else BatchNorm1d
    layer, reference = cls(3).double(), cls(3).double()
    randomise(layer)
    reference.load_state_dict(layer.state_dict())
    x = torch.randn(shape, dtype=torch.float64) * 2 + 5
    filled, padding = padded(x, lengths)
    filled.requires_grad_()
    own = valid_positions(x, lengths).requires_grad_()

    y, y_ref = layer(filled, padding), reference(own)
    assert torch.isfinite(y).all()
    torch.testing.assert_close(valid_positions(y, lengths), y_ref, rtol=1e-10, atol=1e-10)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], value, rtol=1e-12, atol=1e-12)

    weights = torch.randn_like(y_ref)
    (valid_positions(y, lengths) * weights).sum().backward()
    (y_ref * weights).sum().backward()
    torch.testing.assert_close(valid_positions(filled.grad, lengths), own.grad, rtol=1e-8, atol=1e-8)
    assert not filled.grad.masked_select(~padding.mask_like(filled).expand_as(filled)).any()
    torch.testing.assert_close(layer.weight.grad, reference.weight.grad)
    torch.testing.assert_close(layer.bias.grad, reference.bias.grad)


def test_batch_norm_gradient_is_the_derivative():
    torch.manual_seed(2)
    layer = BatchNorm1d(2).double()
    randomise(layer)
    padding = Padding(torch.tensor([5, 2, 3]), 5)
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)

    def f(x, weight, bias):
        y = torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x, padding))
        return padding.fill(y)

    assert torch.autograd.gradcheck(
        f, (x, layer.weight.detach().requires_grad_(), layer.bias.detach().requires_grad_())
    )


def test_batch_norm_keeps_digits_when_the_mean_is_large():
    torch.manual_seed(3)
    x = torch.randn(4, 2, 50, dtype=torch.float64) + 1000.0
    padding = Padding(torch.tensor([50, 20, 9, 31]), 50)
    y32 = BatchNorm1d(2)(x.float(), padding)
    y64 = BatchNorm1d(2).double()(x.float().double(), padding)
    assert (padding.fill(y32.double() - y64)).abs().max() < 1e-3


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (2, 3, 4)])
def test_batch_norm_of_one_position_is_finite(shape):
    layer = BatchNorm1d(3)
    randomise(layer)
    x = torch.randn(shape, requires_grad=True)
    padding = Padding(torch.tensor([1, 0]), 4) if shape[0] == 2 else None
    y = layer(x, padding)
    y.sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()
    assert torch.isfinite(layer.running_mean).all() and torch.isfinite(layer.running_var).all()
    torch.testing.assert_close(y.flatten(2)[0, :, 0] if y.dim() > 2 else y[0], layer.bias)


def test_batch_norm_loads_a_state_without_the_batch_counter():
    layer = BatchNorm2d(3)
    state = {k: torch.rand_like(v) for k, v in layer.state_dict().items() if k != "num_batches_tracked"}
    assert layer.load_state_dict(state).missing_keys == []
    assert torch.equal(layer.running_var, state["running_var"])
    state = layer.state_dict()
    del state["num_batches_tracked"]
    layer.load_state_dict(state)
    assert "num_batches_tracked" not in state


def test_batch_norm_with_padding_under_autocast_keeps_float32_statistics():
    torch.manual_seed(4)
    layer = BatchNorm1d(3)
    padding = Padding(torch.tensor([5, 2]), 5)
    x = torch.randn(2, 3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x.bfloat16(), padding)
    assert y.dtype == torch.bfloat16 and layer.running_var.dtype == torch.float32
    expected = BatchNorm1d(3)(x.bfloat16().float(), padding)
    torch.testing.assert_close(padding.fill(y.float()), padding.fill(expected), rtol=1e-2, atol=1e-2)


def test_frozen_batch_norm_has_finite_gradients_with_nan_padding():
    layer = BatchNorm1d(3).eval()
    x, padding = padded(torch.randn(2, 3, 5), [5, 2])
    padding.fill(layer(x, padding)).sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("kind", ["group-norm", "instance-norm", "instance-norm-affine", "layer-norm"])
@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=2, max_size=3), training=st.booleans())
def test_item_norms_give_an_item_what_it_has_alone(kind, ndim, lengths, training):
    torch.manual_seed(5)
    layer = make_norm(kind, 8, ndim, num_groups=4).double().train(training)
    randomise(layer)
    x = torch.randn((len(lengths), 8, 3, 6) if ndim == 2 else (len(lengths), 8, 6), dtype=torch.float64) + 2
    filled, padding = padded(x, lengths)
    y = layer(filled, padding)
    for item, n, own in zip(y, lengths, x, strict=True):
        torch.testing.assert_close(item[..., :n], layer(own[None, ..., :n])[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["group-norm", "instance-norm", "instance-norm-affine"])
def test_item_norms_have_no_gradient_from_the_padding(kind):
    layer = make_norm(kind, 4, 1, num_groups=2)
    x, padding = padded(torch.randn(2, 4, 5), [5, 1])
    x.requires_grad_()
    padding.fill(layer(x, padding)).square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[1, :, 1:].any()


def test_layers_are_the_torch_ones_without_padding():
    x = torch.randn(2, 8, 6)
    torch.testing.assert_close(make_norm("group-norm", 8, 1, 4)(x), nn.GroupNorm(4, 8)(x))
    torch.testing.assert_close(make_norm("instance-norm", 8, 1)(x), nn.InstanceNorm1d(8)(x))
    torch.testing.assert_close(make_norm("layer-norm", 8, 1)(x), nn.LayerNorm(8)(x.transpose(1, 2)).transpose(1, 2))
    torch.testing.assert_close(make_norm("layer-norm", 8, 1)(x[..., 0]), nn.LayerNorm(8)(x[..., 0]))
    x = torch.randn(2, 8, 3, 6)
    torch.testing.assert_close(make_norm("layer-norm", 8, 2)(x), nn.GroupNorm(1, 8)(x))


def test_names_of_parameters():
    assert sorted(make_norm(None, 4, 1).state_dict()) == [
        "bias",
        "num_batches_tracked",
        "running_mean",
        "running_var",
        "weight",
    ]
    assert list(make_norm("instance-norm", 4, 2).state_dict()) == []
    for kind in ("group-norm", "instance-norm-affine", "layer-norm"):
        assert sorted(make_norm(kind, 4, 1).state_dict()) == ["bias", "weight"]


def test_unknown_kind_and_indivisible_groups_are_named():
    with pytest.raises(ConfigError, match=r"batch_norm.*batch-norm"):
        make_norm("batch_norm", 4, 1)
    with pytest.raises(ConfigError, match="6 channels"):
        make_norm("group-norm", 6, 1, num_groups=4)
    assert len(NORM_KINDS) == 5
