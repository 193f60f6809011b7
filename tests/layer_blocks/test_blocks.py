from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conv import apply_conv, make_conv
from hyperion_lite.layer_blocks.drop_connect import DropConnect, linear_rates
from hyperion_lite.layer_blocks.endpoint_block import EndpointBlock
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.res_block import BlockSpec
from hyperion_lite.layer_blocks.res_blocks import BLOCK_KINDS, block_kind, make_block
from hyperion_lite.layer_blocks.resample import AvgPool, MaxPool, NearestUpsample, SubPixelConv1d
from hyperion_lite.layer_blocks.squeeze_excitation import SE_TYPES, make_se
from tests.narchs.encoder_checks import randomize


def ones_padding(lengths: list[int], size: int) -> Padding:
    return Padding(torch.tensor(lengths), size)


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
)
def test_convolution_ends_where_the_item_ends(kernel, stride, dilation, lengths):
    conv = make_conv(1, 1, 1, kernel, stride, dilation).double()
    torch.nn.init.uniform_(conv.weight, 0.1, 1.0)
    size = max(lengths) + 3
    minimum = dilation * (kernel - 1) + 1 - 2 * conv.padding[0]
    lengths = [max(length, minimum) for length in lengths]
    size = max(size, max(lengths))
    x = torch.full((len(lengths), 1, size), math.nan, dtype=torch.float64)
    for row, length in zip(x, lengths, strict=True):
        row[:, :length] = 1.0
    h, padding = apply_conv(conv, x, ones_padding(lengths, size))
    assert padding is not None
    for i, length in enumerate(lengths):
        alone = conv(x[i : i + 1, :, :length])
        assert padding.lengths[i] == alone.size(-1)
        torch.testing.assert_close(h[i : i + 1, :, : alone.size(-1)], alone)
    assert padding.max_length == h.size(-1)


@pytest.mark.parametrize("pool_class", [MaxPool, AvgPool])
@pytest.mark.parametrize("ndim", [1, 2])
def test_pools_end_where_the_item_ends(pool_class, ndim):
    pool = pool_class(ndim, 3, 2)
    x = -torch.rand(2, 3, *([4] if ndim == 2 else []), 11) - 1.0
    # the last window of an odd length reads one position beyond the end
    alone, _ = pool(x[:1, ..., :7])
    x[0, ..., 7:] = 50.0
    h, padding = pool(x, ones_padding([7, 11], 11))
    assert padding.lengths.tolist() == [4, 6]
    torch.testing.assert_close(h[:1, ..., :4], alone)
    assert torch.isfinite(h).all()


def test_average_pool_counts_zeros():
    h, _ = AvgPool(1, 3, 2)(torch.ones(1, 1, 3))
    torch.testing.assert_close(h, torch.full((1, 1, 2), 2 / 3))


def test_upsampling_repeats_and_interleaves():
    x, padding = NearestUpsample(2)(torch.tensor([[[1.0, 2.0, 9.0]]]), ones_padding([2], 3))
    assert x.tolist() == [[[1, 1, 2, 2, 9, 9]]]
    assert padding.lengths.tolist() == [4]
    layer = SubPixelConv1d(1, 2, 3)
    with torch.no_grad():
        # channel block j holds the j-th output of every input position
        layer.conv.weight.copy_(torch.arange(6.0).view(6, 1, 1))
        layer.conv.bias.zero_()
    y, _ = layer(torch.tensor([[[1.0, 10.0]]]))
    assert y.tolist() == [[[0, 2, 4, 0, 20, 40], [1, 3, 5, 10, 30, 50]]]


def spec_for(ndim: int, **changes) -> BlockSpec:
    values = {"in_channels": 8, "channels": 8, "out_channels": 8, "se_r": 2, "in_freqs": 6, "out_freqs": 6, **changes}
    return BlockSpec(ndim, **values)


