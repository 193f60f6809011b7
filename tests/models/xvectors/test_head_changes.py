"""Changing the head of a trained x-vector."""

from __future__ import annotations

import logging

import pytest
import torch

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.layers.margin_losses import LOSS_TYPES
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.xvectors.resnet1d_xvector import ResNet1dXVector
from tests.models.xvectors.small_models import ECAPA_ENC, VARIANTS, frames, make, make_2d

X, LENGTHS = frames(20, 11)
OLD = ["a", "b", "c", "d", "e", "f"]


def rebuilt(model):
    """The model that the configuration and the tensors of ``model`` give."""
    return HyperTorchModel.load(cfg=model.get_config(), state_dict=model.state_dict()).eval()


def prototype(model, index: int) -> torch.Tensor:
    return model.classif_net.output.prototypes()[:, index]


@pytest.mark.parametrize("loss_type", ["cos-softmax", "arc-softmax", "subcenter-arc-softmax"])
def test_margin_warm_up_reaches_the_output_layer(loss_type):
    model = make(loss_type=loss_type, margin=0.4, margin_warmup_epochs=4.0)
    output = model.classif_net.output
    assert output.cur_margin == 0
    model.update_loss_margin(2)
    assert output.cur_margin == pytest.approx(0.2)
    model = make(loss_type=loss_type, margin=0.4, margin_warmup_steps=100)
    model.update_loss_margin(0, 75)
    assert model.classif_net.output.cur_margin == pytest.approx(0.3)
    make(loss_type="softmax").update_loss_margin(3)
    VARIANTS["dino"]().update_loss_margin(3)


def test_change_config_changes_what_it_is_given():
    model = make(dropout_rate=0.1, num_embed_layers=2)
    kernel = model.classif_net.output.kernel
    model.change_config(margin=0.5, cos_scale=20, intertop_margin=0.1, embed_layer=1, dropout_rate=0.3, loss_type=None)
    output = model.classif_net.output
    assert output.kernel is kernel and (output.cur_margin, output.cos_scale, output.cur_intertop_margin) == (
        0.5,
        20,
        0.1,
    )
    config = model.get_config()
    assert (config["margin"], config["embed_layer"], config["dropout_rate"]) == (0.5, 1, 0.3)
    assert model.classif_net.get_config()["margin"] == 0.5
    assert torch.equal(rebuilt(model).extract_embed(X, LENGTHS), model.eval().extract_embed(X, LENGTHS))
    model.change_config(margin_warmup_epochs=10)
    assert output.cur_margin == 0
    model.change_config(margin_warmup_epochs=0, bias_weight_decay=0.0, train_mode="ft-embed-affine")
    assert output.cur_margin == 0.5 and model.bias_weight_decay == 0.0 and model.train_mode == "ft-embed-affine"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margn": 1}, "did you mean 'margin'"),
        ({"embed_dim": 3}, "cannot be changed"),
        ({"margin": "big"}, "margin: expected"),
        ({"embed_layer": 4}, "embed_layer must be"),
        ({"loss_type": "arc"}, "loss_type"),
    ],
)
def test_change_config_refuses_the_rest(changes, message):
    model = make()
    before = model.get_config()
    with pytest.raises((ConfigError, ValueError), match=message):
        model.change_config(cos_scale=99, **changes)
    assert model.get_config() == before and model.classif_net.output.cos_scale == before["cos_scale"]


@pytest.mark.parametrize("old", LOSS_TYPES)
@pytest.mark.parametrize("new", LOSS_TYPES)
def test_prototypes_survive_a_change_of_the_loss(old, new):
    model = make(loss_type=old, num_subcenters=2)
    if old == "subcenter-arc-softmax":
        model.classif_net.output.subcenter_counts[:, 1] = 3
    before = model.classif_net.output.prototypes().clone()
    model.change_config(loss_type=new, num_subcenters=2 if new == old else 3)
    assert torch.equal(model.classif_net.output.prototypes(), before)
    assert model.loss_type == new and type(rebuilt(model).classif_net.output) is type(model.classif_net.output)
    assert torch.equal(rebuilt(model)(X, LENGTHS), model.eval()(X, LENGTHS))


def test_known_classes_keep_their_prototypes_and_the_report_says_which(caplog):
    model = make()
    model.class_names = OLD
    before = model.classif_net.output.prototypes().clone()
    model.set_train_mode("ft-embed-affine")
    with caplog.at_level(logging.INFO):
        report = model.rebuild_output_layer(class_names=["x", "c", "a", "y"], margin=0.5)
    assert (report.kept, report.new, report.dropped) == (("c", "a"), ("x", "y"), ("b", "d", "e", "f"))
    assert "2 prototypes kept, 2 initialised" in caplog.text
    assert torch.equal(prototype(model, 1), before[:, 2]) and torch.equal(prototype(model, 2), before[:, 0])
    assert not any(torch.equal(prototype(model, 0), column) for column in before.T)
    assert model.class_names == ["x", "c", "a", "y"] and model.num_classes == 4
    assert model.get_config()["num_classes"] == 4 and model.get_config()["margin"] == 0.5
    assert model.train_mode == "ft-embed-affine" and model.classif_net.output.kernel.requires_grad
    assert torch.equal(rebuilt(model)(X, LENGTHS), model.eval()(X, LENGTHS))


