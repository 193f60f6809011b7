from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import TooShortError
from hyperion_lite.layers.attention_pattern import ATT_TYPES
from hyperion_lite.narchs.conformer_encoder_v1 import ConformerEncoderV1
from hyperion_lite.narchs.fold_batch_norm import fold_batch_norm
from hyperion_lite.narchs.net_arch import NetArch
from tests.narchs.encoder_checks import (
    FILLS,
    check_batch_equals_alone,
    check_chunked_equals_whole,
    padded,
    random_input,
    randomize,
    relative_error,
)

SMALL = {"in_feats": 7, "d_model": 8, "num_heads": 2, "num_blocks": 2, "d_ff": 12, "conv_kernel_sizes": 5}


def small(seed: int = 0, **config: Any) -> ConformerEncoderV1:
    encoder = ConformerEncoderV1(**{**SMALL, **config}).double()
    randomize(encoder, seed)
    return encoder.eval()


@st.composite
def conformer_configs(draw: st.DrawFn) -> dict[str, Any]:
    config = {
        "att_type": draw(st.sampled_from(ATT_TYPES)),
        "att_context": draw(st.integers(1, 7)),
        "conv_repeats": draw(st.sampled_from([1, [1, 2], [0, 1]])),
        "conv_kernel_sizes": draw(st.sampled_from([1, 3, [5, 3]])),
        "conv_strides": draw(st.sampled_from([1, [1], [1, 2], [1, 3]])),
        "ff_type": draw(st.sampled_from(["linear", "conv1dx2", "conv1d-linear"])),
        "ff_kernel_size": draw(st.sampled_from([1, 3])),
        "in_layer_type": draw(st.sampled_from(["conv2d-sub", "conv1d-sub", "linear"])),
        "in_stride": draw(st.sampled_from([1, 2, 4])),
        "pos_enc_type": draw(st.sampled_from(["rel", "abs", "conv", "no"])),
        "causal_pos_enc": draw(st.booleans()),
        "pos_kernel_size": draw(st.sampled_from([1, 4, 5])),
        "pos_num_groups": 2,
        "hid_act": draw(st.sampled_from(["swish", "relu", "prelu", "softmax", None])),
        "conv_norm_layer": draw(st.sampled_from([None, "batch-norm", "group-norm", "layer-norm"])),
        "se_r": draw(st.sampled_from([None, 0, 1, 4])),
        "ff_macaron": draw(st.booleans()),
        "red_lnorms": draw(st.booleans()),
        "concat_after": draw(st.booleans()),
    }
    return config


class TestLengths:
    @given(
        config=conformer_configs(),
        lengths=st.lists(st.integers(1, 70), min_size=2, max_size=4),
        fill=st.sampled_from(FILLS),
        surplus=st.integers(0, 9),
    )
    @settings(max_examples=50, deadline=None)
    def test_an_item_of_a_batch_has_the_output_it_has_alone(self, config, lengths, fill, surplus):
        check_batch_equals_alone(small(**config), lengths, fill, max(lengths) + surplus, 1e-11)

    @pytest.mark.parametrize("in_stride", [1, 2, 4])
    @pytest.mark.parametrize("in_layer_type", ["conv2d-sub", "conv1d-sub", "linear"])
    def test_strides_keep_every_nth_frame_from_the_first(self, in_layer_type, in_stride):
        encoder = small(in_layer_type=in_layer_type, in_stride=in_stride, conv_strides=[2, 3])
        lengths = torch.arange(1, 60)
        expected = lengths
        for stride in (1 if in_layer_type == "linear" else in_stride, 2, 3):
            expected = (expected + stride - 1) // stride
        assert encoder.out_lengths(lengths).tolist() == expected.tolist()
        assert encoder.min_length == 1
        for n in (1, 13, 24):
            x = random_input(encoder, 1, n)
            assert encoder(x)[0].shape == encoder.out_shape(tuple(x.shape)) == (1, 8, expected[n - 1])

    def test_blocks_follow_the_item_not_the_batch(self):
        # alone, the short item is one block; with the blocks of the long one its frames would not meet
        encoder = small(att_type=ATT_TYPES[2], att_context=8, in_layer_type="linear", num_blocks=1)
        x = random_input(encoder, 2, 40)
        changed = x.clone()
        changed[1, :, 0] += 1.0
        lengths = torch.tensor([40, 15])
        with torch.no_grad():
            moved = (encoder(x, lengths)[0] - encoder(changed, lengths)[0]).abs().amax(1) > 1e-9
        assert moved[1, :15].all()
        assert not moved[0].any()

    def test_a_mask_does_what_lengths_do(self):
        encoder = small()
        x = random_input(encoder, 2, 30)
        mask = torch.arange(30) < torch.tensor([[30], [17]])
        assert torch.equal(encoder(x, mask)[0], encoder(x, torch.tensor([30, 17]))[0])

    def test_single_precision_with_random_statistics(self):
        for att_type in ATT_TYPES:
            encoder = small(att_type=att_type, att_context=6, d_model=32, d_ff=64, num_blocks=4).float()
            check_batch_equals_alone(encoder, [150, 90, 41, 4], math.nan, 160, 1e-5, torch.float32)


