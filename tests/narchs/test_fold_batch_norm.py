from __future__ import annotations

import pytest
import torch
from torch import nn

from hyperion_lite.layer_blocks.conv import NoNorm
from hyperion_lite.layer_blocks.res_blocks import BLOCK_KINDS
from hyperion_lite.narchs.fold_batch_norm import fold_batch_norm
from tests.narchs.encoder_checks import random_input, relative_error, small_resnet, small_resnet1d


def batch_norms(module: nn.Module) -> int:
    return sum(isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)) for part in module.modules())


@pytest.mark.parametrize("resb_type", BLOCK_KINDS)
def test_folded_encoder_gives_the_same_output(resb_type):
    encoder = small_resnet1d(
        resb_type=resb_type, resb_strides=[1, 2, 3], multilayer=True, multilayer_concat=True, endpoint_scale_layer=1
    ).float()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    folded = fold_batch_norm(encoder)
    x = random_input(encoder, 2, 40, dtype=torch.float32)
    lengths = torch.tensor([40, 23])
    with torch.no_grad():
        assert relative_error(folded(x, lengths)[0], encoder.eval()(x, lengths)[0]) <= 1e-5
    assert not folded.training
    assert batch_norms(folded) == 0
    assert any(isinstance(part, NoNorm) for part in folded.modules())
    assert all(torch.equal(tensor, encoder.state_dict()[name]) for name, tensor in before.items())


@pytest.mark.parametrize("resnet_type", ["resnet18", "fwseres2net50", "lresnet34_345"])
def test_folded_2d_encoder_gives_the_same_output(resnet_type):
    encoder = small_resnet(resnet_type, in_feats=32).float()
    folded = fold_batch_norm(encoder)
    x = random_input(encoder, 2, 30, dtype=torch.float32)
    with torch.no_grad():
        assert relative_error(folded(x)[0], encoder.eval()(x)[0]) <= 1e-5
    assert batch_norms(folded) == 0


def test_norms_after_activations_and_of_other_kinds_stay():
    for config in ({"norm_before": False}, {"norm_layer": "layer-norm"}):
        encoder = small_resnet1d(**config)
        folded = fold_batch_norm(encoder)
        assert batch_norms(folded) == batch_norms(encoder)
        x = random_input(encoder, 1, 20)
        assert torch.equal(folded(x)[0], encoder.eval()(x)[0])


def test_upsampled_endpoints_fold_only_where_the_norm_follows_directly():
    config = {"resb_strides": [1, 2, 2], "multilayer": True, "endpoint_scale_layer": 0}
    for mode, left in (("nearest", 0), ("subpixel", 2)):
        encoder = small_resnet1d(upsampling_mode=mode, **config)
        folded = fold_batch_norm(encoder)
        assert batch_norms(folded) == left
        x = random_input(encoder, 1, 21)
        assert relative_error(folded(x)[0], encoder.eval()(x)[0]) <= 1e-12


def test_linear_maps_and_norms_without_affine_fold_too():
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.bn1 = nn.BatchNorm1d(3, affine=False)

        def norm_pairs(self):
            return [("linear", "bn1")]

        def forward(self, x):
            return self.bn1(self.linear(x))

    head = Head().double()
    head.bn1.running_mean.fill_(0.7)
    head.bn1.running_var.fill_(3.0)
    x = torch.randn(5, 4, dtype=torch.float64)
    folded = fold_batch_norm(head)
    assert batch_norms(folded) == 0
    torch.testing.assert_close(folded(x), head.eval()(x))


def test_gradients_still_reach_the_input():
    folded = fold_batch_norm(small_resnet1d())
    x = random_input(folded, 1, 20).requires_grad_()
    folded(x)[0].sum().backward()
    assert x.grad.abs().sum() > 0
