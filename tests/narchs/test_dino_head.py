"""DINO head and the projection in front of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.narchs.dino_head import DINOHead
from hyperion_lite.narchs.proj_head import FrameProjection, ProjHead

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))


def make(**options) -> DINOHead:
    torch.manual_seed(0)
    return DINOHead(6, 7, **{"hid_feats": 8, "bottleneck_feats": 4, **options}).eval()


def linears(head: DINOHead) -> list[tuple[str, tuple[int, ...]]]:
    return [(k, tuple(v.shape)) for k, v in head.state_dict().items() if v.dim() == 2]


def test_the_sequence_counts_every_module():
    expected = [("hid_layers.0.weight", (8, 6)), ("hid_layers.3.weight", (8, 8)), ("hid_layers.6.weight", (4, 8))]
    assert linears(make())[:3] == expected
    assert linears(make(norm_before=False))[:3] == expected
    with_dropout = [k for k, _ in linears(make(dropout_rate=0.1))[:3]]
    assert with_dropout == ["hid_layers.0.weight", "hid_layers.4.weight", "hid_layers.8.weight"]
    without_norm = make(use_norm=False)
    assert [k for k, _ in linears(without_norm)[:3]] == [
        "hid_layers.0.weight",
        "hid_layers.2.weight",
        "hid_layers.4.weight",
    ]
    assert "hid_layers.0.bias" in without_norm.state_dict() and "hid_layers.0.bias" not in make().state_dict()
    assert "hid_layers.0.bias" in make(norm_before=False).state_dict()


@pytest.mark.parametrize("output_type", ["softmax", "cos-softmax"])
def test_one_layer_is_the_map_to_the_bottleneck(output_type):
    head = make(num_hid_layers=1, output_type=output_type)
    assert linears(head)[0] == ("hid_layers.0.weight", (4, 6)) and len(head.hid_layers) == 1
    assert head(X).shape == (3, 7)
    if output_type == "cos-softmax":
        assert head.output.kernel.shape == (4, 7)


def test_prototypes_have_the_length_of_their_gain():
    head = make()
    head.output.weight_g.mul_(3.0)
    h = F.normalize(head.hid_layers(X), dim=-1)
    expected = h @ (3 * F.normalize(head.output.weight_v, dim=1)).T
    torch.testing.assert_close(head(X), expected)
    names = [k for k in head.state_dict() if k.startswith("output")]
    assert sorted(names) == ["output.weight_g", "output.weight_v"]
    assert tuple(head.output.weight_g.shape) == (7, 1) and tuple(head.output.weight_v.shape) == (7, 4)
    assert "output.weight_g" not in dict(head.named_parameters())


def test_cosine_output():
    head = make(output_type="cos-softmax").train()
    h = head.hid_layers(X)
    expected = F.normalize(h, dim=1) @ F.normalize(head.output.kernel, dim=0)
    head.eval()
    head.hid_layers.train()
    torch.testing.assert_close(head(X, torch.tensor([0, 1, 2])), expected)


def test_outputs_of_layers_come_as_asked():
    head = make()
    (a, b), logits = head.forward_hid_feats(X, layers=[-1, 0])
    torch.testing.assert_close(b, head.hid_layers[:3](X))
    torch.testing.assert_close(a, head.hid_layers(X))
    torch.testing.assert_close(logits, head(X))
    with pytest.raises(ValueError, match="0 to 2"):
        head.forward_hid_feats(X, layers=[3])


def test_the_configuration_rebuilds_the_head():
    head = make(dropout_rate=0.2, hid_act={"name": "relu", "inplace": True}, norm_layer="layer-norm")
    again = DINOHead.from_config(head.get_config()).eval()
    again.load_state_dict(head.state_dict())
    assert torch.equal(again(X), head(X))


@pytest.mark.parametrize(
    "options", [{"num_hid_layers": 0}, {"output_type": "arc-softmax"}, {"norm_layer": "instance-norm"}]
)
def test_settings_that_do_not_go_together(options):
    with pytest.raises(ConfigError):
        make(**options)


@pytest.mark.parametrize(
    ("use_norm", "norm_before", "names"),
    [
        (True, True, ["_norm_layer.weight", "_norm_layer.bias", "proj.weight", "proj.bias"]),
        (True, False, ["_norm_layer.weight", "_norm_layer.bias", "proj.weight"]),
        (False, True, ["proj.weight", "proj.bias"]),
        (False, False, ["proj.weight", "proj.bias"]),
    ],
)
def test_projection_head(use_norm, norm_before, names):
    head = ProjHead(6, 4, use_norm=use_norm, norm_before=norm_before).eval()
    assert [name for name, _ in head.named_parameters()] == names
    if use_norm:
        torch.nn.init.normal_(head._norm_layer.running_mean)
        expected = head.proj(head._norm_layer(X)) if norm_before else head._norm_layer(head.proj(X))
    else:
        expected = head.proj(X)
    torch.testing.assert_close(head(X), expected)
    assert ProjHead.from_config(head.get_config()).get_config() == head.get_config()


def test_frame_projection_normalises_last_and_has_no_activation():
    projection = FrameProjection(6, 4).eval()
    assert next(iter(projection.state_dict())) == "bn1.weight" and "conv1.bias" in projection.state_dict()
    torch.nn.init.normal_(projection.bn1.running_mean)
    x = torch.randn(2, 6, 5)
    torch.testing.assert_close(projection(x), projection.bn1(projection.conv1(x)))
    assert list(FrameProjection(6, 4, use_norm=False).state_dict()) == ["conv1.weight", "conv1.bias"]
