from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.config import check_config
from hyperion_lite.core.errors import TooShortError
from hyperion_lite.narchs.resnet1d_encoder import ResNet1dEncoder
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
    resnet1d_configs,
    small_resnet1d,
)

FIXTURES = ["ecapa", "resnet1d_sebasic", "resnet1d_basic_stride2", "mfcc_resnet1d", "subcenter_2embed", "dino_head"]


def load_fixture(name: str) -> tuple[ResNet1dEncoder, dict[str, np.ndarray]]:
    config = json.loads(shared_path(f"fixtures/hyperion/{name}.json").read_text())["config"]["xvector"]["resnet_enc"]
    encoder = ResNet1dEncoder.from_config(config)
    with open_pth(shared_path(f"fixtures/hyperion/{name}.pth")) as file:
        prefix = "model_state_dict.xvector.encoder_net."
        tensors = {name: file.read_torch(name) for name in file.tensors if name.startswith(prefix)}
    encoder.load_state_dict({name[len(prefix) :]: tensor for name, tensor in tensors.items()})
    with np.load(shared_path(f"fixtures/hyperion/{name}.npz")) as arrays:
        return encoder.eval(), dict(arrays)


@pytest.mark.parametrize("name", FIXTURES)
def test_stages_of_original_models(name):
    encoder, arrays = load_fixture(name)
    with torch.no_grad():
        outputs = encoder.forward_hid_feats(torch.from_numpy(arrays["feats"]))
    stages = {key[4:]: value for key, value in arrays.items() if key.startswith("enc_")}
    assert "out" in stages
    for stage, reference in stages.items():
        h = outputs.output if stage == "out" else outputs.feats[stage]
        assert h.shape == reference.shape
        assert np.abs(h.numpy() - reference).max() <= 1e-5 * max(1.0, np.abs(reference).max()), stage


def test_original_model_in_a_batch():
    encoder, arrays = load_fixture("ecapa")
    feats = torch.from_numpy(arrays["feats"])
    short = feats[..., :31]
    x = torch.full((2, *feats.shape[1:]), torch.nan)
    x[0], x[1, :, :31] = feats[0], short[0]
    with torch.no_grad():
        h, lengths = encoder(x, torch.tensor([feats.size(-1), 31]))
        assert lengths.tolist() == [feats.size(-1), 31]
        assert relative_error(h[:1], encoder(feats)[0]) <= 1e-5
        assert relative_error(h[1:, :, :31], encoder(short)[0]) <= 1e-5


@settings(max_examples=40, deadline=None)
@given(config=resnet1d_configs(), data=st.data())
def test_items_do_not_depend_on_their_batch(config, data):
    encoder = small_resnet1d(**config)
    fewest = fewest_frames(encoder, config["norm_layer"])
    lengths = data.draw(st.lists(st.integers(fewest, fewest + 40), min_size=1, max_size=3))
    frames = max(lengths) + data.draw(st.integers(0, 9))
    check_batch_equals_alone(encoder, lengths, data.draw(st.sampled_from(FILLS)), frames, 1e-10)


@settings(max_examples=25, deadline=None)
@given(config=resnet1d_configs(norms=(None, "layer-norm"), se=False), data=st.data())
def test_chunks_give_the_whole_output(config, data):
    encoder = small_resnet1d(**config)
    assert encoder.is_convolutional
    chunk = encoder.min_chunk_length + data.draw(st.integers(0, 12))
    lengths = [data.draw(st.integers(encoder.min_length, 3 * chunk)), 2 * chunk + data.draw(st.integers(0, chunk))]
    check_chunked_equals_whole(encoder, lengths, max(lengths) + data.draw(st.integers(0, 9)), chunk)


@pytest.mark.parametrize("concat", [True, False])
def test_chunks_cut_endpoints_where_the_whole_item_does(concat):
    encoder = small_resnet1d(
        resb_strides=[1, 2, 2],
        multilayer=True,
        multilayer_concat=concat,
        endpoint_layers=[2, 3],
        endpoint_scale_layer=0,
    )
    # endpoints of an item of 4 k + 1 frames have 4 k + 2 and 4 k + 4: the longer one is cut from its second position
    chunk = encoder.min_chunk_length + 5
    check_chunked_equals_whole(encoder, [4 * chunk + 1, 3 * chunk, 7, 4 * chunk - 1], 4 * chunk + 3, chunk)
    check_chunked_equals_whole(encoder, [4 * 40 + 1], 4 * 40 + 1, chunk)


