"""Classification head: which tensors, which arithmetic, which embedding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.narchs.classif_head import ClassifHead
from hyperion_lite.narchs.net_arch import NetArch


def make(**options) -> ClassifHead:
    torch.manual_seed(0)
    head = ClassifHead(6, 5, **{"embed_dim": 8, "cos_scale": 4, **options}).eval()
    for module in head.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return head


X = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))


def test_names_and_order_of_tensors():
    bn = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = [
        f"fc_blocks.{i}.{n}" for i in range(2) for n in (*(f"bn1.{k}" for k in bn), "linear.weight", "linear.bias")
    ]
    assert list(make(num_embed_layers=2, norm_before=False).state_dict()) == [*names, "output.kernel"]
    assert "fc_blocks.0.linear.bias" not in make().state_dict()
    assert "fc_blocks.0.linear.bias" in make(use_norm=False).state_dict()
    with_in_norm = make(num_embed_layers=2, norm_before=False, use_in_norm=True).state_dict()
    assert "in_norm.weight" in with_in_norm and "fc_blocks.0.bn1.weight" in with_in_norm
    assert "fc_blocks.1.bn1.weight" not in with_in_norm and "fc_blocks.1.linear.bias" in with_in_norm
    assert list(make(loss_type="softmax").state_dict())[-2:] == ["output.weight", "output.bias"]


@pytest.mark.parametrize("loss_type", ["softmax", "arc-softmax"])
@pytest.mark.parametrize(("use_norm", "norm_before"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_embedding_of_every_layer(loss_type, use_norm, norm_before, layer):
    head = make(num_embed_layers=2, loss_type=loss_type, use_norm=use_norm, norm_before=norm_before)
    has_act = layer == 0 or loss_type == "softmax"
    hidden = X
    for block in head.fc_blocks[:layer]:
        hidden = block(hidden)
    block = head.fc_blocks[layer]
    expected = block.linear(hidden)
    if use_norm and (norm_before or not has_act):
        expected = block.bn1(expected)
    torch.testing.assert_close(head.extract_embed(X, layer), expected)

    full = block.linear(hidden)
    if use_norm and norm_before:
        full = block.bn1(full)
    if has_act:
        full = full.relu()
    if use_norm and not norm_before:
        full = block.bn1(full)
    (output,), logits = head.forward_hid_feats(X, layers=[layer])
    torch.testing.assert_close(output, full)
    torch.testing.assert_close(logits, head(X))
    if layer == 1:
        torch.testing.assert_close(head(X), head.output(full))


def test_the_last_layer_with_a_norm_on_the_input():
    head = make(norm_before=False, use_in_norm=True)
    torch.testing.assert_close(head.extract_embed(X), head.fc_blocks[0].linear(head.in_norm(X)))
    torch.testing.assert_close(head(X), head.output(head.extract_embed(X)))


@pytest.mark.parametrize("layer", [2, 5, -2, 0.0, True, "0"])
def test_layers_that_do_not_exist_are_refused(layer):
    head = make(num_embed_layers=2)
    with pytest.raises(ValueError, match="embed_layer must be 0 to 1"):
        head.extract_embed(X, layer)
    with pytest.raises(ValueError, match="classif_layers must be 0 to 1"):
        head.forward_hid_feats(X, layers=[layer])
    torch.testing.assert_close(head.extract_embed(X, -1), head.extract_embed(X, 1))


def test_outputs_come_in_the_order_they_were_asked_for():
    head = make(num_embed_layers=2)
    (a, b), logits = head.forward_hid_feats(X, layers=[0, 1], return_logits=False)
    assert logits is None
    outputs, _ = head.forward_hid_feats(X, layers=[-1, 0])
    assert torch.equal(outputs[0], b) and torch.equal(outputs[1], a)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([0, 1]), "shape"),
        (torch.tensor([[0, 1, 2]]), "shape"),
        (torch.tensor([0, 1, 5]), r"y\[2\] = 5"),
        (torch.tensor([0, -1, 2]), r"y\[1\] = -1"),
        (torch.tensor([0.0, 1.0, 2.0]), "float32"),
        (torch.tensor([True, False, True]), "bool"),
        ([0, 1, 2], "list"),
    ],
)
def test_wrong_labels_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        make()(X, y)


def test_labels_of_any_integer_type_give_the_margin_in_training_only():
    head = make()
    y = torch.tensor([0, 1, 4])
    assert torch.equal(head(X, y), head(X))
    head.train()
    head.fc_blocks.eval()
    assert not torch.equal(head(X, y), head(X))
    assert torch.equal(head(X, y.to(torch.uint8)), head(X, y))


@pytest.mark.parametrize(
    "options",
    [
        {"num_embed_layers": 0},
        {"use_in_norm": True},
        {"norm_layer": "instance-norm"},
        {"loss_type": "arc"},
        {"hid_act": "rel", "num_embed_layers": 2},
    ],
)
def test_settings_that_do_not_go_together(options):
    with pytest.raises(ConfigError):
        make(**options)


@pytest.mark.parametrize("norm_layer", [None, "batch-norm", "group-norm", "layer-norm"])
def test_norms_and_the_configuration(norm_layer):
    options = {
        "norm_layer": norm_layer,
        "num_embed_layers": 3,
        "dropout_rate": 0.1,
        "hid_act": {"name": "relu6", "inplace": True},
    }
    head = make(**options)
    config = head.get_config()
    assert config["class_name"] == "ClassifHead" and config["hid_act"] == {"name": "relu6", "inplace": True}
    again = NetArch.create(config).eval()
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(X), head(X))
    assert head.in_shape() == (None, 6) and head.out_shape((3, 6)) == (3, 5)
    assert sum(isinstance(m, nn.Dropout) for m in head.modules()) == 2


def test_one_item_in_training_is_finite():
    head = make(num_embed_layers=2).train()
    loss = nn.functional.cross_entropy(head(X[:1], torch.tensor([1])), torch.tensor([1]))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in head.parameters())