class TestChunks:
    @given(
        config=conformer_configs(),
        lengths=st.lists(st.integers(1, 260), min_size=1, max_size=3),
        extra=st.integers(0, 40),
        att_type=st.sampled_from(ATT_TYPES[1:]),
    )
    @settings(max_examples=40, deadline=None)
    def test_bounded_attention_is_exact_in_windows(self, config, lengths, extra, att_type):
        norm = None if config["conv_norm_layer"] == "group-norm" else config["conv_norm_layer"]
        encoder = small(**{**config, "se_r": None, "conv_norm_layer": norm, "att_type": att_type, "att_context": 3})
        assert encoder.is_convolutional
        check_chunked_equals_whole(encoder, lengths, max(lengths), encoder.min_chunk_length + extra)

    @pytest.mark.parametrize("att_type", ATT_TYPES[1:])
    @pytest.mark.parametrize("pos_enc_type", ["rel", "abs"])
    def test_windows_of_the_smallest_size(self, att_type, pos_enc_type):
        for context in (1, 2, 4):
            encoder = small(att_type=att_type, att_context=context, pos_enc_type=pos_enc_type, in_layer_type="linear")
            for length in range(encoder.min_chunk_length - 2, encoder.min_chunk_length + 40, 7):
                check_chunked_equals_whole(encoder, [length, 3], length, encoder.min_chunk_length)

    def test_what_sees_everything_is_an_approximation_and_says_so(self):
        for config in ({}, {"att_type": ATT_TYPES[1], "att_context": 3, "se_r": 2}):
            encoder = small(**config)
            assert not encoder.is_convolutional
            x = random_input(encoder, 1, 300)
            with torch.no_grad():
                whole, chunked = encoder(x)[0], encoder.forward_chunked(x, chunk_length=200)[0]
                in_one_piece = encoder.forward_chunked(x, chunk_length=300)[0]
            assert whole.shape == chunked.shape
            assert 1e-9 < relative_error(chunked, whole) < 1.5
            assert torch.equal(in_one_piece, whole)

    def test_chunks_of_full_attention_do_not_depend_on_the_batch(self):
        encoder = small(pos_enc_type="abs")
        items = [random_input(encoder, 1, n, seed=n) for n in (310, 120, 250)]
        x = padded(items, math.nan, 310)
        with torch.no_grad():
            batch, lengths = encoder.forward_chunked(x, torch.tensor([310, 120, 250]), 100)
            for row, item in enumerate(items):
                alone = encoder.forward_chunked(item, chunk_length=100)[0]
                assert relative_error(batch[row : row + 1, :, : lengths[row]], alone) <= 1e-12

    def test_a_window_without_room_for_the_context(self):
        encoder = small(att_type=ATT_TYPES[1], att_context=3)
        least = encoder.min_chunk_length
        with pytest.raises(ValueError, match=f"at least {least} frames"):
            encoder.forward_chunked(random_input(encoder, 1, 400), chunk_length=least - 1)


class TestTraining:
    @pytest.mark.parametrize("att_type", ATT_TYPES)
    def test_gradients_are_finite_and_none_comes_from_the_padding(self, att_type):
        encoder = small(att_type=att_type, att_context=3, se_r=2, att_dropout_rate=0.1).train()
        x = random_input(encoder, 3, 50)
        lengths = torch.tensor([50, 21, 5])
        x.requires_grad_()
        encoder(x, lengths)[0].pow(2).sum().backward()
        for row, length in enumerate(lengths.tolist()):
            assert torch.isfinite(x.grad[row]).all()
            assert (x.grad[row, :, :length] != 0).any()
            assert not x.grad[row, :, length:].any()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in encoder.parameters())

    def test_padding_of_nan_leaves_statistics_and_gradients_alone(self):
        lengths = torch.tensor([40, 17])
        results = []
        for fill in (0.0, math.nan):
            encoder = small(dropout_rate=0.0, pos_dropout_rate=0.0).train()
            items = [random_input(encoder, 1, n, seed=n) for n in (40, 17)]
            encoder(padded(items, fill, 40), lengths)[0].sum().backward()
            results.append([*(p.grad for p in encoder.parameters()), *encoder.buffers()])
        for zeros, nans in zip(*results, strict=True):
            assert torch.equal(zeros, nans)

    def test_dropout_everywhere_is_off_in_evaluation(self):
        rates = {"dropout_rate": 0.5, "pos_dropout_rate": 0.5, "att_dropout_rate": 0.5}
        encoder = small(**rates)
        x = random_input(encoder, 1, 30)
        assert torch.equal(encoder(x)[0], encoder(x)[0])
        assert torch.equal(encoder(x)[0], small()(x)[0])
        for name, rate in rates.items():
            part = small(**dict.fromkeys(rates, 0.0) | {name: rate}).train()
            assert not torch.equal(part(x)[0], part(x)[0]), name