def test_without_class_tables_everything_is_new():
    model = make(loss_type="subcenter-arc-softmax")
    before = model.classif_net.output.kernel.detach().clone()
    report = model.rebuild_output_layer(6)
    assert report.kept == () and report.num_classes == 6
    assert not torch.equal(model.classif_net.output.kernel, before)
    report = model.rebuild_output_layer(class_names=["p", "q"])
    assert report.new == ("p", "q") and model.class_names == ["p", "q"]


def test_the_old_table_can_be_given_and_sub_centres_move_along():
    model = make(loss_type="subcenter-arc-softmax", num_subcenters=2)
    output = model.classif_net.output
    output.subcenter_counts.copy_(torch.arange(12.0).view(6, 2))
    kernel = output.kernel.detach().clone()
    model.rebuild_output_layer(class_names=["f", "new"], old_class_names=OLD)
    assert torch.equal(model.classif_net.output.kernel[:, :2], kernel[:, 10:12])
    assert model.classif_net.output.subcenter_counts.tolist() == [[10, 11], [0, 0]]


def test_a_rebuilt_layer_has_device_and_dtype_of_the_old_one():
    model = make().double()
    model.rebuild_output_layer(3)
    assert model.classif_net.output.kernel.dtype == torch.float64
    model.train()
    model.rebuild_output_layer(3, loss_type="softmax")
    assert model.classif_net.output.training and model.classif_net.output.weight.dtype == torch.float64


def test_tables_that_do_not_fit_are_refused():
    model = make()
    for wrong in (
        {"class_names": ["a", "a"]},
        {"class_names": ["a"], "num_classes": 2},
        {"class_names": ["a"], "old_class_names": ["a"]},
        {"num_classes": 0},
    ):
        with pytest.raises(ValueError):
            model.rebuild_output_layer(**wrong)
    assert model.num_classes == 6


DINO = {
    "head_type": "dino",
    "loss_type": "softmax",
    "head_hid_dim": 20,
    "head_bottleneck_dim": 8,
    "num_embed_layers": 2,
}


@pytest.mark.parametrize("loss_type", ["arc-softmax", "softmax"])
@pytest.mark.parametrize(("use_norm", "norm_before"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("shared_norm_before", [True, False])
@pytest.mark.parametrize("factory", [make, make_2d])
def test_a_dino_model_becomes_a_classifier_with_the_same_embedding(
    factory, shared_norm_before, use_norm, norm_before, loss_type
):
    model = factory(
        **DINO, norm_before=shared_norm_before, proj_head_use_norm=use_norm, proj_head_norm_before=norm_before
    )
    before = model.extract_embed(X, LENGTHS)
    model.rebuild_output_layer(5, loss_type=loss_type)
    assert model.head_type == "x-vector" and model.num_classes == 5 and model.loss_type == loss_type
    torch.testing.assert_close(model.extract_embed(X, LENGTHS), before, rtol=1e-5, atol=1e-5)
    assert not any(k.startswith("proj_head_net") for k in model.state_dict())
    assert torch.equal(rebuilt(model)(X, LENGTHS), model(X, LENGTHS))
    if factory is make and use_norm:
        assert model.get_config()["head_use_norm"] and model.get_config()["head_use_in_norm"] == norm_before
    model.train()
    model(X, LENGTHS, torch.tensor([0, 4])).sum().backward()


def test_a_dino_model_has_no_margin_to_change():
    model = VARIANTS["dino"]()
    for call in (lambda: model.change_config(margin=0.1), model.compute_prototype_affinity):
        with pytest.raises(ConfigError, match="DINO"):
            call()


def test_prototype_affinity():
    model = make(ECAPA_ENC, norm_before=False)
    affinity = model.compute_prototype_affinity()
    assert affinity.shape == (6, 6) and torch.allclose(affinity.diagonal(), torch.ones(6))
    assert torch.allclose(affinity, affinity.T)


def test_gradients_of_the_output_layer_can_be_dropped():
    model = make().train()
    model(X, LENGTHS, torch.tensor([0, 1])).sum().backward()
    assert model.classif_net.output.kernel.grad is not None
    model.cancel_output_layer_grads()
    assert model.classif_net.output.kernel.grad is None
    assert model.classif_net.fc_blocks[0].linear.weight.grad is not None


def test_fine_tuning_options():
    kept = ResNet1dXVector.filter_finetune_args(margin=0.5, embed_dim=3, cos_scale=None, train_mode="full", other=1)
    assert kept == {"margin": 0.5, "train_mode": "full"}
    parser = ArgumentParser()
    ResNet1dXVector.add_finetune_args(parser, "xvector", skip=("dropout_rate",))
    values = parser.parse_args(["--xvector.margin=0.4", "--xvector.train-mode=ft-embed-affine"]).as_dict()["xvector"]
    assert "dropout_rate" not in values and values["loss_type"] is None
    model = make()
    model.change_config(**ResNet1dXVector.filter_finetune_args(**values))
    assert model.classif_net.output.cur_margin == 0.4 and model.train_mode == "ft-embed-affine"
