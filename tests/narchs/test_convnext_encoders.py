from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hyperion_lite.core.errors import TooShortError
from hyperion_lite.layers.grn import GlobalResponseNorm
from hyperion_lite.narchs.convnext1d_encoder import ConvNext1dEncoder
from hyperion_lite.narchs.convnext2d_encoder import ConvNext2dEncoder
from hyperion_lite.narchs.convnext_encoder import ConvNextEncoder
from hyperion_lite.narchs.net_arch import NetArch
from tests.narchs.encoder_checks import (
    FILLS,
    check_batch_equals_alone,
    check_chunked_equals_whole,
    check_receptive_field,
    random_input,
    randomize,
    relative_error,
)


def small(two: bool = False, seed: int = 0, **config: Any) -> ConvNextEncoder:
    shape = {"in_feats": 24, "convb_repeats": [1, 1], "convb_channels": 6, "in_stride": 2}
    encoder = (ConvNext2dEncoder if two else ConvNext1dEncoder)(**{**shape, **config}).double()
    randomize(encoder, seed)
    return encoder


def without_response_norm(encoder: ConvNextEncoder) -> ConvNextEncoder:
    """The same with response norms that only shift: then an output depends on its context alone."""
    for module in encoder.modules():
        if isinstance(module, GlobalResponseNorm):
            nn.init.zeros_(module.gamma)
    return encoder


@st.composite
def configs(draw: st.DrawFn, two: bool | None = None) -> dict[str, Any]:
    two = draw(st.booleans()) if two is None else two
    count = draw(st.integers(1, 3))
    config: dict[str, Any] = {
        "two": two,
        "in_kernel_size": draw(st.integers(1, 5)),
        "in_stride": draw(st.integers(1, 2 if two else 4)),
        "convb_repeats": draw(st.lists(st.integers(1, 2), min_size=count, max_size=count)),
        "convb_channels": draw(st.sampled_from([6, [6, 8, 6][:count]])),
        "downb_strides": draw(st.lists(st.integers(1, 2 if two else 4), min_size=count - 1, max_size=count - 1)),
        "hid_act": draw(st.sampled_from(["gelu", "relu", "swish", "prelu", "softmax"])),
        "drop_path_rate": 0.1,
    }
    if not two:
        config["convb_kernel_sizes"] = draw(st.sampled_from([1, 3, 7]))
        config["convb_dilations"] = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    if draw(st.booleans()):
        layers = draw(st.none() | st.lists(st.integers(1, count), min_size=1, max_size=count, unique=True))
        config.update(
            multilayer=True,
            multilayer_concat=draw(st.booleans()),
            endpoint_channels=draw(st.sampled_from([None, 7])),
            endpoint_layers=layers,
            endpoint_scale_layer=draw(st.integers(-count, count - 1)),
        )
    return config


@settings(max_examples=40, deadline=None)
@given(config=configs(), data=st.data())
def test_items_do_not_depend_on_their_batch(config, data):
    encoder = small(**config)
    fewest = encoder.min_length
    lengths = data.draw(st.lists(st.integers(fewest, fewest + 40), min_size=1, max_size=3))
    frames = max(lengths) + data.draw(st.integers(0, 9))
    check_batch_equals_alone(encoder, lengths, data.draw(st.sampled_from(FILLS)), frames, 1e-10)


@pytest.mark.parametrize("two", [False, True])
def test_items_do_not_depend_on_their_batch_in_float32(two):
    encoder = small(two, downb_strides=1, multilayer=True, multilayer_concat=True).float()
    least = encoder.min_length
    check_batch_equals_alone(encoder, [least, least + 40, least + 17], torch.nan, least + 44, 1e-5, torch.float32)


@settings(max_examples=25, deadline=None)
@given(config=configs(), data=st.data())
def test_without_response_norm_chunks_give_the_whole_output(config, data):
    config["hid_act"] = "gelu"
    encoder = without_response_norm(small(**config))
    chunk = encoder.min_chunk_length + data.draw(st.integers(0, 12))
    lengths = [data.draw(st.integers(encoder.min_length, 3 * chunk)), 2 * chunk + data.draw(st.integers(0, chunk))]
    check_chunked_equals_whole(encoder, lengths, max(lengths) + data.draw(st.integers(0, 9)), chunk)


