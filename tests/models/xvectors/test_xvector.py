"""X-vectors on features: batches, outputs, configuration, train modes."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import ConfigError, LengthsError, TooShortError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.xvectors.resnet1d_xvector import ResNet1dXVector
from hyperion_lite.models.xvectors.resnet_xvector import ResNetXVector
from hyperion_lite.models.xvectors.xvector import XVector, XVectorOutput
from tests.models.xvectors.small_models import ECAPA_ENC, FEATS, HEAD, PLAIN_ENC, VARIANTS, frames, make, make_2d

every_variant = pytest.mark.parametrize("name", VARIANTS)


@every_variant
@settings(max_examples=4, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=3),
    fill=st.sampled_from([0.0, 1e3, float("nan")]),
    double=st.booleans(),
)
def test_an_item_in_a_padded_batch_is_the_item_alone(name, lengths, fill, double):
    model = VARIANTS[name]()
    dtype, tolerance = (torch.float64, 1e-10) if double else (torch.float32, 1e-5)
    model.to(dtype)
    lengths = [max(n, model.min_length) for n in lengths]
    x, x_lengths = frames(*lengths, fill=fill, dtype=dtype)
    with torch.no_grad():
        embeds, logits = model.extract_embed(x, x_lengths), model(x, x_lengths)
        for i, n in enumerate(lengths):
            alone = model.extract_embed(x[i : i + 1, :, :n])[0]
            assert (embeds[i] - alone).abs().max() <= tolerance * max(1.0, alone.abs().max().item())
            alone = model(x[i : i + 1, :, :n])[0]
            assert (logits[i] - alone).abs().max() <= tolerance * max(1.0, alone.abs().max().item())
    assert embeds.shape == (len(lengths), model.embed_dim) and logits.shape == (len(lengths), model.num_classes)


@every_variant
def test_training_on_a_padded_batch_has_finite_gradients_and_none_in_the_padding(name):
    model = VARIANTS[name]().train()
    x, lengths = frames(20, 9, 13)
    x.requires_grad_()
    loss = torch.nn.functional.cross_entropy(model(x, lengths, torch.tensor([0, 1, 2])), torch.tensor([0, 1, 2]))
    loss.backward()
    assert torch.isfinite(loss)
    for key, p in model.named_parameters():
        assert p.grad is None or torch.isfinite(p.grad).all(), key
    assert all(torch.isfinite(b).all() for b in model.buffers())
    assert x.grad[1, :, 9:].abs().max() == 0 and x.grad[1, :, :9].abs().max() > 0


@every_variant
def test_the_configuration_is_plain_and_rebuilds_the_model(name):
    model = VARIANTS[name]()
    config = model.get_config()
    assert json.loads(json.dumps(config)) == config
    before = copy.deepcopy(config)
    again = HyperTorchModel.load(cfg=config, state_dict=model.state_dict()).eval()
    assert type(again) is type(model) and config == before and again.get_config() == config
    x, lengths = frames(20, 11)
    assert torch.equal(again.extract_embed(x, lengths), model.extract_embed(x, lengths))
    single = type(model).load(cfg=config)
    assert list(single.state_dict()) == list(model.state_dict())


def test_arguments_are_not_changed():
    enc, pool, act = copy.deepcopy(ECAPA_ENC), {"pool_type": "lde", "num_comp": 2}, {"name": "relu6", "inplace": True}
    model = make(enc, pool_net=pool, hid_act=act)
    model.change_config(margin=0.4)
    model.rebuild_output_layer(3)
    assert (
        enc == ECAPA_ENC and pool == {"pool_type": "lde", "num_comp": 2} and act == {"name": "relu6", "inplace": True}
    )
    act["name"] = "tanh"
    assert model.get_config()["hid_act"] == {"name": "relu6", "inplace": True}


def test_keys_of_the_configuration():
    keys = [
        "class_name",
        "pool_net",
        "num_classes",
        "embed_dim",
        "num_embed_layers",
        "hid_act",
        "loss_type",
        "cos_scale",
        "margin",
        "margin_warmup_epochs",
        "intertop_k",
        "intertop_margin",
        "num_subcenters",
        "norm_layer",
        "use_norm",
        "norm_before",
        "head_norm_layer",
        "head_use_norm",
        "head_use_in_norm",
        "head_hid_dim",
        "head_bottleneck_dim",
        "proj_head_use_norm",
        "proj_head_norm_before",
        "dropout_rate",
        "embed_layer",
        "proj_feats",
        "head_type",
        "bias_weight_decay",
        "margin_warmup_steps",
    ]
    assert set(make().get_config()) == {*keys, "resnet_enc"}
    flat = [
        "resnet_type",
        "in_feats",
        "in_channels",
        "conv_channels",
        "base_channels",
        "in_kernel_size",
        "in_stride",
        "zero_init_residual",
        "groups",
        "replace_stride_with_dilation",
        "do_maxpool",
        "in_norm",
        "se_r",
        "res2net_scale",
        "res2net_width_factor",
        "freq_pos_enc",
    ]
    assert set(make_2d().get_config()) == {*keys, *flat}
    assert "class_name" not in make().get_config()["resnet_enc"]
    assert make().get_config()["pool_net"] == {"pool_type": "mean+stddev", "dim": -1, "keepdim": False}


def test_values_that_a_variant_forces_are_the_ones_saved():
    model = ResNetXVector("lresnet18", FEATS, conv_channels=64, base_channels=64, in_kernel_size=3, **HEAD)
    config = model.get_config()
    assert (config["conv_channels"], config["base_channels"]) == (16, 16)


def test_the_base_class_is_built_by_the_class_name_of_its_encoder():
    reference = make()
    config = {**reference.get_config(), "class_name": "XVector"}
    config["encoder_cfg"] = {"class_name": "ResNet1dEncoder", **config.pop("resnet_enc")}
    model = HyperTorchModel.load(cfg=config, state_dict=reference.state_dict()).eval()
    assert type(model) is XVector and model.get_config()["encoder_cfg"]["class_name"] == "ResNet1dEncoder"
    x, lengths = frames(15, 10)
    assert torch.equal(model(x, lengths), reference(x, lengths))


def test_pooling_by_name_is_pooling_by_configuration():
    by_name, by_config = make(pool_net="mean+logvar"), make(pool_net={"pool_type": "mean+logvar"})
    assert by_name.get_config() == by_config.get_config()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool_net": "mean+std"}, r"mean\+stddev"),
        ({"pool_net": {"pool_type": "avg", "dims": 1}}, "dims"),
        ({"pool_net": {"pool_type": "avg", "dim": 1}}, "dim must be -1"),
        ({"loss_type": "arc"}, "loss_type"),
        ({"head_type": "plda"}, "head_type"),
        ({"embed_layer": 1}, "embed_layer must be 0"),
        ({"head_use_in_norm": True}, "norm_before: false"),
        ({"head_type": "dino"}, "dino"),
        ({"num_classes": 0}, "num_classes"),
    ],
)
def test_configurations_that_cannot_be_built(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_unknown_keys_are_named():
    with pytest.raises(ConfigError, match=r"embed_dims.*embed_dim"):
        ResNet1dXVector.from_config({"resnet_enc": PLAIN_ENC, "num_classes": 3, "embed_dims": 4})
    with pytest.raises(ConfigError, match=r"resb_chanels"):
        ResNet1dXVector.from_config({"resnet_enc": {**PLAIN_ENC, "resb_chanels": 4}, "num_classes": 3})
    with pytest.raises(ConfigError, match=r"inner_feat'"):
        ResNet1dXVector.from_config({"resnet_enc": PLAIN_ENC, "num_classes": 3, "pool_net": {"inner_feat": 4}})


def test_instance_norm_of_the_encoder_is_batch_norm_in_the_head():
    model = make_2d(norm_layer="instance-norm-affine")
    assert "classif_net.fc_blocks.0.bn1.running_mean" in model.state_dict()


# outputs


def test_asked_layers_and_nothing_else():
    model = make(num_embed_layers=2)
    x, lengths = frames(20, 11)
    logits = model(x, lengths)
    assert isinstance(logits, torch.Tensor)

    both = model(x, lengths, enc_layers=[0, 2], classif_layers=[1, 0])
    assert isinstance(both, XVectorOutput)
    assert torch.equal(both.logits, logits) and both.h_feats is None
    assert [tuple(h.shape) for h in both.h_enc] == [(2, 8, 20), (2, 12, 10)]
    assert [n.tolist() for n in both.h_enc_lengths] == [[20, 11], [10, 6]]
    assert len(both.h_classif) == 2 and both.h_classif[0].shape == (2, 16)
    assert not both.h_enc[1][1, :, 6:].any()

    encoder = model(x, lengths, enc_layers=[1], return_output=False)
    assert encoder.logits is None and encoder.h_classif is None and len(encoder.h_enc) == 1
    head = model(x, lengths, classif_layers=[-1], return_output=False)
    assert head.logits is None and head.h_enc is None and torch.equal(head.h_classif[0], both.h_classif[0])
    assert model(x, lengths, enc_layers=[1]).h_classif is None


def test_layers_that_do_not_exist_are_refused():
    model = make()
    x, lengths = frames(20, 11)
    for layers in ({"enc_layers": [7]}, {"classif_layers": [1]}):
        with pytest.raises(ValueError):
            model(x, lengths, **layers)
    with pytest.raises(ValueError, match="embed_layer"):
        model.extract_embed(x, lengths, embed_layer=1)


def test_the_embedding_layer_comes_from_the_argument_or_the_configuration():
    model = make(num_embed_layers=3, embed_layer=1)
    x, lengths = frames(20, 11)
    default = model.extract_embed(x, lengths)
    assert torch.equal(default, model.extract_embed(x, lengths, embed_layer=1))
    assert not torch.equal(default, model.extract_embed(x, lengths, embed_layer=0))
    assert torch.equal(model.extract_embed(x, lengths, embed_layer=-1), model.extract_embed(x, lengths, embed_layer=2))


def test_the_embedding_of_a_dino_model_is_its_projection():
    model = VARIANTS["dino"]()
    x, lengths = frames(20, 11)
    embeds = model.extract_embed(x, lengths, embed_layer=5)
    torch.testing.assert_close(model(x, lengths), model.classif_net(embeds))
    assert [k for k in model.state_dict() if k.startswith("proj_head_net.proj")] == [
        "proj_head_net.proj.weight",
        "proj_head_net.proj.bias",
    ]


def test_masks_are_accepted_and_wrong_lengths_refused():
    model = make()
    x, lengths = frames(20, 11)
    mask = torch.arange(20)[None] < lengths[:, None]
    assert torch.equal(model(x, mask), model(x, lengths))
    for wrong in (lengths + 1, lengths.float(), lengths[:1], torch.tensor([20, 0])):
        with pytest.raises(LengthsError):
            model(x, wrong)
    with pytest.raises(ValueError, match="shape"):
        model(x[:, :4], lengths)


def test_labels_are_checked_and_give_no_margin_in_eval():
    model = make()
    x, lengths = frames(20, 11)
    assert torch.equal(model(x, lengths, torch.tensor([0, 5])), model(x, lengths))
    with pytest.raises(ValueError, match=r"y\[1\] = 6"):
        model(x, lengths, torch.tensor([0, 6]))


def test_too_short_items_are_named():
    model = make({**PLAIN_ENC, "in_kernel_size": 3})
    with pytest.raises((TooShortError, LengthsError)):
        model(torch.randn(2, FEATS, 5), torch.tensor([5, model.min_length - 1]))


# chunks


@pytest.mark.parametrize("factory", [make, make_2d])
def test_chunks_give_the_same_embedding_of_a_convolutional_encoder(factory):
    model = factory()
    x, lengths = frames(310, 150, 40)
    chunk = model.encoder_net.min_chunk_length + 16
    whole, chunked = model.extract_embed(x, lengths), model.extract_embed(x, lengths, chunk_length=chunk)
    assert (whole - chunked).norm() <= 1e-4 * whole.norm()
    assert torch.equal(model.extract_embed(x, lengths, chunk_length=1000), whole)
    with pytest.raises(ValueError, match="too short"):
        model.extract_embed(x, lengths, chunk_length=1)
    for wrong in (-1, 2.5, True):
        with pytest.raises(ValueError, match="chunk_length"):
            model.extract_embed(x, lengths, chunk_length=wrong)


def test_gradients_flow_through_chunks_unless_detached():
    model = make()
    x, lengths = frames(200, 150, fill=0.0)
    x.requires_grad_()
    model.extract_embed(x, lengths, chunk_length=60).sum().backward()
    assert x.grad[0].abs().sum(0).min() > 0
    x.grad = None
    model.extract_embed(x, lengths, chunk_length=60, detach_chunks=True).sum().backward()
    assert x.grad is None


# train modes


def run_step(model: XVector) -> None:
    model.train()
    x, lengths = frames(20, 11, 15)
    optimizer = torch.optim.SGD(list(model.trainable_parameters()), lr=0.1, weight_decay=0.1)
    logits = model(x, lengths, torch.tensor([0, 1, 2]))
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()
    optimizer.step()


@pytest.mark.parametrize("embed_layer", [0, 1])
def test_fine_tuning_the_embedding_leaves_everything_before_it_alone(embed_layer):
    pool = {"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 4}
    model = make(ECAPA_ENC, pool_net=pool, proj_feats=6, num_embed_layers=2, embed_layer=embed_layer, dropout_rate=0.3)
    model.set_train_mode("ft-embed-affine")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    run_step(model)
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    trained = tuple(f"classif_net.fc_blocks.{i}." for i in range(embed_layer, 2))
    assert changed and all(k.startswith((*trained, "classif_net.output")) for k in changed)
    for lead in (*trained, "classif_net.output"):
        assert any(k.startswith(lead) for k in changed)
    model.set_train_mode("full")
    run_step(model)
    assert not torch.equal(
        model.state_dict()["encoder_net.in_block.conv1.weight"], before["encoder_net.in_block.conv1.weight"]
    )


def test_fine_tuning_a_dino_embedding_trains_projection_and_head():
    model = VARIANTS["dino"]()
    model.set_train_mode("ft-embed-affine")
    names = {k.split(".")[0] for k, _ in model.trainable_named_parameters()}
    assert names == {"proj_head_net", "classif_net"}


def test_frozen_models_have_nothing_to_train():
    model = make()
    model.set_train_mode("frozen")
    assert list(model.trainable_parameters()) == [] and not model.train().encoder_net.training
    assert "ft-embed-affine" in model.valid_train_modes
    with pytest.raises(ValueError, match="ft-embed-affine"):
        model.set_train_mode("ft-embed_affine")


def test_weight_decay_of_biases_comes_from_the_configuration():
    model = make(bias_weight_decay=0.0)
    plain, biases = model.trainable_param_groups()
    assert biases["weight_decay"] == 0.0 and all(p.dim() > 1 for p in plain["params"])


# command line


def test_command_line_options_rebuild_the_model():
    parser = ArgumentParser()
    ResNet1dXVector.add_class_args(parser, "xvector")
    args = ["--xvector.num_classes=4", "--xvector.resnet_enc.in_feats=8", "--xvector.pool_net.pool_type=lde"]
    values = parser.parse_args([*args, "--xvector.embed-dim=12", "--xvector.resnet_enc.resb_channels=8"]).as_dict()
    model = ResNet1dXVector(**ResNet1dXVector.filter_args(**values["xvector"], other=1))
    assert model.embed_dim == 12 and model.num_classes == 4 and model.get_config()["pool_net"]["pool_type"] == "lde"
