"""Random models with ConvNeXt encoders, loaded from a file, give what the reference computes from the same tensors."""

from __future__ import annotations

import enum
import logging
import sys
import types

import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.narchs.convnext1d_encoder import ConvNext1dEncoder
from hyperion_lite.narchs.convnext2d_encoder import ConvNext2dEncoder
from tests.reference.comparing import TOLERANCE, agree, distance, save, tensors_for
from tests.reference.convnext import CHANNELS_1D, CHANNELS_2D, DEFAULTS_1D, DEFAULTS_2D, encode, named_sizes
from tests.reference.convnext_models import draw_convnext, draw_convnext_enc, respell_convnext
from tests.reference.model import run
from tests.reference.random_models import rename
from tests.reference.tensors import Scope, Tensors

NUM_MODELS = {
    "ConvNext1dXVector": 40,
    "ConvNext2dXVector": 24,
    "Wav2ConvNext1dXVector": 10,
    "Wav2ConvNext2dXVector": 8,
}
CASES = [(kind, seed) for kind, count in NUM_MODELS.items() for seed in range(count)]
ENCODERS = {False: ConvNext1dEncoder, True: ConvNext2dEncoder}
HEAD = {"num_classes": 5, "embed_dim": 16, "hid_act": "relu", "pool_net": {"pool_type": "mean+stddev"}}
SMALL = {"convb_repeats": [1, 1], "convb_channels": [8, 12], "in_stride": 2}


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_embeddings_and_logits(kind, seed, tmp_path):
    config, x = draw_convnext(seed, kind)
    rules = "legacy" if seed % 2 else "modern"
    tensors = tensors_for(config, x, seed, rules)
    stored, state = config, tensors.table
    if seed % 4 >= 2:
        stored, state = respell_convnext(config, seed), rename(tensors.table, seed)
    model = HyperTorchModel.auto_load(save(tmp_path / "model.pth", stored, state), frontend_rules=rules)
    assert type(model).__name__ == kind
    agree(model, config, tensors, x, rules)


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, seed in CASES if seed % 5 == 0])
def test_the_reference_reads_what_the_package_saves(kind, seed, tmp_path):
    config, x = draw_convnext(500 + seed, kind)
    drawn = tensors_for(config, x, seed)
    model = HyperTorchModel.auto_load(
        save(tmp_path / "model.pth", respell_convnext(config, seed), drawn.table), frontend_rules="legacy"
    )
    model.save(tmp_path / "again.pth")
    saved = torch.load(tmp_path / "again.pth", weights_only=True)
    tensors = Tensors(saved["model_state_dict"])
    with torch.no_grad():
        found, expected = run(tensors, x, saved["model_cfg"]), run(drawn, x, config)
    assert set(tensors.table) == set(drawn.table)
    for a, b in zip([*found[0], found[1]], [*expected[0], expected[1]], strict=True):
        assert distance(a, b) == 0.0
    # the original knows no more keys than these
    inner = saved["model_cfg"].get("xvector", saved["model_cfg"])
    two = "2d" in kind
    assert set(inner["convnext_enc"]) == set(DEFAULTS_2D if two else DEFAULTS_1D) | (set() if two else {"in_feats"})
    assert ("in_feats" in inner) == two


def test_the_draws_cover_the_choices():
    drawn = [draw_convnext(seed, kind)[0] for kind, seed in CASES]
    encoders = [config.get("xvector", config)["convnext_enc"] for config in drawn]
    merged = [e for e in encoders if e["multilayer"]]
    assert len({e["in_stride"] for e in encoders}) == 3
    assert len({e["norm_layer"] for e in encoders}) == 2
    assert len({e["multilayer_concat"] for e in merged}) == 2
    assert {len(e["convb_repeats"]) for e in merged} == {1, 2, 3}
    assert any(1 in e["downb_strides"] for e in encoders)
    assert any(e["endpoint_scale_layer"] == 0 for e in merged)


