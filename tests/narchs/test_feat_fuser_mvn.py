"""Hidden states as features: order of the steps, padding, configuration."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm
from hyperion_lite.layers.spec_augment import SpecAugment
from hyperion_lite.narchs.feat_fuser_mvn import FeatFuserMVN
from hyperion_lite.narchs.net_arch import NetArch

M, D, T = 3, 4, 12
MVN = {"norm_mean": True, "norm_var": True, "left_context": 2, "right_context": 2}
MASKS = {"time_mask_prob": 1.0, "time_mask_min_width": 2, "time_mask_max_width": 3, "freq_mask_prob": 1.0}


def make(fuser_type="weighted-avg", **options):
    torch.manual_seed(0)
    arch = FeatFuserMVN({"fuser_type": fuser_type, "num_feats": M, "feat_dim": D}, **options)
    for parameter in arch.parameters():
        torch.nn.init.normal_(parameter)
    return arch.eval()


def states(batch=2, dtype=torch.float32, seed=1):
    return list(torch.randn(M, batch, T, D, generator=torch.Generator().manual_seed(seed), dtype=dtype))


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("rules", ["legacy", "modern"])
def test_fusion_is_followed_by_normalisation_under_the_rules_of_the_release(trans, rules):
    arch = make("linear", mvn=MVN, trans=trans, frontend_rules=rules)
    found, lengths = arch(states())
    expected = MeanVarianceNorm(**MVN, frontend_rules=rules)(arch.feat_fuser(states()))
    assert torch.equal(found, expected.transpose(1, 2) if trans else expected) and lengths is None
    assert arch.out_shape() == ((None, D, None) if trans else (None, None, D))


@pytest.mark.parametrize("after", [False, True])
def test_augmentation_stands_where_it_was_asked_for(after):
    arch = make(mvn={"norm_mean": True}, spec_augment=MASKS, aug_after_mvn=after).train()
    torch.manual_seed(3)
    found, _ = arch(states())
    augment, normalise = SpecAugment(**MASKS).train(), MeanVarianceNorm()
    torch.manual_seed(3)
    fused = arch.feat_fuser(states())
    expected = augment(normalise(fused)) if after else normalise(augment(fused))
    assert torch.equal(found, expected)
    assert not torch.equal(found, arch.eval()(states())[0])


@settings(max_examples=20, deadline=None)
@given(
    fuser_type=st.sampled_from(["last", "weighted-avg", "linear", "cat", "stack"]),
    lengths=st.lists(st.integers(1, T), min_size=2, max_size=3),
    value=st.sampled_from([0.0, 1e3, float("nan"), float("inf")]),
    mvn=st.sampled_from([None, MVN, {"norm_mean": True, "norm_var": False}]),
)
def test_padding_has_no_influence_and_padded_frames_are_zero(fuser_type, lengths, value, mvn):
    arch = make(fuser_type, mvn=mvn).double()
    clean = states(len(lengths), torch.float64)
    padded = [h.clone() for h in clean]
    for h in padded:
        for item, n in zip(h, lengths, strict=True):
            item[n:] = value
        h.requires_grad_()
    found, found_lengths = arch(padded, torch.tensor(lengths))
    assert found_lengths.tolist() == lengths
    for i, n in enumerate(lengths):
        alone, _ = arch([h[i : i + 1, :n] for h in clean])
        assert torch.allclose(found[i, :n], alone[0], rtol=1e-10, atol=1e-12)
        assert not found[i, n:].any()
    found.square().sum().backward()
    for parameter in arch.parameters():
        assert torch.isfinite(parameter.grad).all()
    for h in padded:
        grad = torch.zeros_like(h) if h.grad is None else h.grad
        assert torch.isfinite(grad).all() and all(not g[n:].any() for g, n in zip(grad, lengths, strict=True))


def test_masks_and_full_lengths():
    arch = make("cat")
    lengths = torch.tensor([T, 5])
    mask = torch.arange(T)[None] < lengths[:, None]
    assert torch.equal(arch(states(), mask)[0], arch(states(), lengths)[0])
    assert arch(states(), torch.tensor([T, T]))[1].tolist() == [T, T]


def test_configuration():
    config = {
        "feat_fuser": {"fuser_type": "cat", "num_feats": M, "feat_dim": D, "proj_dim": 6, "proj_bias": False},
        "mvn": {"context": 3, "norm_mean": True},
        "spec_augment": None,
        "aug_after_mvn": True,
    }
    arch = FeatFuserMVN.from_config({**config, "mvn": {"norm_mean": True, "left_context": 3, "right_context": 3}})
    full = arch.get_config()
    assert full == {
        "class_name": "FeatFuserMVN",
        "feat_fuser": config["feat_fuser"],
        "mvn": {"norm_mean": True, "left_context": 3, "right_context": 3},
        "spec_augment": None,
        "trans": False,
        "aug_after_mvn": True,
        "frontend_rules": "modern",
    }
    assert FeatFuserMVN(**full).get_config() == full
    assert FeatFuserMVN(**config).get_config() == full
    assert type(NetArch.create(full)) is FeatFuserMVN
    assert set(arch.state_dict()) == {"feat_fuser.feat_fuser.weight"}


def test_no_hidden_states_are_refused():
    with pytest.raises(ValueError, match="no hidden states"):
        make()([])