@settings(max_examples=30, deadline=None)
@given(config=resnet1d_configs(), frames=st.integers(8, 70))
def test_lengths_are_those_of_the_output(config, frames):
    encoder = small_resnet1d(**config).eval()
    with torch.no_grad():
        h, _ = encoder(random_input(encoder, 1, frames))
    assert encoder.out_lengths(torch.tensor([frames])).tolist() == [h.size(-1)]
    assert encoder.out_shape((1, 5, frames)) == tuple(h.shape)
    assert encoder.out_shape() == (None, h.size(1), None)


FIELD_CONFIGS = {
    "basic": {"resb_strides": [1, 2, 3], "resb_dilations": [2, 1, 1]},
    "bn": {"resb_type": "bn", "resb_strides": [1, 4, 1], "resb_dilations": [1, 1, 3]},
    "res2bn": {"resb_type": "res2bn", "resb_strides": [1, 2, 1], "resb_dilations": [2, 1, 1]},
    "res2basic": {"resb_type": "res2basic", "resb_strides": [1, 2, 1], "resb_repeats": [1, 2, 1], "res2net_scale": 2},
    "even_stem": {"in_kernel_size": 4, "in_stride": 2, "resb_repeats": [1], "resb_strides": 1},
    "concat": {"resb_strides": [1, 2, 2], "multilayer": True, "multilayer_concat": True},
    "upsampled": {"resb_strides": [1, 2, 2], "multilayer": True, "endpoint_scale_layer": 0},
    "upsampled_only": {
        "resb_strides": [1, 2, 2],
        "multilayer": True,
        "endpoint_scale_layer": 0,
        "endpoint_layers": [2, 3],
        "multilayer_concat": True,
        "upsampling_mode": "subpixel",
    },
}


@pytest.mark.parametrize("name", FIELD_CONFIGS)
def test_context_is_the_receptive_field(name):
    check_receptive_field(small_resnet1d(**{"hid_act": "softplus", **FIELD_CONFIGS[name]}))


@pytest.mark.parametrize("resb_type", ["basic", "sebn", "res2basic", "seres2bn"])
@pytest.mark.parametrize("norm_before", [True, False])
def test_training_with_padding_has_finite_gradients(resb_type, norm_before):
    encoder = small_resnet1d(
        resb_type=resb_type, norm_before=norm_before, resb_strides=[1, 4, 3], dropout_rate=0.3, drop_connect_rate=0.5
    ).train()
    x = random_input(encoder, 3, 30)
    x[0, :, 11:], x[1, :, 29:] = torch.nan, torch.inf
    x.requires_grad_()
    h, _ = encoder(x, torch.tensor([11, 29, 30]))
    h.square().sum().backward()
    assert torch.isfinite(h).all()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[0, :, 11:].any()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_padding_does_not_change_training_statistics():
    configs = {"resb_type": "res2bn", "resb_strides": [2, 1, 4], "multilayer": True, "endpoint_scale_layer": 0}
    first, second = small_resnet1d(**configs).train(), small_resnet1d(**configs).train()
    x = random_input(first, 2, 24)
    first(x)
    second(torch.cat([x, torch.full((2, 5, 7), 1e3, dtype=x.dtype)], dim=-1), torch.tensor([24, 24]))
    for name, buffer in first.named_buffers():
        torch.testing.assert_close(buffer, second.get_buffer(name), msg=name)


def test_one_block_with_drop_connect_is_finite():
    encoder = small_resnet1d(resb_repeats=[1], drop_connect_rate=0.5).train()
    torch.manual_seed(0)
    assert torch.isfinite(encoder(random_input(encoder, 4, 9))[0]).all()


def test_gradients_reach_the_input_in_eval():
    encoder = small_resnet1d(resb_type="seres2bn", resb_strides=1).eval()
    x = random_input(encoder, 1, 20).requires_grad_()
    encoder(x)[0].sum().backward()
    assert x.grad.abs().sum() > 0


def test_chunks_keep_a_graph_on_request_only():
    encoder = small_resnet1d(resb_type="basic", resb_strides=[1, 2, 1]).eval()
    x = random_input(encoder, 1, 120).requires_grad_()
    chunk = encoder.min_chunk_length + 4
    h, none = encoder.forward_chunked(x, chunk_length=chunk)
    assert not h.requires_grad
    assert none is None
    assert not encoder.forward_chunked(x, chunk_length=200)[0].requires_grad
    h, _ = encoder.forward_chunked(x, chunk_length=chunk, detach=False)
    (chunked,) = torch.autograd.grad(h.square().sum(), x)
    (whole,) = torch.autograd.grad(encoder(x)[0].square().sum(), x)
    assert relative_error(chunked, whole) <= 1e-10


