"""Output layers: stored numbers, warm-up, gradients where formulas are singular, autocast."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.margin_losses import (
    LOSS_TYPES,
    ArcLossOutput,
    CosLossOutput,
    SoftmaxOutput,
    SubCenterArcLossOutput,
    make_output_layer,
)
from tests.helpers import shared_path

KINDS = {"arc": "arc-softmax", "cos": "cos-softmax", "subcenter": "subcenter-arc-softmax"}
margin_kinds = pytest.mark.parametrize("loss_type", KINDS.values())


@pytest.mark.parametrize("intertop", ["0.0", "0.1"])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_logits_of_warm_up_epochs(kind, intertop):
    arrays = np.load(shared_path("fixtures/hyperion/margins.npz"))
    settings = json.loads(shared_path("fixtures/hyperion/margins.json").read_text())
    name = f"{kind}_it{intertop}"
    layer = make_output_layer(KINDS[kind], 8, 12, **settings[name])
    kernel = arrays["kernel_sub3" if kind == "subcenter" else "kernel"]
    layer.load_state_dict({"kernel": torch.from_numpy(kernel)}, strict=False)
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])

    def check(logits: torch.Tensor, key: str) -> None:
        reference = torch.from_numpy(arrays[key])
        assert (logits - reference).abs().max() <= 1e-5 * max(1.0, reference.abs().max().item()), key

    check(layer.eval()(x, y), f"{name}_eval")
    layer.train()
    check(layer(x), f"{name}_eval")
    for epoch in (0, 2, 5, 9):
        layer.update_margin(epoch)
        expected = settings[f"{name}_train_epoch{epoch}"]
        assert layer.cur_margin == pytest.approx(expected["cur_margin"])
        assert layer.cur_intertop_margin == pytest.approx(expected["cur_intertop_margin"])
        check(layer(x, y), f"{name}_train_epoch{epoch}")
        if kind == "subcenter":
            counts = torch.from_numpy(arrays[f"{name}_counts_after_epoch{epoch}"])
            assert torch.equal(layer.subcenter_counts, counts)
    if kind == "subcenter":
        assert torch.equal(layer.prototypes(), torch.from_numpy(arrays[f"{name}_main_kernel"]))


def test_names_of_tensors():
    assert list(make_output_layer("softmax", 4, 3).state_dict()) == ["weight", "bias"]
    assert list(make_output_layer("cos-softmax", 4, 3).state_dict()) == ["kernel"]
    assert list(make_output_layer("arc-softmax", 4, 3).state_dict()) == ["kernel"]
    layer = make_output_layer("subcenter-arc-softmax", 4, 3, num_subcenters=2)
    assert {k: tuple(v.shape) for k, v in layer.state_dict().items()} == {"kernel": (4, 6), "subcenter_counts": (3, 2)}


@margin_kinds
def test_warm_up_by_epochs_and_by_steps(loss_type):
    layer = make_output_layer(loss_type, 4, 3, margin=0.4, margin_warmup_epochs=4, intertop_margin=0.2)
    assert layer.cur_margin == 0
    layer.update_margin(1)
    assert (layer.cur_margin, layer.cur_intertop_margin) == pytest.approx((0.1, 0.05))
    layer.update_margin(4)
    assert layer.cur_margin == 0.4

    layer = make_output_layer(loss_type, 4, 3, margin=0.4, margin_warmup_epochs=4, margin_warmup_steps=100)
    layer.update_margin(9, 25)
    assert layer.cur_margin == pytest.approx(0.1)
    layer.update_margin(9)
    assert layer.cur_margin == pytest.approx(0.1)
    layer.update_margin(9, 500)
    assert layer.cur_margin == 0.4
    assert make_output_layer(loss_type, 4, 3, margin=0.4).cur_margin == 0.4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@margin_kinds
def test_gradients_are_finite_at_cosine_plus_and_minus_one(loss_type, sign, dtype):
    torch.manual_seed(0)
    layer = make_output_layer(loss_type, 8, 5, intertop_margin=0.1, num_subcenters=2).to(dtype)
    columns = layer.kernel.shape[1] // 5
    x = (sign * layer.kernel.detach().T[::columns] * 3).clone().requires_grad_()
    loss = nn.functional.cross_entropy(layer(x, torch.arange(5)), torch.arange(5))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(x.grad).all() and torch.isfinite(layer.kernel.grad).all()


@margin_kinds
def test_zero_vectors_have_finite_logits_and_gradients(loss_type):
    layer = make_output_layer(loss_type, 8, 5, intertop_margin=0.1)
    with torch.no_grad():
        layer.kernel[:, 0] = 0
    x = torch.zeros(3, 8, requires_grad=True)
    y = torch.tensor([0, 1, 2])
    nn.functional.cross_entropy(layer(x, y), y).backward()
    assert torch.isfinite(x.grad).all() and torch.isfinite(layer.kernel.grad).all()
    assert x.grad.abs().max() < 1e3 and layer.kernel.grad.abs().max() < 1e3


@margin_kinds
def test_the_target_is_the_angle_with_the_margin(loss_type):
    torch.manual_seed(1)
    layer = make_output_layer(loss_type, 8, 5, cos_scale=10, margin=0.25, num_subcenters=2).double()
    x, y = torch.randn(6, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    plain = layer.eval()(x) / 10
    with_margin = layer.train()(x, y) / 10
    target = plain.gather(1, y[:, None])[:, 0]
    expected = target - 0.25 if loss_type == "cos-softmax" else (target.arccos() + 0.25).cos()
    torch.testing.assert_close(with_margin.gather(1, y[:, None])[:, 0], expected, rtol=1e-7, atol=1e-7)
    others = torch.ones_like(plain).scatter(1, y[:, None], 0).bool()
    torch.testing.assert_close(with_margin[others], plain[others])


@pytest.mark.parametrize("intertop_k", [0, 2, 4, 5, 50])
@margin_kinds
def test_inter_top_k_raises_the_k_largest_other_cosines_and_is_limited_to_them(loss_type, intertop_k):
    torch.manual_seed(2)
    layer = make_output_layer(loss_type, 8, 5, cos_scale=1, margin=0, intertop_k=intertop_k, intertop_margin=0.1)
    x, y = torch.randn(7, 8), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    changed = (layer(x, y) - layer(x)).abs() > 1e-4
    assert changed.sum(1).tolist() == [min(intertop_k, 4)] * 7
    assert not changed.gather(1, y[:, None]).any()


@margin_kinds
def test_one_class_is_possible(loss_type):
    layer = make_output_layer(loss_type, 8, 1, intertop_margin=0.1)
    assert layer(torch.randn(2, 8), torch.zeros(2, dtype=torch.long)).shape == (2, 1)


@margin_kinds
def test_labels_have_no_effect_in_eval(loss_type):
    layer = make_output_layer(loss_type, 8, 5).eval()
    x = torch.randn(3, 8)
    assert torch.equal(layer(x, torch.tensor([0, 1, 2])), layer(x))
    if isinstance(layer, SubCenterArcLossOutput):
        assert not layer.subcenter_counts.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@margin_kinds
def test_autocast_changes_no_digit(loss_type, dtype):
    torch.manual_seed(3)
    layer = make_output_layer(loss_type, 64, 20, intertop_margin=0.1)
    x, y = torch.randn(4, 64).to(dtype), torch.tensor([0, 1, 2, 3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(x, y)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, layer(x.float(), y))


def test_a_half_precision_model_has_float32_logits():
    assert make_output_layer("arc-softmax", 8, 5).half()(torch.randn(2, 8).half()).dtype == torch.float32


def test_gradient_of_the_arc_margin_is_the_derivative():
    torch.manual_seed(4)
    layer = ArcLossOutput(4, 5, cos_scale=2, intertop_k=2, intertop_margin=0.1).double()
    y = torch.tensor([0, 3])
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, y), (x,))


def test_prototype_affinity_is_the_cosine_between_classes():
    torch.manual_seed(5)
    for loss_type in LOSS_TYPES:
        layer = make_output_layer(loss_type, 8, 5)
        affinity = layer.compute_prototype_affinity()
        assert affinity.shape == (5, 5) and not affinity.requires_grad
        torch.testing.assert_close(affinity.diagonal(), torch.ones(5))
        a, b = layer.prototypes()[:, 0], layer.prototypes()[:, 3]
        torch.testing.assert_close(affinity[0, 3], nn.functional.cosine_similarity(a, b, dim=0))


def test_counts_of_winning_subcenters_decide_the_prototype():
    layer = SubCenterArcLossOutput(3, 2, num_subcenters=2, cos_scale=1)
    with torch.no_grad():
        layer.kernel.copy_(torch.eye(3)[:, [0, 1, 2, 0]])
    x = torch.tensor([[0.1, 1.0, 0.0], [0.0, 1.0, 0.1], [0.0, 0.1, 1.0]])
    layer(x, torch.tensor([0, 0, 1]))
    assert layer.subcenter_counts.tolist() == [[0, 1], [1, 0]]
    assert torch.equal(layer.prototypes(), torch.eye(3)[:, [1, 2]])
    layer(x[:, [1, 0, 2]], torch.tensor([0, 0, 1]))
    assert layer.subcenter_counts.tolist() == [[0, 0], [2, 0]]


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"did you mean 'arc-softmax'"):
        make_output_layer("arcsoftmax", 4, 3)
    with pytest.raises(ConfigError, match="num_classes"):
        make_output_layer("softmax", 4, 0)
    with pytest.raises(ConfigError, match="num_subcenters"):
        SubCenterArcLossOutput(4, 3, num_subcenters=0)


def test_softmax_is_affine():
    layer = SoftmaxOutput(4, 3)
    x = torch.randn(2, 4)
    torch.testing.assert_close(layer(x, torch.tensor([0, 1])), x @ layer.weight.T + layer.bias)
    assert layer.cur_margin == 0


def test_cosines_of_long_and_short_vectors_agree():
    layer = CosLossOutput(8, 5)
    x = torch.randn(3, 8)
    torch.testing.assert_close(layer(x * 1e-5), layer(x * 1e5), rtol=1e-4, atol=1e-4)
    assert math.isfinite(layer(torch.full((1, 8), 1e18)).sum().item())
