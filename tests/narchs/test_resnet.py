from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.layer_blocks.conv import NoNorm
from hyperion_lite.narchs.resnet import ResNet
from hyperion_lite.narchs.resnet_types import RESNET_TYPES, SE_PREFIXES
from hyperion_lite.pth import open_pth
from tests.helpers import shared_path
from tests.narchs.encoder_checks import (
    FILLS,
    check_batch_equals_alone,
    check_chunked_equals_whole,
    check_receptive_field,
    fewest_frames,
    random_input,
    relative_error,
    small_resnet,
)


def test_table_of_types_is_that_of_the_original():
    original = json.loads(shared_path("fixtures/hyperion/resnet_types.json").read_text())
    assert set(RESNET_TYPES) == set(original)
    for name, entry in original.items():
        ours = RESNET_TYPES[name]
        forced = dict(ours.forced)
        if ours.widths is not None:
            forced["resb_channels"] = list(ours.widths)
        if ours.endpoint_channels is not None:
            forced.update(multilevel=True, endpoint_channels=ours.endpoint_channels)
        assert (ours.block, list(ours.depths), ours.se_type) == (entry["block"], entry["depths"], entry["se"]), name
        assert forced == entry["forced"], name


@pytest.mark.parametrize(
    "name", [name for name in RESNET_TYPES if "152" not in name and "202" not in name and "101" not in name]
)
def test_every_type_can_be_built(name):
    # on the meta device only names and shapes are made
    with torch.device("meta"):
        encoder = ResNet(name, 1, 80, se_r=8)
    assert encoder.get_config()["resnet_type"] == name
    assert encoder.out_feats == encoder.out_shape()[1] * encoder.out_shape()[2]


@pytest.mark.parametrize("name", ["resnet34", "fwseresnet34_chatt"])
def test_stages_of_original_models(name):
    config = json.loads(shared_path(f"fixtures/hyperion/{name}.json").read_text())["config"]["xvector"]
    encoder = ResNet(**ResNet.filter_args(**config)).eval()
    prefix = "model_state_dict.xvector.encoder_net."
    with open_pth(shared_path(f"fixtures/hyperion/{name}.pth")) as file:
        tensors = {key[len(prefix) :]: file.read_torch(key) for key in file.tensors if key.startswith(prefix)}
    encoder.load_state_dict(tensors)
    with np.load(shared_path(f"fixtures/hyperion/{name}.npz")) as arrays:
        x = torch.from_numpy(arrays["feats"])
        stages = {key[4:]: arrays[key] for key in arrays.files if key.startswith("enc_")}
    with torch.no_grad():
        outputs = encoder.forward_hid_feats(x)
    assert {"out", "in_block", "layer1", "layer4"} <= set(stages)
    for stage, reference in stages.items():
        h = outputs.output if stage == "out" else outputs.feats[stage]
        assert h.shape == reference.shape
        assert np.abs(h.numpy() - reference).max() <= 1e-5 * max(1.0, np.abs(reference).max()), stage


@st.composite
def resnet_configs(draw, prefixes=tuple(SE_PREFIXES), norms=(None, "group-norm", "instance-norm-affine", "layer-norm")):
    # deep ones are slow and show nothing more
    family = draw(st.sampled_from(["resnet18", "resnet18", "res2net18", "lresnet34_345", "resnet50", "lres2net50"]))
    prefix = "" if family == "lresnet34_345" else draw(st.sampled_from(prefixes))
    config = {
        "resnet_type": prefix + family,
        "in_channels": draw(st.sampled_from([1, 1, 2])),
        "in_feats": draw(st.sampled_from([24, 33])),
        "in_kernel_size": draw(st.sampled_from([3, 5])),
        "in_stride": draw(st.sampled_from([1, 1, 2])),
        "hid_act": draw(st.sampled_from(["relu", "swish"])),
        "norm_layer": draw(st.sampled_from(norms)),
        "norm_before": draw(st.booleans()),
        "do_maxpool": draw(st.booleans()),
        "in_norm": draw(st.booleans()),
        "replace_stride_with_dilation": draw(st.none() | st.lists(st.booleans(), min_size=3, max_size=3)),
        "freq_pos_enc": draw(st.booleans()),
        "dropout_rate": 0.1,
        # the deepest layer can have a single frequency
        "se_r": 1,
    }
    if "res2" in family and config["norm_layer"] == "group-norm":
        # four groups do not divide Res2Net groups of two channels
        config["norm_layer"] = None
    if prefix == "cfwse":
        # needs four frequencies in the deepest layer
        config.update(in_feats=37, in_stride=1, do_maxpool=False)
    return config