@pytest.mark.parametrize("two", [False, True])
def test_chunks_do_not_depend_on_the_batch_and_are_said_to_be_approximate(two):
    encoder = small(two).eval()
    assert not encoder.is_convolutional
    chunk = encoder.min_chunk_length + 6
    x = random_input(encoder, 2, 3 * chunk)
    lengths = torch.tensor([3 * chunk, 2 * chunk + 1])
    with torch.no_grad():
        h, h_lengths = encoder.forward_chunked(x, lengths, chunk_length=chunk)
        for i, length in enumerate(lengths.tolist()):
            alone, _ = encoder.forward_chunked(x[i : i + 1, ..., :length], chunk_length=chunk)
            assert relative_error(h[i : i + 1, ..., : h_lengths[i]], alone) <= 1e-10


@settings(max_examples=30, deadline=None)
@given(config=configs(), frames=st.integers(0, 60))
def test_lengths_are_those_of_the_output(config, frames):
    encoder = small(**config).eval()
    frames += encoder.min_length
    x = random_input(encoder, 1, frames)
    with torch.no_grad():
        h, _ = encoder(x)
        assert encoder.out_lengths(torch.tensor([frames])).tolist() == [h.size(-1)]
        assert encoder.out_shape(tuple(x.shape)) == tuple(h.shape)
        if encoder.min_length > 1:
            with pytest.raises(TooShortError, match=f"minimum is {encoder.min_length}"):
                encoder(x[..., : encoder.min_length - 1])


def test_a_gap_without_a_stride_takes_a_frame_away():
    wider = small(convb_channels=[6, 8], downb_strides=1, in_stride=1, in_kernel_size=3)
    assert wider.downsample_blocks[1].conv.kernel_size == (2,)
    assert wider.out_lengths(torch.tensor([2, 10])).tolist() == [1, 9]
    assert wider.min_length == 2
    same = small(downb_strides=1, in_stride=1, in_kernel_size=3)
    assert same.out_lengths(torch.tensor([2, 10])).tolist() == [2, 10]
    assert not [name for name in same.state_dict() if name.startswith("downsample_blocks.1")]
    flat = small(True, downb_strides=1, in_stride=1, in_kernel_size=3)
    assert flat.frame_shape == (6, 23)
    assert flat.out_lengths(torch.tensor([10])).tolist() == [9]


FIELDS = {
    "plain": {"convb_dilations": [2, 1], "convb_kernel_sizes": [3, 5], "downb_strides": 3},
    "gap_of_size_2": {"convb_channels": [6, 8], "downb_strides": 1, "in_kernel_size": 5},
    "downsampled": {"convb_kernel_sizes": 3, "downb_strides": 4, "multilayer": True},
    "upsampled": {
        "convb_repeats": [1, 1, 1],
        "convb_kernel_sizes": 3,
        "downb_strides": [2, 3],
        "multilayer": True,
        "multilayer_concat": True,
        "endpoint_scale_layer": 0,
    },
    "two": {"two": True, "multilayer": True, "in_stride": 1},
}


@pytest.mark.parametrize("name", FIELDS)
def test_context_is_the_receptive_field(name):
    check_receptive_field(without_response_norm(small(hid_act="softplus", **FIELDS[name])))


@pytest.mark.parametrize("two", [False, True])
def test_training_with_padding_has_finite_gradients(two):
    encoder = small(two, hid_act="relu", drop_path_rate=0.3, multilayer=True, endpoint_scale_layer=0).train()
    x = random_input(encoder, 3, 60)
    x[1, ..., 40:] = torch.nan
    x.requires_grad_()
    encoder(x, torch.tensor([60, 40, 20]))[0].square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[1, ..., 40:].any()
    assert not x.grad[2, ..., 20:].any()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters())


def test_branches_are_left_out_in_training_only():
    encoder = small(convb_repeats=[2, 3], drop_path_rate=0.4)
    rates = [block.drop_path.rate for superblock in encoder.conv_blocks for block in superblock]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert [b.drop_path.rate for b in small(convb_repeats=[1], drop_path_rate=0.4).conv_blocks[0]] == [0.4]
    x = random_input(encoder, 2, 40)
    torch.manual_seed(0)
    outputs = [encoder.train()(x)[0] for _ in range(4)]
    assert any(not torch.equal(outputs[0], other) for other in outputs)
    encoder.eval()
    assert torch.equal(encoder(x)[0], encoder(x)[0])


