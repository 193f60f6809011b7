from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.narchs.etdnn_encoder import ETDNNEncoder
from hyperion_lite.narchs.fold_batch_norm import fold_batch_norm
from hyperion_lite.narchs.net_arch import NetArch
from hyperion_lite.narchs.tdnn_encoder import TDNNEncoder
from tests.narchs.encoder_checks import (
    FILLS,
    NORM_POSITIONS,
    check_batch_equals_alone,
    check_chunked_equals_whole,
    check_receptive_field,
    random_input,
    randomize,
    relative_error,
)


def small(seed: int = 0, **config: Any) -> TDNNEncoder:
    encoder = TDNNEncoder(**{"in_feats": 5, "channels": [16, 16, 16, 16, 24], **config}).double()
    randomize(encoder, seed)
    return encoder


def test_the_published_layers():
    encoder = TDNNEncoder(in_feats=24)
    assert encoder.in_context() == (7, 7)
    sizes = [
        (b.conv.in_channels, b.conv.out_channels, b.conv.kernel_size[0], b.conv.dilation[0]) for b in encoder.blocks
    ]
    assert sizes == [(24, 512, 5, 1), (512, 512, 3, 2), (512, 512, 3, 3), (512, 512, 1, 1), (512, 1500, 1, 1)]
    extended = ETDNNEncoder(in_feats=24)
    contexts = [b.conv.dilation[0] * (b.conv.kernel_size[0] // 2) for b in extended.blocks]
    assert contexts == [2, 0, 2, 0, 3, 0, 4, 0, 0, 0]
    assert extended.in_context() == (11, 11)
    assert [b.conv.out_channels for b in extended.blocks] == [512] * 9 + [1500]


@torch.no_grad()
def test_frames_by_hand():
    """Affine map of the spliced frames, rectifier, norm; nothing but zeros beyond the ends."""
    encoder = small(norm_layer="batch-norm").eval()
    x = random_input(encoder, 1, 20)
    h = x[0].T
    for block, offsets in zip(encoder.blocks, [(-2, -1, 0, 1, 2), (-2, 0, 2), (-3, 0, 3), (0,), (0,)], strict=True):
        silence = h.new_zeros(10, h.size(1))
        wide = torch.cat([silence, h, silence])
        spliced = torch.cat([wide[10 + o : 10 + o + 20] for o in offsets], dim=1)
        matrix = block.conv.weight.movedim(2, 1).flatten(1)
        h = (spliced @ matrix.T + block.conv.bias).clamp(min=0)
        h = (h - block.bn.running_mean) / (block.bn.running_var + 1e-5).sqrt() * block.bn.weight + block.bn.bias
    assert relative_error(encoder(x)[0][0].T, h) <= 1e-12


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    extra=st.integers(0, 9),
    position=st.sampled_from(NORM_POSITIONS),
    fill=st.sampled_from(FILLS),
    kind=st.sampled_from([None, "layer-norm"]),
)
def test_items_do_not_depend_on_their_batch(lengths, extra, position, fill, kind):
    encoder = small(norm_layer=kind, **position)
    assert encoder.is_convolutional
    check_batch_equals_alone(encoder, lengths, fill, max(lengths) + extra, 1e-10)


@settings(max_examples=10, deadline=None)
@given(short=st.integers(1, 60), long=st.integers(41, 120), spare=st.integers(0, 20))
def test_chunks_give_the_whole_output(short, long, spare):
    encoder = small(dropout_rate=0.2)
    assert encoder.min_chunk_length == 15
    check_chunked_equals_whole(encoder, [short, long], max(short, long) + 3, 15 + spare)


@pytest.mark.parametrize("config", [{}, {"channels": [8, 8], "kernel_sizes": [4, 3], "dilations": [2, 5]}])
def test_context_is_the_receptive_field(config):
    check_receptive_field(small(hid_act="softplus", **config))


def test_stages_and_layers():
    encoder = small().eval()
    x = random_input(encoder, 2, 12)
    outputs = encoder.forward_hid_feats(x, torch.tensor([12, 7]), [0, "blocks_4"])
    assert torch.equal(outputs.feats["blocks_4"], outputs.output)
    assert outputs.feats[0].shape == (2, 16, 12)
    assert not outputs.feats[0][1, :, 7:].any()
    assert encoder.encoder_layers() == list(encoder.blocks)


def test_norms_fold_into_convolutions_where_they_follow_them():
    encoder = small(norm_before=True).eval()
    folded = fold_batch_norm(encoder)
    assert not [m for m in folded.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    x = random_input(encoder, 1, 15)
    assert relative_error(folded(x)[0], encoder(x)[0]) <= 1e-10


@pytest.mark.parametrize("cls", [TDNNEncoder, ETDNNEncoder])
def test_configuration_rebuilds_the_encoder(cls):
    encoder = cls(in_feats=4, channels=[8, 8], kernel_sizes=3, dilations=[1, 2], norm_before=True, dropout_rate=0.1)
    config = encoder.get_config()
    assert config["kernel_sizes"] == 3
    assert config["dropout_rate"] == 0.1
    rebuilt = NetArch.create(config)
    assert type(rebuilt) is cls
    assert rebuilt.get_config() == config
    rebuilt.load_state_dict(encoder.state_dict())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"channels": []}, "channels"),
        ({"channels": [8, 0]}, "channels"),
        ({"kernel_sizes": [3, 3]}, "kernel_sizes has 2 values for the 5 layers"),
        ({"dilations": 0}, "dilations must be positive"),
        ({"kernel_sizes": 4}, "odd kernel sizes"),
        ({"dropout_rate": 1.0}, "dropout_rate"),
        ({"in_feats": 0}, "in_feats"),
        ({"hid_act": "rellu"}, "relu"),
    ],
)
def test_impossible_configurations_say_why(config, message):
    with pytest.raises(ValueError, match=message):
        small(**config)