@settings(max_examples=15, deadline=None)
@given(config=resnet_configs(), data=st.data())
def test_items_do_not_depend_on_their_batch(config, data):
    encoder = small_resnet(**config)
    fewest = fewest_frames(encoder, config["norm_layer"])
    lengths = data.draw(st.lists(st.integers(fewest, fewest + 30), min_size=1, max_size=2))
    frames = max(lengths) + data.draw(st.integers(0, 9))
    check_batch_equals_alone(encoder, lengths, data.draw(st.sampled_from(FILLS)), frames, 1e-9)


@pytest.mark.parametrize(
    "config",
    [
        {"resnet_type": "resnet18", "do_maxpool": True, "norm_before": False},
        {"resnet_type": "res2net18", "in_stride": 2, "in_norm": True},
        {"resnet_type": "lresnet34_345"},
        {"resnet_type": "resnet50", "replace_stride_with_dilation": [True, False, False]},
    ],
    ids=lambda config: config["resnet_type"],
)
def test_chunks_give_the_whole_output(config):
    encoder = small_resnet(**{"in_feats": 6, **config})
    assert encoder.is_convolutional
    chunk = encoder.min_chunk_length + 21
    check_chunked_equals_whole(encoder, [chunk + 77, 5, chunk + 10, chunk], chunk + 80, chunk)


@pytest.mark.parametrize(
    "config",
    [
        {"resnet_type": "resnet18", "do_maxpool": True},
        {"resnet_type": "res2net18", "in_stride": 2},
        {"resnet_type": "lresnet34_345", "in_feats": 8},
        {"resnet_type": "resnet18", "replace_stride_with_dilation": [False, True, True]},
    ],
    ids=lambda config: config["resnet_type"],
)
def test_context_is_the_receptive_field(config):
    check_receptive_field(small_resnet(hid_act="softplus", **{"in_feats": 9, **config}))


@settings(max_examples=8, deadline=None)
@given(config=resnet_configs(), frames=st.integers(1, 40))
def test_shapes_and_lengths_are_those_of_the_output(config, frames):
    encoder = small_resnet(**config).eval()
    x = random_input(encoder, 2, frames)
    with torch.no_grad():
        h, _ = encoder(x)
    assert encoder.out_shape(tuple(x.shape)) == tuple(h.shape)
    assert encoder.out_lengths(torch.tensor([frames])).tolist() == [h.size(-1)]
    flat = encoder.flatten(h)
    assert flat.shape == (2, encoder.out_feats, h.size(-1))
    assert torch.equal(flat[:, 1 * h.size(2) + h.size(2) - 1], h[:, 1, -1])


def test_batch_equals_alone_in_float32():
    for name in ("resnet18", "tseresnet18", "lresnet34_345"):
        encoder = small_resnet(name).float()
        check_batch_equals_alone(encoder, [60, 23, 1], torch.nan, 64, 1e-5, torch.float32)


def test_training_with_padding_has_finite_gradients():
    for name in ("cfwseresnet18", "lresnet34_345", "seres2net50"):
        encoder = small_resnet(name, in_feats=32, do_maxpool=name == "seres2net50", dropout_rate=0.2).train()
        x = random_input(encoder, 2, 20)
        x[0, ..., 9:] = torch.nan
        x.requires_grad_()
        h, _ = encoder(x, torch.tensor([9, 20]))
        h.square().sum().backward()
        assert torch.isfinite(x.grad).all()
        for key, parameter in encoder.named_parameters():
            assert parameter.grad is not None, key
            assert torch.isfinite(parameter.grad).all(), key


def test_types_win_over_the_configuration_and_are_saved():
    encoder = ResNet("lresnet34", 1, 16, conv_channels=64, base_channels=64)
    assert encoder.in_block.conv.weight.shape[0] == 16
    config = encoder.get_config()
    assert (config["conv_channels"], config["base_channels"]) == (16, 16)
    rebuilt = ResNet.from_config(config)
    assert rebuilt.get_config() == config
    assert {k: v.shape for k, v in rebuilt.state_dict().items()} == {
        k: v.shape for k, v in encoder.state_dict().items()
    }