class TestPrecision:
    @pytest.mark.parametrize("att_type", ATT_TYPES)
    @pytest.mark.parametrize("pos_enc_type", ["rel", "abs"])
    def test_half_precision(self, att_type, pos_enc_type):
        encoder = small(att_type=att_type, att_context=4, pos_enc_type=pos_enc_type).float()
        x = random_input(encoder, 2, 60, dtype=torch.float32)
        lengths = torch.tensor([60, 33])
        with torch.no_grad():
            expected = encoder(x, lengths)[0]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert relative_error(encoder(x, lengths)[0].float(), expected) < 0.05
            cast = encoder.bfloat16()(x.bfloat16(), lengths)[0]
        assert cast.dtype == torch.bfloat16
        assert relative_error(cast.float(), expected) < 0.1

    def test_training_under_autocast(self):
        encoder = small(att_type=ATT_TYPES[1], att_context=4).float().train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = encoder(random_input(encoder, 2, 60, dtype=torch.float32), torch.tensor([60, 33]))[0]
        h.float().sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in encoder.parameters())


class TestConfigurations:
    def test_the_defaults(self):
        config = ConformerEncoderV1(80).get_config()
        assert config == {
            "class_name": "ConformerEncoderV1",
            "in_feats": 80,
            "d_model": 256,
            "num_heads": 4,
            "num_blocks": 6,
            "att_type": "scaled-dot-prod-v1",
            "att_context": 25,
            "conv_repeats": 1,
            "conv_kernel_sizes": 31,
            "conv_strides": 1,
            "ff_type": "linear",
            "d_ff": 2048,
            "ff_kernel_size": 1,
            "dropout_rate": 0.1,
            "pos_dropout_rate": 0.1,
            "att_dropout_rate": 0.0,
            "in_layer_type": "conv2d-sub",
            "in_stride": 4,
            "pos_enc_type": "rel",
            "causal_pos_enc": False,
            "pos_kernel_size": 128,
            "pos_num_groups": 16,
            "hid_act": "swish",
            "conv_norm_layer": None,
            "se_r": None,
            "ff_macaron": True,
            "red_lnorms": True,
            "concat_after": False,
            "padding_idx": -1,
            "in_time_dim": 2,
            "out_time_dim": 2,
        }
        assert isinstance(NetArch.create(config), ConformerEncoderV1)

    def test_the_tensors_of_a_block(self):
        encoder = small(concat_after=True, se_r=2, num_blocks=1)
        linear = ["weight", "bias"]
        parts = {
            "norm_ff_macaron": linear,
            "feed_forward_macaron": [f"w_{i}.{leaf}" for i in (1, 2) for leaf in linear],
            "norm_att": linear,
            "self_attn": ["u", "v", *(f"linear_{n}.{leaf}" for n in ("q", "k", "v", "out", "pos") for leaf in linear)],
            "concat_linear": linear,
            "conv_blocks.0": [
                *(f"{name}.{leaf}" for name in ("layer_norm", "conv_exp", "conv_proj") for leaf in linear),
                "conv_dw.weight",
                *(f"norm_dw.{leaf}" for leaf in (*linear, "running_mean", "running_var", "num_batches_tracked")),
                "se_layer.conv1.weight",
                "se_layer.conv2.weight",
            ],
            "norm_ff": linear,
            "feed_forward": [f"w_{i}.{leaf}" for i in (1, 2) for leaf in linear],
            "norm_out": linear,
        }
        expected = {f"blocks.0.{part}.{leaf}" for part, leaves in parts.items() for leaf in leaves}
        expected |= {f"in_layer.{part}.{leaf}" for part in ("conv.0", "conv.2", "out.0") for leaf in linear}
        assert set(encoder.state_dict()) == expected

    @pytest.mark.parametrize(
        "config",
        [
            {"in_layer_type": "None", "in_feats": 8},
            {"in_layer_type": None, "in_feats": 8, "pos_enc_type": None},
            {"conv_norm_layer": "None", "hid_act": {"name": "relu", "inplace": True}},
            {"conv_repeats": [1], "conv_kernel_sizes": [3, 5], "conv_strides": [1]},
            {"se_r": 4.0, "in_time_dim": -1},
        ],
    )
    def test_spellings_of_files(self, config):
        encoder = ConformerEncoderV1.from_config({**SMALL, **config})
        again = ConformerEncoderV1(**encoder.get_config())
        assert again.get_config() == encoder.get_config()
        again.load_state_dict(encoder.state_dict())
        x = torch.randn(1, encoder.in_feats, 30)
        assert torch.equal(again.eval()(x)[0], encoder.eval()(x)[0])

    def test_tokens(self):
        encoder = small(in_layer_type="embed", in_feats=11)
        assert encoder.in_shape() == (None, None)
        tokens = torch.randint(0, 11, (2, 20))
        with torch.no_grad():
            batch, lengths = encoder(tokens, torch.tensor([20, 9]))
            assert relative_error(batch[1:, :, :9], encoder(tokens[1:, :9])[0]) <= 1e-12
        assert lengths.tolist() == [20, 9]
        with pytest.raises(ValueError, match="integer"):
            encoder(torch.rand(2, 20))
        encoder(tokens)[0].sum().backward()
        assert not encoder.in_layer[0].weight.grad[10].any()

    def test_stages(self):
        encoder = small(red_lnorms=False, conv_strides=[1, 2])
        x = random_input(encoder, 2, 33)
        stages = encoder.forward_hid_feats(x, torch.tensor([33, 20]))
        assert list(stages.feats) == ["in_layer", "blocks_0", "blocks_1", "norm_out"]
        assert [h.shape[-1] for h in stages.feats.values()] == [9, 9, 5, 5]
        assert [n.tolist() for n in stages.lengths.values()] == [[9, 5], [9, 5], [5, 3], [5, 3]]
        by_number = encoder.forward_hid_feats(x, torch.tensor([33, 20]), [0, 2])
        assert torch.equal(by_number.feats[2], stages.feats["blocks_1"])
        assert torch.equal(stages.output, stages.feats["norm_out"])

    def test_batch_norms_fold_into_the_convolutions(self):
        encoder = small().float()
        folded = fold_batch_norm(encoder)
        x = random_input(encoder, 2, 40, dtype=torch.float32)
        with torch.no_grad():
            assert relative_error(folded(x)[0], encoder(x)[0]) <= 1e-5
        assert not any(isinstance(part, torch.nn.BatchNorm1d) for part in folded.modules())

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"num_heads": 3}, "num_heads"),
            ({"att_type": "full"}, "unknown att_type 'full'"),
            ({"att_context": 0, "att_type": ATT_TYPES[2]}, "att_context"),
            ({"in_layer_type": "conv"}, "in_layer_type"),
            ({"in_layer_type": None}, "in_feats = 7 has to be d_model = 8"),
            ({"in_stride": 3}, "in_stride"),
            ({"in_feats": 4}, "too few for conv2d-sub"),
            ({"pos_enc_type": "sin"}, "pos_enc_type"),
            ({"pos_enc_type": "conv", "pos_num_groups": 3}, "pos_num_groups"),
            ({"conv_kernel_sizes": 4}, "conv_kernel_sizes"),
            ({"conv_kernel_sizes": [3, 3, 3]}, "3 values for the 2 blocks"),
            ({"conv_strides": 0}, "conv_strides"),
            ({"conv_repeats": 0, "conv_strides": 2}, "conv_repeats"),
            ({"ff_type": "conv2d"}, "ff_type"),
            ({"ff_type": "conv1dx2", "ff_kernel_size": 2}, "ff_kernel_size"),
            ({"d_ff": 0}, "d_ff"),
            ({"num_blocks": 0}, "num_blocks"),
            ({"in_time_dim": 1}, "in_time_dim"),
            ({"se_r": 9}, "se_r"),
            ({"in_layer_type": "embed", "padding_idx": 7}, "padding_idx"),
        ],
    )
    def test_settings_that_are_impossible(self, config, message):
        with pytest.raises(ValueError, match=message):
            ConformerEncoderV1(**{**SMALL, **config})

    def test_inputs_that_are_impossible(self):
        encoder = small()
        with pytest.raises(ValueError, match=r"\(batch, 7, time\)"):
            encoder(torch.zeros(1, 8, 20, dtype=torch.float64))
        with pytest.raises(TooShortError):
            encoder(torch.zeros(1, 7, 0, dtype=torch.float64))
