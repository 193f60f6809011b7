"""Fusion of the layers of an encoder: formulas, names of tensors, configurations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyperion_lite.core.config import check_config
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.feat_fuser import FeatFuserFactory

M, D = 3, 4
TYPES = ("last", "weighted-avg", "linear", "cat", "stack")


def make(fuser_type: str, **options) -> nn.Module:
    torch.manual_seed(0)
    fuser = FeatFuserFactory.create(fuser_type, M, D, **options).double()
    for parameter in fuser.parameters():
        nn.init.normal_(parameter)
    return fuser


def states() -> list[torch.Tensor]:
    return list(torch.randn(M, 2, 5, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


def shapes(fuser: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in fuser.state_dict().items()}


def test_formulas():
    h = states()
    stacked = torch.stack(h)
    assert torch.equal(make("last")(h), h[-1])
    assert torch.equal(make("last")(h[-1:]), h[-1])
    fuser = make("weighted-avg")
    torch.testing.assert_close(fuser(h), torch.einsum("m,mbtd->btd", fuser.feat_fuser.softmax(0), stacked))
    fuser = make("linear")
    torch.testing.assert_close(fuser(h), torch.einsum("m,mbtd->btd", fuser.feat_fuser.weight[0], stacked))
    fuser = make("cat", proj_dim=6)
    torch.testing.assert_close(fuser(h), torch.cat(h, -1) @ fuser.feat_fuser.weight.T + fuser.feat_fuser.bias)
    assert torch.equal(make("stack")(h), torch.cat(h, -1))


@pytest.mark.parametrize("fuser_type", ["last", "weighted-avg", "linear"])
def test_a_projection_follows_the_fusion(fuser_type):
    plain, projected = make(fuser_type), make(fuser_type, proj_dim=7)
    plain.load_state_dict({k: v for k, v in projected.state_dict().items() if not k.startswith("feat_proj")})
    torch.testing.assert_close(projected(states()), projected.feat_proj(plain(states())))
    assert projected.out_feats == 7 and plain.out_feats == D


def test_names_and_shapes_of_tensors():
    assert shapes(make("last")) == shapes(make("stack")) == {}
    assert shapes(make("weighted-avg")) == {"feat_fuser": (M,)}
    assert shapes(make("linear")) == {"feat_fuser.weight": (1, M)}
    assert shapes(make("cat")) == {"feat_fuser.weight": (D, M * D), "feat_fuser.bias": (D,)}
    assert shapes(make("cat", proj_dim=6, proj_bias=False)) == {"feat_fuser.weight": (6, M * D)}
    for fuser_type in ("last", "weighted-avg", "linear"):
        with_bias, without = (shapes(make(fuser_type, proj_dim=6, proj_bias=bias)) for bias in (True, False))
        assert with_bias["feat_proj.weight"] == without["feat_proj.weight"] == (6, D)
        assert with_bias["feat_proj.bias"] == (6,) and "feat_proj.bias" not in without


@pytest.mark.parametrize("fuser_type", ["weighted-avg", "linear"])
def test_a_new_fuser_takes_the_mean_of_the_layers(fuser_type):
    h = states()
    fuser = FeatFuserFactory.create(fuser_type, M, D).double()
    torch.testing.assert_close(fuser(h), torch.stack(h).mean(0))


@pytest.mark.parametrize("fuser_type", TYPES)
def test_the_configuration_rebuilds_the_fuser(fuser_type):
    options = {} if fuser_type == "stack" else {"proj_dim": 6, "proj_bias": False}
    fuser = make(fuser_type, **options)
    config = fuser.get_config()
    assert config == {
        "fuser_type": fuser_type,
        "num_feats": M,
        "feat_dim": D,
        "proj_dim": options.get("proj_dim"),
        "proj_bias": options.get("proj_bias", True),
    }
    again = FeatFuserFactory.create(**check_config(FeatFuserFactory, config)).double()
    again.load_state_dict(fuser.state_dict())
    assert torch.equal(again(states()), fuser(states()))


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        FeatFuserFactory.create("linar", M, D)
    with pytest.raises(ConfigError, match="num_feats and feat_dim"):
        FeatFuserFactory.create("last")
    with pytest.raises(ConfigError, match="'stack' has no projection"):
        FeatFuserFactory.create("stack", M, D, proj_dim=5)
    with pytest.raises(ConfigError, match="positive"):
        FeatFuserFactory.create("cat", M, D, proj_dim=0)
    with pytest.raises(ValueError, match=r"takes 3 layers of \(batch, time, 4\), got 2"):
        make("cat")(states()[:2])
    with pytest.raises(ValueError, match=r"got 3 of \(2, 5, 3\)"):
        make("last")([h[..., :3] for h in states()])