@pytest.mark.parametrize("two", [False, True])
def test_a_head_gives_one_vector_an_item(two):
    encoder = small(two, head_channels=5, head_act="tanh").eval()
    x = random_input(encoder, 2, 60)
    assert encoder.out_shape() == (None, 5)
    with torch.no_grad():
        y, lengths = encoder(x, torch.tensor([60, 33]))
        assert y.shape == (2, 5)
        assert lengths is None
        assert relative_error(y[1:], encoder(x[1:, ..., :33])[0]) <= 1e-10
        stages = encoder.forward_hid_feats(x, None, [2])
        mean = stages.feats[2].flatten(2).mean(dim=2)
        assert relative_error(stages.output, encoder.head(encoder.head_norm(mean)).tanh()) <= 1e-10
        with pytest.raises(ValueError, match="head_channels"):
            encoder.forward_chunked(x, chunk_length=40)
        assert torch.equal(encoder.forward_chunked(x)[0], encoder(x)[0])


def test_inner_stages_by_number_and_name():
    encoder = small(convb_repeats=[1, 1, 1], downb_strides=[2, 1], convb_channels=[6, 6, 8], multilayer=True).eval()
    assert encoder.layer_names == ("downsample_blocks_0", "conv_blocks_0", "conv_blocks_1", "conv_blocks_2")
    x = random_input(encoder, 2, 40)
    outputs = encoder.forward_hid_feats(x, torch.tensor([40, 21]))
    assert {name: h.size(-1) for name, h in outputs.feats.items()} == {
        "downsample_blocks_0": 20,
        "conv_blocks_0": 20,
        "conv_blocks_1": 10,
        "conv_blocks_2": 9,
        "endpoint_blocks_0": 10,
        "endpoint_blocks_1": 10,
        "endpoint_blocks_2": 9,
    }
    assert not outputs.feats["conv_blocks_2"][1, :, outputs.lengths["conv_blocks_2"][1] :].any()
    with pytest.raises(ValueError, match="did you mean 'conv_blocks_0'"):
        encoder.forward_hid_feats(x, layers=["conv_block_0"])


def test_superblocks_behind_the_last_endpoint_do_not_train(caplog):
    encoder = small(convb_repeats=[1, 1, 1], convb_channels=[6, 6, 8], multilayer=True, endpoint_layers=[1, 2]).eval()
    assert "without influence" in caplog.text
    frozen = {name.rsplit(".", 1)[0] for name, p in encoder.named_parameters() if not p.requires_grad}
    assert frozen and all(name.startswith(("downsample_blocks.2", "conv_blocks.2")) for name in frozen)
    encoder.freeze().unfreeze()
    assert {name.rsplit(".", 1)[0] for name, p in encoder.named_parameters() if not p.requires_grad} == frozen
    runs = []
    encoder.conv_blocks[2][0].register_forward_hook(lambda *_: runs.append(1))
    x = random_input(encoder, 1, 30)
    h, _ = encoder(x)
    assert not runs
    assert torch.equal(encoder.forward_hid_feats(x, layers=[3]).output, h)
    assert runs


def test_a_stage_behind_the_last_endpoint_needs_its_own_number_of_frames():
    sizes = {"convb_repeats": [1, 1, 1], "in_stride": 1, "in_kernel_size": 1, "endpoint_scale_layer": 0}
    encoder = small(multilayer=True, endpoint_layers=[1], **sizes).eval()
    assert encoder.min_length == 1
    x = random_input(encoder, 2, 8)
    for short, lengths in ((x[..., :3], None), (x, torch.tensor([8, 3]))):
        assert encoder(short, lengths)[0].size(0) == 2
        with pytest.raises(TooShortError, match="minimum is 4"):
            encoder.forward_hid_feats(short, lengths, [3])
    assert encoder.forward_hid_feats(x[..., :4], layers=[3]).feats[3].size(-1) == 1


def test_layers_for_gradual_unfreezing_go_from_input_to_output():
    encoder = small(convb_repeats=[1, 2], convb_channels=[6, 8])
    layers = encoder.encoder_layers()
    assert layers == [encoder.conv_blocks[0][0], encoder.downsample_blocks[1], *encoder.conv_blocks[1]]


@pytest.mark.parametrize("two", [False, True])
def test_configuration_rebuilds_the_encoder(two):
    encoder = small(two, multilayer=True, hid_act={"name": "relu", "inplace": True}, norm_layer=None)
    config = encoder.get_config()
    assert json.loads(json.dumps(config)) == config
    assert config["norm_layer"] == "layer-norm"
    rebuilt = NetArch.create(config)
    assert type(rebuilt) is type(encoder)
    assert rebuilt.get_config() == config
    rebuilt.load_state_dict(encoder.state_dict())


