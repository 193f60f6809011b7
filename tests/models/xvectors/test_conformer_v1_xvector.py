"""Files of Conformer models."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.models.wav2xvectors.wav2conformer_v1_xvector import Wav2ConformerV1XVector
from hyperion_lite.models.xvectors.conformer_v1_xvector import ConformerV1XVector
from hyperion_lite.trainers.gradient_checkpointing import enable_gradient_checkpointing
from tests.models.small_models import CONFORMERS, build
from tests.reference.comparing import agree, save, tensors_for

ENCODER = {"in_feats": 9, "d_model": 8, "num_heads": 2, "num_blocks": 2, "d_ff": 12, "conv_kernel_sizes": 3}
HEAD = {"num_classes": 4, "embed_dim": 6}


def config_with(**encoder: Any) -> dict[str, Any]:
    return {"class_name": "ConformerV1XVector", "encoder": {**ENCODER, **encoder}, **HEAD}


def test_time_axes_are_fixed_and_the_callers_config_stays():
    config = config_with(in_time_dim=-1, out_time_dim=1)
    before = copy.deepcopy(config)
    model = ConformerV1XVector(**config)
    assert config == before
    saved = model.get_config()["encoder"]
    assert (saved["in_time_dim"], saved["out_time_dim"]) == (2, 2)
    assert "class_name" not in saved


def test_defaults_are_those_of_the_encoder_and_the_head():
    model = ConformerV1XVector(encoder={"in_feats": 9, "num_blocks": 1}, num_classes=3)
    assert model.encoder_net.get_config()["d_model"] == 256
    assert model.embed_dim == 256
    assert model.in_feats == 9


@pytest.mark.parametrize("spelling", ["plain", "weight_g", "parametrizations", "other place"])
@pytest.mark.parametrize("in_layer_type", ["conv2d-sub", "linear"])
@pytest.mark.parametrize("class_name", ["ConformerV1XVector", "Wav2ConformerV1XVector"])
def test_position_convolutions_of_any_spelling(tmp_path, spelling, in_layer_type, class_name):
    inner = config_with(pos_enc_type="conv", pos_kernel_size=4, pos_num_groups=2, in_layer_type=in_layer_type)
    config, x = inner, torch.randn(1, 9, 30)
    if class_name.startswith("Wav2"):
        feats = {"audio_feats": {"audio_feat": "logfb", "num_filters": 9, "use_energy": False, "dither": 0.0}}
        config, x = (
            {"class_name": class_name, "feats": {**feats, "trans": True}, "xvector": inner},
            torch.randn(1, 9000),
        )
    tensors = tensors_for(config, x, 0)
    state = dict(tensors.table)
    name = next(name for name in state if ".in_layer." in name and name.endswith(("1.conv.weight", "4.conv.weight")))
    lead = name.removesuffix("weight")
    if spelling in ("weight_g", "parametrizations"):
        direction = state.pop(name)
        scale = torch.rand(1, 1, 4) + 0.5
        tensors.table[name] = scale * direction / direction.norm(dim=(0, 1), keepdim=True)
        names = ("weight_g", "weight_v") if spelling == "weight_g" else ("original0", "original1")
        lead = lead if spelling == "weight_g" else f"{lead}parametrizations.weight."
        state |= {f"{lead}{names[0]}": scale, f"{lead}{names[1]}": direction}
    elif spelling == "other place":
        moved = lead.replace(".1.conv.", ".pos.conv.").replace(".4.conv.", ".2.conv.")
        state |= {f"{moved}{leaf}": state.pop(f"{lead}{leaf}") for leaf in ("weight", "bias")}
    model = HyperTorchModel.auto_load(save(tmp_path / "model.pth", config, state), frontend_rules="legacy")
    agree(model, config, tensors, x)


@pytest.mark.parametrize(
    "change",
    [
        {"num_blocks": 10**12},
        {"num_blocks": 10**12, "conv_repeats": 0},
        {"d_model": 2**40},
        {"d_ff": 10**15},
        {"in_feats": 10**13},
        {"conv_repeats": 10**12},
        {"conv_kernel_sizes": 10**15 + 1},
        {"pos_enc_type": "conv", "pos_kernel_size": 10**15, "pos_num_groups": 1},
        {"in_layer_type": "embed", "in_feats": 10**14},
        {"in_layer_type": None, "in_feats": 2**33, "d_model": 2**33},
        {"num_heads": 2**40},
        {"att_type": "local-scaled-dot-prod-v1", "att_context": 10**18, "num_blocks": 5},
        {"conv_strides": 10**18, "d_ff": 13},
    ],
)
def test_a_configuration_that_claims_too_much_is_an_error_at_once(tmp_path, change):
    config = config_with()
    state = ConformerV1XVector(**config).state_dict()
    config["encoder"] |= change
    path = save(tmp_path / "model.pth", config, state)
    started = time.perf_counter()
    with pytest.raises(ValueError, match=r"model\.pth"):
        HyperTorchModel.auto_load(path)
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize("encoder", [{"d_mode": 8}, {"num_heads": "two"}, {"conv_repeats": [1, "x"]}, {"hid_act": 3}])
def test_wrong_keys_and_values_are_named(encoder):
    key = next(iter(encoder))
    with pytest.raises(ConfigError, match=rf"{key}|activation"):
        ConformerV1XVector(encoder={**ENCODER, **encoder}, **HEAD)


@pytest.mark.parametrize("name", CONFORMERS)
def test_an_x_vector_trains(name):
    model = build(name).train()
    torch.manual_seed(0)
    x, y = torch.randn(4, 24, 60), torch.tensor([0, 1, 2, 3])
    lengths = torch.tensor([60, 45, 30, 60])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, lengths, y), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_the_class_of_waveforms_fixes_the_class_inside():
    model = build("wav2-conformer-local")
    assert type(model) is Wav2ConformerV1XVector
    assert type(model.xvector) is ConformerV1XVector


@pytest.mark.parametrize("name", ["conformer", "conformer-strided", "conformer-local"])
def test_forgotten_activations_give_the_same_gradients(name):
    x, lengths = torch.randn(3, 24, 50, generator=torch.Generator().manual_seed(0)), torch.tensor([50, 31, 12])
    results = []
    for forget in (False, True):
        model = build(name).train()
        if forget:
            assert enable_gradient_checkpointing(model.encoder_net) == 2
        torch.manual_seed(1)
        model(x, lengths).sum().backward()
        results.append([*(p.grad for p in model.parameters()), *model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_layers_are_unfrozen_from_the_top():
    stack = build("conformer-strided").layer_stack()
    assert [type(layer).__name__ for layer in stack.layers] == ["ConformerBlock", "ConformerBlock"]
    depths = stack.depths()
    by_name = {name: depths[id(p)] for name, p in stack.encoder.named_parameters()}
    assert {depth for name, depth in by_name.items() if name.startswith("in_layer.")} == {2}
    assert {depth for name, depth in by_name.items() if name.startswith("blocks.0.")} == {1}
    assert {depth for name, depth in by_name.items() if name.startswith(("blocks.1.", "norm_out."))} == {0}
