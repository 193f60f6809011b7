"""Pooling: the formulas, and an item in a batch gets what it gets alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hyperion_lite.core.config import check_config
from hyperion_lite.core.errors import ConfigError, LengthsError
from hyperion_lite.layers.pool_factory import GlobalPool1dFactory

D = 6
CONFIGS = {
    "avg": {"pool_type": "avg"},
    "meanstd": {"pool_type": "mean+stddev"},
    "meanlogvar": {"pool_type": "mean+logvar"},
    "lde2": {"pool_type": "lde", "num_comp": 3, "use_bias": True},
    "lde1": {"pool_type": "lde", "num_comp": 3, "dist_pow": 1},
    "dot": {"pool_type": "scaled-dot-prod-att-v1", "num_heads": 2, "d_k": 4, "d_v": 5},
    "dot-bin": {"pool_type": "scaled-dot-prod-att-v1", "num_heads": 2, "d_k": 4, "d_v": 5, "bin_attn": True},
    "chwise": {"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 4},
    "chwise-bin": {"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 4, "bin_attn": True},
    "chwise-local": {"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 4, "use_global_context": False},
    "mhfa": {"pool_type": "mhfa", "num_layers": 2, "num_heads": 3, "d_k": 4, "d_v": 5},
    "mhfa-one-layer": {"pool_type": "mhfa", "num_heads": 2, "d_k": 4, "d_v": 5},
}
OUT_FEATS = {"avg": D, "lde1": 3 * D, "lde2": 3 * D, "dot": 10, "dot-bin": 10, "mhfa": 15, "mhfa-one-layer": 10}
every_pool = pytest.mark.parametrize("name", CONFIGS)


def make(name: str, **extra) -> nn.Module:
    torch.manual_seed(0)
    pool = GlobalPool1dFactory.create_for({**CONFIGS[name], **extra}, D).eval()
    for module in pool.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return pool


@every_pool
@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    value=st.sampled_from([0.0, 1e3, float("nan"), float("inf")]),
    double=st.booleans(),
)
def test_an_item_in_a_padded_batch_gets_what_it_gets_alone(name, lengths, value, double):
    pool = make(name)
    dtype, tolerance = (torch.float64, 1e-10) if double else (torch.float32, 1e-5)
    pool.to(dtype)
    x = torch.randn(len(lengths), D, 9, dtype=dtype)
    padded = x.clone()
    for item, n in zip(padded, lengths, strict=True):
        item[:, n:] = value
    padded.requires_grad_()
    y = pool(padded, torch.tensor(lengths))
    alone = torch.cat([pool(item[None, :, :n]) for item, n in zip(x, lengths, strict=True)])
    assert (y - alone).abs().max() <= tolerance * max(1.0, alone.abs().max().item())

    y.square().sum().backward()
    assert torch.isfinite(padded.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in pool.parameters())
    for item, n in zip(padded.grad, lengths, strict=True):
        assert not item[:, n:].any()


@every_pool
@pytest.mark.parametrize("training", [True, False])
def test_one_frame_and_constant_frames_have_finite_value_and_gradient(name, training):
    for x in (torch.randn(1, D, 1), torch.zeros(2, D, 4), torch.full((2, D, 1), 1e4)):
        pool = make(name).train(training)
        x = x.clone().requires_grad_()
        y = pool(x)
        y.sum().backward()
        assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()
        assert all(torch.isfinite(p.grad).all() for p in pool.parameters())


@every_pool
def test_keepdim_puts_a_size_one_axis_where_time_was(name):
    x = torch.randn(2, D, 7)
    plain = make(name)(x)
    assert plain.shape == (2, OUT_FEATS.get(name, 2 * D)) == (2, make(name).out_feats(D))
    assert torch.equal(make(name, keepdim=True)(x), plain[:, :, None])
    assert torch.equal(make(name, keepdim=True, dim=2)(x), plain[:, :, None])
    by_time = make(name, keepdim=True, dim=1)
    torch.testing.assert_close(by_time(x.transpose(1, 2)), plain[:, None])
    torch.testing.assert_close(
        by_time(x.transpose(1, 2), torch.tensor([7, 3])), make(name)(x, torch.tensor([7, 3]))[:, None]
    )


@every_pool
def test_masks_are_accepted_in_place_of_lengths(name):
    x = torch.randn(2, D, 5)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    assert torch.equal(make(name)(x, mask), make(name)(x, torch.tensor([5, 2])))


@every_pool
def test_the_configuration_rebuilds_the_layer(name):
    pool = make(name)
    config = pool.get_config()
    assert check_config(GlobalPool1dFactory, config) == config
    again = GlobalPool1dFactory.create(**config)
    again.load_state_dict(pool.state_dict())
    x = torch.randn(2, D, 5)
    assert torch.equal(again.eval()(x), pool(x))


@every_pool
def test_half_precision_input_is_pooled_in_float32(name):
    pool = make(name)
    x = torch.randn(2, D, 300).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = pool(x, torch.tensor([300, 20]))
    assert y.dtype == torch.bfloat16
    expected = pool(x.float(), torch.tensor([300, 20]))
    assert (y.float() - expected).abs().max() <= 0.05 * max(1.0, expected.abs().max().item())


@every_pool
def test_a_half_precision_layer_works(name):
    x = torch.randn(2, D, 30)
    y = make(name).bfloat16()(x.bfloat16(), torch.tensor([30, 20]))
    expected = make(name)(x, torch.tensor([30, 20]))
    assert y.dtype == torch.bfloat16
    assert (y.float() - expected).abs().max() <= 0.1 * max(1.0, expected.abs().max().item())


def test_statistics_are_those_of_the_formulas():
    x = torch.randn(2, D, 7, dtype=torch.float64)
    mean, var = x.mean(-1), x.var(-1, unbiased=False)
    torch.testing.assert_close(make("avg")(x), mean)
    torch.testing.assert_close(make("meanstd")(x), torch.cat([mean, var.sqrt()], 1))
    torch.testing.assert_close(make("meanstd")(0 * x), torch.cat([0 * mean, 0 * mean + math.sqrt(1e-5)], 1))
    torch.testing.assert_close(make("meanlogvar")(x), torch.cat([mean, ((x**2).mean(-1) - mean**2 + 1e-5).log()], 1))


@pytest.mark.parametrize("name", ["lde1", "lde2"])
def test_dictionary_encoding_is_that_of_the_formula(name):
    pool = make(name).double()
    for p in pool.parameters():
        nn.init.normal_(p)
    x = torch.randn(2, D, 7, dtype=torch.float64)
    delta = x.transpose(1, 2)[:, :, None] - pool.mu
    d = delta.square().sum(-1) if name == "lde2" else delta.norm(dim=-1)
    r = (-(pool.prec**2) * d + (0 if pool.bias is None else pool.bias)).softmax(-1)
    expected = (r[..., None] * delta).sum(1) / (r.sum(1)[..., None] + 1e-6)
    torch.testing.assert_close(pool(x), expected.flatten(1))


def test_dictionary_encoding_has_a_finite_gradient_where_a_frame_is_a_component():
    pool = make("lde1")
    x = pool.mu.detach().T[None].clone().requires_grad_()
    pool(x).sum().backward()
    assert torch.isfinite(x.grad).all() and torch.isfinite(pool.mu.grad).all()


@pytest.mark.parametrize("name", ["dot", "dot-bin"])
def test_dot_product_attention_is_that_of_the_formula(name):
    pool = make(name)
    x = torch.randn(2, D, 7)
    k = pool.linear_k(x.transpose(1, 2)).view(2, 7, 2, 4)
    v = pool.linear_v(x.transpose(1, 2)).view(2, 7, 2, 5)
    a = torch.einsum("hk,bthk->bht", pool.q[0, :, 0], k) / 2
    if name == "dot":
        w = a.softmax(-1)
    else:
        w = torch.sigmoid(a + pool.bias[..., 0])
        w = w / (w.sum(-1, keepdim=True) + 1e-9)
    torch.testing.assert_close(pool(x), torch.einsum("bht,bthv->bhv", w, v).flatten(1))


@pytest.mark.parametrize("name", ["chwise", "chwise-bin", "chwise-local"])
def test_channel_wise_attention_is_that_of_the_formula(name):
    pool = make(name)
    x = torch.randn(2, D, 7)
    h = pool.conv1(x)
    if name != "chwise-local":
        h = h + pool.lin_global(make("meanstd")(x))[:, :, None]
    a = pool.conv2(torch.tanh(pool.norm_layer(h)))
    w = (torch.sigmoid(a + pool.bias)).clamp(min=1e-6) if name == "chwise-bin" else a.softmax(-1)
    mean = (w * x).sum(-1) / w.sum(-1)
    var = (w * (x - mean[:, :, None]) ** 2).sum(-1) / w.sum(-1)
    torch.testing.assert_close(pool(x), torch.cat([mean, var.clamp(min=1e-5).sqrt()], 1))


def test_names_of_tensors():
    names = {name: [k for k in make(name).state_dict() if "." not in k or "norm" not in k] for name in CONFIGS}
    assert names["lde2"] == ["mu", "prec", "bias"] and names["lde1"] == ["mu", "prec"]
    assert names["dot"] == ["q", "linear_k.weight", "linear_k.bias", "linear_v.weight", "linear_v.bias"]
    assert make("dot-bin").state_dict()["bias"].shape == (1, 2, 1, 1)
    assert make("chwise-bin").state_dict()["bias"].shape == (1, D, 1)
    assert names["chwise"] == ["conv1.weight", "lin_global.weight", "conv2.weight", "conv2.bias"]


def test_training_statistics_of_the_attention_come_from_valid_frames():
    x = torch.randn(2, D, 6)
    x[1, :, 2:] = 1e6
    padded, alone = make("chwise-local").train(), make("chwise-local").train()
    padded(x, torch.tensor([6, 2]))
    alone.norm_layer(torch.cat([alone.conv1(x[:1]), alone.conv1(x[1:, :, :2])], -1))
    torch.testing.assert_close(padded.norm_layer.running_var, alone.norm_layer.running_var)


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"did you mean 'mean\+stddev'"):
        GlobalPool1dFactory.create("mean+std")
    with pytest.raises(ConfigError, match=r"inner_feat'.*inner_feats"):
        GlobalPool1dFactory.create_for({"pool_type": "avg", "inner_feat": 3}, D)
    with pytest.raises(ConfigError, match="in_feats"):
        GlobalPool1dFactory.create("lde")
    with pytest.raises(ConfigError, match="dim=0"):
        GlobalPool1dFactory.create("avg", dim=0)
    with pytest.raises(LengthsError):
        make("avg")(torch.randn(2, D, 5), torch.tensor([5, 6]))
    with pytest.raises(ValueError, match="batch, features, time"):
        make("avg")(torch.randn(2, 5))


def test_the_configuration_is_not_changed_and_the_alias_works():
    config = {"pool_type": "ch-wise-att-mean-stddev", "inner_feats": 4, "in_feats": 99}
    pool = GlobalPool1dFactory.create_for(config, D)
    assert config == {"pool_type": "ch-wise-att-mean-stddev", "inner_feats": 4, "in_feats": 99}
    assert pool.get_config() == {
        "in_feats": D,
        "inner_feats": 4,
        "bin_attn": False,
        "use_global_context": True,
        "dim": -1,
        "keepdim": False,
        "pool_type": "ch-wise-att-mean+stddev",
    }