def test_names_of_optional_tensors():
    names = set(small_resnet("fwseres2net18", in_norm=True, freq_pos_enc=True, in_feats=32).state_dict())
    assert {
        "in_bn.weight",
        "layer1.0.pos_enc.pos_enc",
        "layer2.0.conv1x1.weight",
        "layer2.0.downsample.1.weight",
    } <= names
    assert not [name for name in names if "proj1s" in name and name.startswith("layer2.0")]
    assert "layer4.0.downsample.weight" in small_resnet(norm_before=False).state_dict()
    names = set(small_resnet("cfwseresnet18", in_feats=32).state_dict())
    assert {"layer1.0.se_layer.cw_se.conv1.weight", "layer1.0.se_layer.fw_se.conv2.weight"} <= names


def test_frequency_encoding_is_sized_by_the_input_of_the_block():
    encoder = small_resnet("seresnet50", freq_pos_enc=True, in_feats=18)
    sizes = [encoder.get_submodule(f"layer{i}.0.pos_enc").pos_enc.shape for i in range(1, 5)]
    assert sizes == [(18, 1), (18, 1), (9, 1), (5, 1)]
    assert encoder.eval()(random_input(encoder, 1, 12))[0].shape == (1, 256, 3, 2)


def test_frequency_encoding_without_squeeze_excitation_is_reported(caplog):
    with caplog.at_level(logging.WARNING):
        encoder = small_resnet("resnet18", freq_pos_enc=True)
    assert "freq_pos_enc has no effect" in caplog.text
    assert not [name for name in encoder.state_dict() if "pos_enc" in name]


def test_dilation_keeps_the_resolution():
    encoder = small_resnet(replace_stride_with_dilation=[True, False, True]).eval()
    assert encoder.total_stride == 2
    assert [block.conv1.dilation for layer in (encoder.layer2, encoder.layer4) for block in layer] == [
        (1, 1),
        (2, 2),
        (2, 2),
        (4, 4),
    ]
    assert encoder(random_input(encoder, 1, 21))[0].shape == (1, 64, 8, 11)


def test_zero_init_makes_blocks_start_as_identities():
    encoder = ResNet("resnet18", 1, 16, conv_channels=8, base_channels=8, zero_init_residual=True).eval()
    x = torch.rand(1, 8, 16, 10)
    assert torch.equal(encoder.layer1[0](x)[0], x)
    with pytest.raises(ValueError, match="zero_init_residual"):
        small_resnet(zero_init_residual=True, norm_layer="instance-norm")


def test_input_with_a_channel_axis():
    encoder = small_resnet().eval()
    x = random_input(encoder, 2, 12)
    assert torch.equal(encoder(x)[0], encoder(x.unsqueeze(1))[0])
    with pytest.raises(ValueError, match=r"\(batch, 16, time\) or \(batch, 1, 16, time\)"):
        encoder(x.transpose(1, 2))


def test_squeeze_excitation_chunks_approximate():
    encoder = small_resnet("seresnet18").eval()
    assert not encoder.is_convolutional
    x = random_input(encoder, 1, 400)
    with torch.no_grad():
        chunked, _ = encoder.forward_chunked(x, chunk_length=encoder.min_chunk_length + 40)
        whole, _ = encoder(x)
    assert 0 < relative_error(chunked, whole) < 0.5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"resnet_type": "tseresnet3"}, "did you mean 'tseresnet34'"),
        ({"replace_stride_with_dilation": [True]}, "3 flags"),
        ({"resnet_type": "fwseresnet18", "se_r": 4}, "se_r = 4 leaves no hidden unit for 2 frequencies"),
        ({"resnet_type": "cfwseresnet18"}, "frequencies"),
        ({"resnet_type": "seresnet18", "se_r": 0}, "se_r"),
        ({"groups": 3}, "3 convolution groups"),
        ({"in_feats": 0}, "in_feats"),
        ({"in_kernel_size": 24, "in_feats": 1}, "too small"),
        ({"resnet_type": "res2net50", "res2net_scale": 16}, "res2net_scale = 16"),
    ],
)
def test_impossible_configurations_say_why(config, message):
    with pytest.raises(ValueError, match=message):
        small_resnet(**config)


def test_no_norm_is_left_where_one_belongs():
    assert not [module for module in small_resnet().modules() if isinstance(module, NoNorm)]