def test_chunks_bound_the_activations():
    encoder = small_resnet1d(resb_type="basic", resb_strides=1)
    widest = []
    encoder.blocks[0][0].register_forward_hook(lambda module, args, output: widest.append(output[0].size(-1)))
    encoder.eval().forward_chunked(random_input(encoder, 1, 500), chunk_length=60)
    assert max(widest) <= 60


def test_an_item_that_fits_a_chunk_is_one_piece():
    encoder = small_resnet1d(resb_type="seres2bn", resb_strides=[1, 2, 1]).eval()
    chunk = encoder.min_chunk_length
    x = random_input(encoder, 2, 4 * chunk)
    short = x[:1, :, :chunk]
    with torch.no_grad():
        h, lengths = encoder.forward_chunked(x, torch.tensor([chunk, 4 * chunk]), chunk_length=chunk)
        assert relative_error(h[:1, :, : lengths[0]], encoder(short)[0]) <= 1e-10


def test_too_small_chunks_are_refused_with_the_minimum():
    encoder = small_resnet1d(resb_strides=[1, 2, 2])
    x = random_input(encoder, 1, 300)
    minimum = encoder.min_chunk_length
    with pytest.raises(ValueError, match=str(minimum)):
        encoder.forward_chunked(x, chunk_length=minimum - 1)
    with pytest.raises(ValueError, match="chunk_length"):
        encoder.forward_chunked(x, chunk_length=-1)
    assert encoder.eval().forward_chunked(x, chunk_length=minimum)[0].shape == encoder(x)[0].shape


def test_squeeze_excitation_and_instance_norm_are_not_convolutional():
    assert small_resnet1d(norm_layer="layer-norm").is_convolutional
    assert not small_resnet1d(resb_type="sebasic").is_convolutional
    assert not small_resnet1d(norm_layer="instance-norm").is_convolutional


def test_two_eval_calls_are_identical():
    encoder = small_resnet1d(dropout_rate=0.5, drop_connect_rate=0.5, resb_type="seres2bn").eval()
    x = random_input(encoder, 2, 25)
    assert torch.equal(encoder(x)[0], encoder(x)[0])


def test_inner_stages_by_number_and_name():
    encoder = small_resnet1d(resb_strides=[1, 2, 2], multilayer=True, multilayer_concat=True, head_channels=3).eval()
    x = random_input(encoder, 2, 21)
    outputs = encoder.forward_hid_feats(x, torch.tensor([21, 10]), [0, 2, "concat_endpoint_block"])
    assert list(outputs.feats) == [0, 2, "concat_endpoint_block"]
    assert outputs.lengths[2].tolist() == [11, 5]
    assert outputs.feats[2].shape == (2, 16, 11)
    assert not outputs.feats[2][1, :, 5:].any()
    assert torch.equal(outputs.output, encoder(x, torch.tensor([21, 10]))[0])
    with pytest.raises(ValueError, match="blocks_0"):
        encoder.forward_hid_feats(x, layers=["block_0"])
    with pytest.raises(ValueError, match="0 to 3"):
        encoder.forward_hid_feats(x, layers=[4])


def test_superblocks_without_influence_are_reported_and_not_run(caplog):
    encoder = small_resnet1d(multilayer=True, endpoint_layers=[1, 2]).eval()
    assert "without influence" in caplog.text
    x = random_input(encoder, 1, 20)
    runs = []
    encoder.blocks[2][0].register_forward_hook(lambda *_: runs.append(1))
    h, _ = encoder(x)
    assert not runs
    outputs = encoder.forward_hid_feats(x, layers=[3])
    assert outputs.feats[3].shape == (1, 16, 3)
    assert torch.equal(outputs.output, h)


def test_the_context_of_absurd_strides_costs_no_memory():
    encoder = small_resnet1d(multilayer=True, resb_strides=[10**5, 10**6, 10**7], endpoint_scale_layer=0)
    assert encoder.alignment >= 10**18 and min(encoder.in_context()) > 10**6