def compare_encoders(config, two, seed, in_feats, frames):
    x = torch.randn(2, in_feats, frames, generator=torch.Generator().manual_seed(seed))
    tensors = Tensors(seed=seed)
    encoder = ENCODERS[two].from_config({**config, "in_feats": in_feats})
    with torch.no_grad():
        encode(Scope(tensors), x, config, two)
        expected = encode(Scope(Tensors(tensors.table, dtype=torch.float64)), x.double(), config, two)
        encoder.load_state_dict(tensors.table)
        h, lengths = encoder.double().eval()(x.double())
    assert lengths is None
    assert distance(h if h.dim() == 2 else encoder.flatten(h), expected) <= 1e-10
    return encoder


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_encoders_alone(two, seed):
    import random

    config = draw_convnext_enc(random.Random(f"alone {seed}"), two)
    if seed % 3 == 0:
        config |= {"head_channels": 6, "head_act": "tanh"}
    if not two:
        config["in_feats"] = 33
    compare_encoders(config, two, seed, 33 if not two else 64, 133)


@pytest.mark.parametrize("two", [False, True])
def test_all_by_default_but_the_size(two):
    config = {"convb_repeats": [1, 1, 1, 1], "convb_channels": [8, 12, 16, 20]}
    encoder = compare_encoders(config if two else {**config, "in_feats": 64}, two, 3, 64, 130)
    assert encoder.total_stride == 32
    defaults = {k: v for k, v in (DEFAULTS_2D if two else DEFAULTS_1D).items() if k not in config}
    assert {k: encoder.get_config()[k] for k in defaults} == defaults


@pytest.mark.parametrize("two", [False, True])
def test_the_smallest_size_with_a_name(two):
    config = {"short_name": "atto", "convb_channels": [3], "convb_repeats": [1], "downb_strides": [7]}
    compare_encoders(config if two else {**config, "in_feats": 32}, two, 1, 32, 60)


@pytest.mark.parametrize(
    ("two", "name"), [(False, name) for name in CHANNELS_1D] + [(True, name) for name in CHANNELS_2D]
)
def test_sizes_with_a_name(two, name):
    with torch.device("meta"):
        encoder = ENCODERS[two](in_feats=80, short_name=name)
    sizes = named_sizes(name, CHANNELS_2D if two else CHANNELS_1D)
    assert {key: encoder.get_config()[key] for key in sizes} == sizes
    assert encoder.get_config()["short_name"] == name
    assert [len(superblock) for superblock in encoder.conv_blocks] == sizes["convb_repeats"]
    assert [superblock[0].dwconv.out_channels for superblock in encoder.conv_blocks] == sizes["convb_channels"]


def test_all_defaults_are_those_of_the_text():
    for cls, defaults in ((ConvNext1dEncoder, DEFAULTS_1D), (ConvNext2dEncoder, DEFAULTS_2D)):
        with torch.device("meta"):
            config = cls(in_feats=80).get_config()
        assert {key: config[key] for key in defaults} == defaults
        assert set(config) == set(defaults) | {"in_feats", "class_name"}


@pytest.fixture
def toolkit_enums(monkeypatch):
    """The toolkit's enums as they lie in files, at their module paths."""

    def make(module, name, values):
        parts = module.split(".")
        for i in range(1, len(parts) + 1):
            path = ".".join(parts[:i])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
        kind = enum.Enum(name, {v.upper().replace("-", "_"): v for v in values}, type=str, module=module)
        monkeypatch.setattr(sys.modules[module], name, kind, raising=False)
        return kind

    root = "hyperion.torch.narchs"
    return {
        "norm": make(f"{root}.convnext2d_encoder", "ConvNextNormLayerType", ["layer-norm", "rms-norm"]),
        False: make(f"{root}.convnext1d_encoder", "ConvNext1dShortName", ["atto", "pico2"]),
        True: make(f"{root}.convnext2d_encoder", "ConvNext2dShortName", ["atto", "nano"]),
    }