@pytest.mark.parametrize("two", [False, True])
def test_half_precision_and_autocast(two):
    encoder = small(two, downb_strides=1, multilayer=True).float().eval()
    x = random_input(encoder, 2, 40, dtype=torch.float32)
    with torch.no_grad():
        exact, _ = encoder(x, torch.tensor([40, 30]))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h, _ = encoder(x, torch.tensor([40, 30]))
        assert relative_error(h.float(), exact) <= 0.05
        encoder.bfloat16()
        h, _ = encoder(x.bfloat16(), torch.tensor([40, 30]))
    assert h.dtype == torch.bfloat16
    assert relative_error(h.float(), exact) <= 0.1


def test_input_channels_of_the_2d_encoder():
    x = random_input(small(True), 2, 30)
    assert torch.equal(small(True)(x)[0], small(True)(x[:, None])[0])
    stereo = small(True, in_channels=2)
    assert stereo(random_input(stereo, 2, 30))[0].shape == (2, 6, 6, 7)
    with pytest.raises(ValueError, match=r"\(batch, 2, 24, time\)"):
        stereo(x)


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"short_name": "picco"}, "did you mean 'pico'"),
        ({"norm_layer": "rms-norm"}, "rms-norm"),
        ({"convb_repeats": []}, "convb_repeats"),
        ({"convb_repeats": [1, 0]}, "convb_repeats"),
        ({"convb_channels": [8, 8, 8]}, "convb_channels has 3 values for the 2 superblocks of convb_repeats"),
        ({"downb_strides": [2, 2]}, "downb_strides has 2 values for the 1 gaps"),
        ({"downb_strides": 0}, "downb_strides must be positive"),
        ({"in_stride": 0}, "in_stride"),
        ({"head_channels": -1}, "head_channels"),
        ({"drop_path_rate": 1.0}, "drop_path_rate"),
        ({"hid_act": "gellu"}, "gelu"),
        ({"in_feats": 0}, "in_feats"),
        ({"multilayer": True, "endpoint_layers": [0]}, "endpoint_layers"),
        ({"multilayer": True, "endpoint_scale_layer": 2}, "endpoint_scale_layer"),
    ],
)
def test_impossible_configurations_say_why(two, config, message):
    with pytest.raises(ValueError, match=message):
        small(two, **config)


def test_impossible_configurations_of_one_kind():
    with pytest.raises(ValueError, match="odd kernel sizes"):
        small(convb_kernel_sizes=4)
    assert small(convb_kernel_sizes=4, convb_dilations=2).out_lengths(torch.tensor([8])).tolist() == [2]
    with pytest.raises(ValueError, match="in_feats is missing"):
        small(True, in_feats=None)
    with pytest.raises(ValueError, match="in_feats = 2 is too small"):
        small(True, in_feats=2)


def test_it_computes_what_transformers_does():
    """Where the two agree on padding: with a first convolution of size 1."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_sizes": [6, 8, 10], "depths": [2, 1, 3]}
    config = transformers.ConvNextV2Config(num_channels=2, patch_size=1, num_stages=3, layer_norm_eps=1e-6, **sizes)
    theirs = transformers.ConvNextV2Model(config).double().eval()
    randomize(theirs)
    encoder = ConvNext2dEncoder(
        in_feats=16,
        in_channels=2,
        in_kernel_size=1,
        in_stride=1,
        convb_repeats=sizes["depths"],
        convb_channels=sizes["hidden_sizes"],
    )
    names = [
        (r"embeddings\.patch_embeddings", "downsample_blocks.0.conv"),
        (r"embeddings\.layernorm", "downsample_blocks.0.norm"),
        (r"encoder\.stages\.(\d+)\.downsampling_layer\.0", r"downsample_blocks.\1.norm"),
        (r"encoder\.stages\.(\d+)\.downsampling_layer\.1", r"downsample_blocks.\1.conv"),
        (r"encoder\.stages\.(\d+)\.layers", r"conv_blocks.\1"),
        (r"grn\.weight", "grn.gamma"),
        (r"grn\.bias", "grn.beta"),
        (r"(conv_blocks.*)layernorm", r"\1norm"),
    ]
    state = {}
    for name, value in theirs.state_dict().items():
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        if not name.startswith("layernorm"):
            state[name] = value
    encoder.double().load_state_dict(state)
    x = random_input(encoder, 2, 22)
    with torch.no_grad():
        expected = theirs(x).last_hidden_state
        # older versions of transformers normalise in single precision whatever the input is
        tolerance = 1e-12 if int(transformers.__version__.partition(".")[0]) >= 5 else 1e-6
        assert relative_error(encoder.eval()(x)[0], expected) <= tolerance