def test_full_lengths_and_masks_are_accepted():
    encoder = small_resnet1d().eval()
    x = random_input(encoder, 2, 16)
    whole, _ = encoder(x)
    h, lengths = encoder(x, torch.tensor([16, 16]))
    assert torch.equal(h, whole)
    assert lengths.tolist() == [2, 2]
    mask = torch.arange(16)[None] < torch.tensor([[16], [9]])
    assert torch.equal(encoder(x, mask)[0], encoder(x, torch.tensor([16, 9]))[0])


def test_inputs_that_do_not_fit():
    encoder = small_resnet1d(in_kernel_size=4)
    with pytest.raises(ValueError, match=r"\(batch, 5, time\)"):
        encoder(torch.zeros(2, 16, 5))
    with pytest.raises(ValueError, match="larger"):
        encoder(torch.zeros(1, 5, 10), torch.tensor([11]))
    assert encoder.min_length == 2
    with pytest.raises(TooShortError, match="item 1"):
        encoder(torch.zeros(2, 5, 10, dtype=torch.float64), torch.tensor([10, 1]))


def test_half_precision_keeps_its_type():
    encoder = small_resnet1d(resb_type="seres2bn", resb_strides=[1, 2, 4]).bfloat16().eval()
    h, _ = encoder(torch.randn(2, 5, 30).bfloat16(), torch.tensor([30, 12]))
    assert h.dtype == torch.bfloat16


def test_config_round_trip():
    config = {
        "in_feats": 7,
        "resb_type": "seres2bn",
        "resb_repeats": (1, 1),
        "resb_channels": [16, 32],
        "resb_strides": 1,
    }
    encoder = ResNet1dEncoder(**config)
    rebuilt = ResNet1dEncoder.from_config(encoder.get_config())
    assert rebuilt.get_config() == encoder.get_config()
    assert encoder.get_config()["resb_repeats"] == [1, 1]
    assert json.loads(json.dumps(encoder.get_config())) == encoder.get_config()
    assert {k: v.shape for k, v in rebuilt.state_dict().items()} == {
        k: v.shape for k, v in encoder.state_dict().items()
    }
    check_config(ResNet1dEncoder, config)


def test_unused_projections_are_kept_but_not_trained():
    encoder = small_resnet1d(resb_type="res2basic", resb_channels=[16, 32], resb_repeats=[1, 1], resb_strides=[1, 2])
    names = [name for name in encoder.state_dict() if "blocks.1.0.proj1s" in name]
    assert names == ["blocks.1.0.proj1s.0.weight", "blocks.1.0.proj1s.1.weight"]
    assert not [name for name, _ in encoder.named_parameters() if "proj1s" in name]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"resb_type": "sebasik"}, "did you mean 'sebasic'"),
        ({"resb_kernel_sizes": 4}, "odd"),
        ({"resb_channels": [16, 16]}, "resb_channels has 2 values for the 3"),
        ({"resb_strides": [1, 0, 1]}, "resb_strides must be positive"),
        ({"resb_repeats": []}, "resb_repeats"),
        ({"resb_groups": 5}, "5 convolution groups"),
        ({"resb_type": "sebasic", "se_r": 17}, "se_r"),
        ({"resb_type": "res2bn", "res2net_scale": 32}, "res2net_scale = 32"),
        ({"multilayer": True, "endpoint_layers": [0, 1]}, "endpoint_layers"),
        ({"multilayer": True, "endpoint_layers": [2, 2]}, "endpoint_layers"),
        ({"multilayer": True, "endpoint_scale_layer": 3}, "endpoint_scale_layer"),
        ({"multilayer": True, "endpoint_scale_layer": 0, "upsampling_mode": "linear"}, "upsampling_mode"),
        ({"dropout_rate": 1.0}, "dropout_rate"),
        ({"drop_connect_rate": -0.1}, "drop_connect_rate"),
        ({"norm_layer": "batchnorm"}, "batch-norm"),
        ({"hid_act": "rellu"}, "relu"),
        ({"in_feats": 0}, "in_feats"),
    ],
)
def test_impossible_configurations_say_why(config, message):
    with pytest.raises(ValueError, match=message):
        small_resnet1d(**config)


@pytest.mark.parametrize("resb_type", ["basic", "sebn", "seres2basic", "seres2bn"])
def test_items_do_not_depend_on_their_batch_in_float32(resb_type):
    encoder = small_resnet1d(
        resb_type=resb_type, resb_strides=[1, 2, 3], multilayer=True, endpoint_scale_layer=0
    ).float()
    check_batch_equals_alone(encoder, [1, 40, 17, 23], torch.nan, 44, 1e-5, torch.float32)