@pytest.mark.parametrize("two", [False, True])
def test_enums_of_the_toolkit(tmp_path, toolkit_enums, two):
    encoder = {
        "norm_layer": "layer-norm",
        "short_name": "atto",
        "convb_channels": [1],
        **({} if two else {"in_feats": 32}),
    }
    config = {"class_name": f"ConvNext{2 if two else 1}dXVector", "convnext_enc": encoder, **HEAD}
    if two:
        config["in_feats"] = 32
    x = torch.randn(1, 32, 64, generator=torch.Generator().manual_seed(1))
    tensors = tensors_for(config, x, 1)
    enums = {"norm_layer": toolkit_enums["norm"]("layer-norm"), "short_name": toolkit_enums[two]("atto")}
    path = save(tmp_path / "m.pth", {**config, "convnext_enc": {**encoder, **enums}}, tensors.table)
    model = HyperTorchModel.auto_load(path)
    assert model.get_config()["convnext_enc"]["short_name"] == "atto"
    assert (
        model.get_config()["convnext_enc"]["convb_channels"]
        == named_sizes("atto", CHANNELS_2D if two else CHANNELS_1D)["convb_channels"]
    )
    agree(model, config, tensors, x)


def test_a_norm_that_does_not_exist(tmp_path, toolkit_enums):
    config = {"class_name": "ConvNext1dXVector", "convnext_enc": {**SMALL, "in_feats": 8}, **HEAD}
    tensors = tensors_for(config, torch.randn(1, 8, 40), 1)
    encoder = {**config["convnext_enc"], "norm_layer": toolkit_enums["norm"]("rms-norm")}
    path = save(tmp_path / "m.pth", {**config, "convnext_enc": encoder}, tensors.table)
    with pytest.raises(ConfigError, match="'rms-norm' does not exist"):
        HyperTorchModel.auto_load(path)


def test_in_feats_where_files_may_have_it(tmp_path, caplog):
    config = {"class_name": "ConvNext2dXVector", "convnext_enc": SMALL, "in_feats": 16, **HEAD}
    x = torch.randn(1, 16, 40, generator=torch.Generator().manual_seed(1))
    tensors = tensors_for(config, x, 1)
    inside = {**config, "convnext_enc": {**SMALL, "in_feats": 16}}
    with caplog.at_level(logging.WARNING):
        for name, stored in {
            "beside": config,
            "both": inside,
            "inside": {k: v for k, v in inside.items() if k != "in_feats"},
        }.items():
            model = HyperTorchModel.auto_load(save(tmp_path / f"{name}.pth", stored, tensors.table))
            with torch.no_grad():
                assert distance(model.extract_embed(x), run(tensors, x, config)[0][0]) <= TOLERANCE
    assert "ignored" not in caplog.text
    without = {k: v for k, v in config.items() if k != "in_feats"}
    with pytest.raises(ConfigError, match="in_feats"):
        HyperTorchModel.auto_load(save(tmp_path / "without.pth", without, tensors.table))


def test_an_encoder_with_a_head_is_no_part_of_an_x_vector(tmp_path):
    config = {"class_name": "ConvNext1dXVector", "convnext_enc": {**SMALL, "in_feats": 8}, **HEAD}
    tensors = tensors_for(config, torch.randn(1, 8, 40), 1)
    config["convnext_enc"]["head_channels"] = 12
    with pytest.raises(ConfigError, match="head_channels"):
        HyperTorchModel.auto_load(save(tmp_path / "m.pth", config, tensors.table))


@pytest.mark.parametrize("kind", ["ConvNext1dXVector", "ConvNext2dXVector"])
@pytest.mark.parametrize(
    "change",
    [
        {"convb_repeats": [10**9, 1]},
        {"convb_channels": [10**9, 10**9]},
        {"in_stride": 10**9},
        {"in_stride": 2**70},
        {"downb_strides": [10**9]},
        {"short_name": "huge"},
        {"multilayer": True, "endpoint_channels": 10**10},
        {"drop_path_rate": 1.5},
        {"short_name": "tinier"},
    ],
)
def test_sizes_that_no_tensors_back(tmp_path, kind, change):
    two = "2d" in kind
    encoder = {**SMALL, **({} if two else {"in_feats": 8})}
    config = {"class_name": kind, "convnext_enc": encoder, **HEAD, **({"in_feats": 8} if two else {})}
    tensors = tensors_for(config, torch.randn(1, 8, 40), 1)
    path = save(tmp_path / "m.pth", {**config, "convnext_enc": {**encoder, **change}}, tensors.table)
    with pytest.raises(ValueError, match=r"m\.pth"):
        HyperTorchModel.auto_load(path)