@pytest.mark.parametrize("name", BLOCK_KINDS)
@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_ignore_padding(name, ndim, stride):
    spec = spec_for(
        ndim, stride=stride, out_channels=32, in_freqs=6, out_freqs=6 // stride, dilation=2 if stride == 1 else 1
    )
    if not block_kind(name).bottleneck:
        spec = spec_for(ndim, stride=stride, out_channels=8, out_freqs=6 // stride, hid_act="swish")
    block = make_block(name, spec).double().eval()
    randomize(block)
    x = torch.randn(1, 8, *([6] if ndim == 2 else []), 9, dtype=torch.float64)
    batch = torch.cat([x, torch.full_like(x, 1e3)], dim=-1)
    with torch.no_grad():
        alone, none = block(x)
        h, padding = block(batch, ones_padding([9], 18))
    assert none is None
    assert padding.lengths.tolist() == [alone.size(-1)]
    torch.testing.assert_close(h[..., : alone.size(-1)], alone, rtol=1e-12, atol=1e-12)


def test_order_in_a_basic_block():
    for norm_before in (True, False):
        block = make_block("basic", spec_for(1, norm_before=norm_before, out_channels=8)).double().eval()
        randomize(block)
        x = torch.randn(2, 8, 10, dtype=torch.float64)
        if norm_before:
            h = F.relu(block.bn1(block.conv1(x)))
            expected = F.relu(block.bn2(block.conv2(h)) + x)
        else:
            h = block.bn1(F.relu(block.conv1(x)))
            expected = block.bn2(F.relu(block.conv2(h))) + x
        torch.testing.assert_close(block(x)[0], expected)


@pytest.mark.parametrize(
    ("stride", "conv_stride", "pool"), [(1, 1, None), (2, 2, None), (3, 1, (3, 3)), (4, 2, (3, 2)), (6, 2, (3, 3))]
)
def test_plain_1d_blocks_pool_the_residual(stride, conv_stride, pool):
    block = make_block("basic", spec_for(1, stride=stride, out_channels=16))
    layers = list(block.downsample)
    assert layers[0].stride == (conv_stride,)
    pools = [(layer.kernel_size, layer.stride) for layer in layers if isinstance(layer, MaxPool)]
    assert pools == ([] if pool is None else [pool])


@pytest.mark.parametrize("se_type", SE_TYPES)
def test_squeeze_excitation_shapes_and_padding(se_type):
    layer = make_se(se_type, 2, 4, 6, 2, "relu").double()
    x = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    batch = torch.cat([x, torch.full_like(x, math.nan)], dim=-1)
    h = layer(batch, ones_padding([7, 7], 14))
    torch.testing.assert_close(h[..., :7], layer(x))
    scale = layer(x) / x
    per_channel = (scale.amax(dim=2) - scale.amin(dim=2)).max() > 1e-6
    per_freq = (scale.amax(dim=1) - scale.amin(dim=1)).max() > 1e-6
    assert (bool(per_freq), bool(per_channel)) == {
        "cw-se": (True, False),
        "t-se": (True, True),
        "fw-se": (False, True),
        "cfw-se": (True, True),
    }[se_type]
    assert (scale - scale[..., :1]).abs().max() < 1e-9


def test_channel_frequency_index_of_the_t_se_vector():
    layer = make_se("t-se", 2, 2, 3, 1, None).double()
    x = torch.randn(1, 2, 3, 5, dtype=torch.float64)
    vector = x.mean(-1).reshape(6)
    logits = layer.conv2.weight[:, :, 0, 0] @ (layer.conv1.weight[:, :, 0, 0] @ vector)
    torch.testing.assert_close(layer(x), x * torch.sigmoid(logits.view(1, 2, 3, 1)))


@pytest.mark.parametrize("se_type", SE_TYPES)
def test_means_of_long_items_are_finite_in_half_precision(se_type):
    layer = make_se(se_type, 2, 4, 8, 2, "relu").half()
    x = torch.full((2, 4, 8, 4000), 40.0, dtype=torch.float16)
    padded = layer(x, Padding(torch.tensor([4000, 3000]), 4000))
    assert torch.isfinite(padded).all() and padded.dtype == torch.float16
    torch.testing.assert_close(padded, layer(x), rtol=1e-3, atol=0)


def test_squeeze_excitation_errors():
    with pytest.raises(ValueError, match="did you mean 'cfw-se'"):
        make_se("cfwse", 2, 4, 6, 2, "relu")
    with pytest.raises(ValueError, match="unknown squeeze-excitation 't-se'"):
        make_se("t-se", 1, 4, 0, 2, "relu")
    with pytest.raises(ValueError, match="use se_r <= 6"):
        make_se("fw-se", 2, 32, 6, 8, "relu")


def test_drop_connect_drops_whole_items_and_keeps_the_mean():
    layer = DropConnect(0.25).train()
    torch.manual_seed(3)
    y = layer(torch.ones(4000, 2, 3))
    assert y.flatten().unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert bool((y == y[:, :1, :1]).all())
    assert float(y.mean()) == pytest.approx(1.0, abs=0.05)
    x = torch.ones(3, 2)
    assert layer.eval()(x) is x
    assert list(linear_rates(0.3, 1)) == [0.3]
    assert list(linear_rates(0.3, 4)) == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_endpoint_blocks_change_scale():
    spec = spec_for(1, norm_before=False)
    x = torch.randn(1, 8, 12)
    assert EndpointBlock(spec, 8, 5, 2, 6)(x)[0].shape == (1, 5, 4)
    assert EndpointBlock(spec, 8, 5, 6, 2, "subpixel")(x)[0].shape == (1, 5, 36)
    names = set(EndpointBlock(spec, 8, 5, 6, 2, "subpixel").state_dict())
    assert {"resample.conv.weight", "resample.conv.bias", "bn.weight"} <= names
    names = set(EndpointBlock(spec_for(1, use_norm=False), 8, 5, 6, 2, "subpixel").state_dict())
    assert {"resample.0.conv.weight", "resample.1.weight"} <= names
    assert "bn.weight" not in names
    with pytest.raises(ValueError, match="not a multiple"):
        EndpointBlock(spec, 8, 5, 2, 3)


def test_receptive_fields_compose():
    first = ReceptiveField.window(3, 2, 1, 1)
    assert first.then(ReceptiveField.window(5, 3, 1, 2)) == ReceptiveField(5, 5, 6)
    assert first.beside(ReceptiveField(0, 4, 2)) == ReceptiveField(1, 4, 2)
    assert ReceptiveField.of(torch.nn.ReLU()) == ReceptiveField()


def test_impossible_convolutions():
    with pytest.raises(ValueError, match="3 convolution groups do not divide 8"):
        make_conv(1, 8, 8, groups=3)
    with pytest.raises(ValueError, match="impossible"):
        make_conv(2, 8, 0)
