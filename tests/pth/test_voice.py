from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hyperion_lite.pth import PthFormatError, PthUnsupportedError, open_pth
from hyperion_lite.pth.views import VoiceModelInfo, voice_model_info
from tests.pth.builders import PITCHED_40K, PITCHED_48K_V1, build_voice, build_voice_training, voice_config


def _info(path: Path) -> VoiceModelInfo:
    with open_pth(path, verify="all") as file:
        return voice_model_info(file)


@pytest.mark.parametrize("f0", [True, False])
@pytest.mark.parametrize(("version", "named", "width"), [(None, "v1", 256), ("v1", "v1", 256), ("v2", "v2", 768)])
def test_every_version_is_read_and_valid(tmp_path, version, named, width, f0):
    build_voice(tmp_path / "voice.pth", version=version, f0=f0)
    info = _info(tmp_path / "voice.pth")
    assert (info.version, info.f0, info.phone_width) == (named, f0, width)
    assert (info.sr, info.sample_rate, info.info) == ("40k", 40000, "200epoch")
    assert info.tensors["enc_p.emb_phone.weight"].shape == (12, width)
    assert ("enc_p.emb_pitch.weight" in info.tensors) == f0
    info.validate(complete=True)
    assert info.unknown_tensors() == []


@pytest.mark.parametrize(
    ("rates", "f0", "count"),
    [(PITCHED_40K, True, 457), (PITCHED_48K_V1, True, 516), (PITCHED_40K, False, 446), (PITCHED_48K_V1, False, 503)],
)
def test_real_depths_give_the_tensor_counts_of_real_files(tmp_path, rates, f0, count):
    build_voice(tmp_path / "voice.pth", version="v1", f0=f0, config=voice_config(rates=rates))
    info = _info(tmp_path / "voice.pth")
    assert len(info.tensors) == count
    info.validate(complete=True)


def test_the_configuration_is_named_in_its_order(tmp_path):
    config = voice_config()
    build_voice(tmp_path / "voice.pth", config=config)
    named = _info(tmp_path / "voice.pth").config
    assert (named.spec_channels, named.segment_size, named.inter_channels) == (33, 32, 8)
    assert (named.hidden_channels, named.filter_channels, named.n_heads, named.n_layers) == (12, 20, 2, 6)
    assert (named.kernel_size, named.p_dropout, named.resblock) == (3, 0.0, "1")
    assert named.resblock_kernel_sizes == (3, 7, 11) and named.resblock_dilation_sizes == ((1, 3, 5),) * 3
    assert named.upsample_rates == (10, 10, 2, 2) and named.upsample_kernel_sizes == (16, 16, 4, 4)
    assert (named.upsample_initial_channel, named.spk_embed_dim, named.gin_channels, named.sr) == (64, 5, 10, 40000)


@pytest.mark.parametrize("spelling", ["old", "new", "fused"])
@pytest.mark.parametrize("resblock", ["1", "2"])
def test_every_spelling_of_weight_norm_is_valid(tmp_path, spelling, resblock):
    build_voice(tmp_path / "voice.pth", spelling=spelling, config=voice_config(resblock=resblock))
    info = _info(tmp_path / "voice.pth")
    info.validate(complete=True)
    assert info.unknown_tensors() == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("enc_p.emb_phone.weight", (12, 256)),
        ("enc_p.encoder.attn_layers.5.emb_rel_k", (1, 21, 12)),
        ("enc_p.encoder.ffn_layers.0.conv_1.weight", (20, 12, 5)),
        ("dec.ups.1.weight_v", (32, 16, 8)),
        ("dec.ups.1.weight_g", (16, 1, 1)),
        ("dec.noise_convs.0.weight", (32, 1, 41)),
        ("dec.resblocks.11.convs2.2.bias", (3,)),
        ("flow.flows.6.enc.in_layers.2.weight_v", (24, 12, 3)),
        ("emb_g.weight", (6, 10)),
        ("dec.conv_post.weight", (1, 4)),
        ("enc_q.proj.weight", (8, 12, 1)),
    ],
)
def test_a_wrong_shape_is_found_and_named(tmp_path, name, wrong):
    build_voice(tmp_path / "voice.pth", version="v2", change={name: wrong})
    info = _info(tmp_path / "voice.pth")
    (problem,) = info.problems()
    assert (problem.name, problem.found) == (name, wrong) and problem.expected != wrong
    with pytest.raises(PthFormatError, match=r"1 of .* tensors contradict the configuration") as caught:
        info.validate()
    assert name in str(caught.value) and str(list(wrong)) in str(caught.value) and "voice.pth" in str(caught.value)


def test_a_wrong_shape_is_found_in_the_other_spellings_too(tmp_path):
    wrong = {"dec.ups.0.parametrizations.weight.original1": (64, 32, 15)}
    build_voice(tmp_path / "voice.pth", spelling="new", change=wrong)
    assert [problem.name for problem in _info(tmp_path / "voice.pth").problems()] == list(wrong)
    build_voice(tmp_path / "voice.pth", spelling="fused", change={"dec.ups.0.weight": (64, 32, 15)})
    assert [problem.name for problem in _info(tmp_path / "voice.pth").problems()] == ["dec.ups.0.weight"]


def test_a_configuration_of_another_network_contradicts_many_tensors(tmp_path):
    saved = build_voice(tmp_path / "voice.pth")
    saved["config"][3] = 24
    torch.save(saved, tmp_path / "voice.pth")
    problems = _info(tmp_path / "voice.pth").problems()
    assert len(problems) > 100
    with pytest.raises(PthFormatError, match=r"and .* more"):
        _info(tmp_path / "voice.pth").validate()


def test_version_and_phone_width_must_agree(tmp_path):
    saved = build_voice(tmp_path / "voice.pth", version="v2")
    del saved["version"]
    torch.save(saved, tmp_path / "voice.pth")
    (problem,) = _info(tmp_path / "voice.pth").problems()
    assert problem.name == "enc_p.emb_phone.weight" and problem.expected == (12, 256)


def test_pitch_tensors_without_pitch_guidance_are_a_problem(tmp_path):
    saved = build_voice(tmp_path / "voice.pth", f0=True)
    torch.save({**saved, "f0": 0}, tmp_path / "voice.pth")
    problems = _info(tmp_path / "voice.pth").problems()
    assert len(problems) == 1 + 2 + 8 and all(problem.expected is None for problem in problems)


def test_missing_tensors_are_a_problem_on_request(tmp_path):
    saved = build_voice(tmp_path / "voice.pth")
    del saved["weight"]["dec.conv_pre.bias"]
    torch.save(saved, tmp_path / "voice.pth")
    info = _info(tmp_path / "voice.pth")
    info.validate()
    with pytest.raises(PthFormatError, match=r"dec\.conv_pre\.bias: missing"):
        info.validate(complete=True)


def test_unknown_fields_versions_and_tensors_stay_readable(tmp_path):
    extra = {"author": "somebody", "hash": "ab" * 32, "model_id": 2**70, "nested": {"list": [1, (2.5, None)]}}
    saved = build_voice(tmp_path / "voice.pth", extra=extra, change={"new_block.weight": (2, 3)})
    torch.save({**saved, "version": "v9", "config": [*saved["config"], "vocoder"]}, tmp_path / "voice.pth")
    info = _info(tmp_path / "voice.pth")
    assert (
        info.extra == extra and info.config_extra == ("vocoder",) and info.version == "v9" and info.phone_width is None
    )
    info.validate()
    assert info.unknown_tensors() == ["new_block.weight"]


@pytest.mark.parametrize(
    ("sr", "config_rate", "expected"),
    [
        ("48k", 40000, 48000),
        (32000, 40000, 32000),
        ("44.1kHz", 0, 44100),
        (None, 40000, 40000),
        ("unknown", "40k", 40000),
        ("x", "y", None),
    ],
)
def test_sample_rate_is_understood_from_label_or_configuration(tmp_path, sr, config_rate, expected):
    build_voice(tmp_path / "voice.pth", extra={"sr": sr}, config=voice_config(sample_rate=config_rate or "?"))
    info = _info(tmp_path / "voice.pth")
    assert (info.sample_rate, info.sr) == (expected, sr)


def test_a_training_checkpoint_opens_and_says_that_it_has_no_configuration(tmp_path):
    build_voice_training(tmp_path / "G_200.pth")
    with open_pth(tmp_path / "G_200.pth") as file:
        assert len([name for name in file.tensors if name.startswith("model.")]) == 457
        with pytest.raises(PthUnsupportedError, match="training checkpoint without a 'config'"):
            voice_model_info(file)


@pytest.mark.parametrize(
    "content", [{"a": 1}, [1, 2], torch.zeros(2), {"weight": 3, "config": []}, {"config": [1], "weight": None}]
)
def test_other_files_are_no_voice_models(tmp_path, content):
    torch.save(content, tmp_path / "other.pth")
    with open_pth(tmp_path / "other.pth") as file, pytest.raises(PthUnsupportedError, match="not a voice model"):
        voice_model_info(file)


def _with(index: int, value: Any) -> list[Any]:
    config = voice_config()
    config[index] = value
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (voice_config()[:12], "12 entries; expected 18, the first one missing is 'upsample_rates'"),
        ({"a": 1}, "'config' is a dict"),
        (_with(3, "192"), r"config\[3\] \(hidden_channels\) is '192'"),
        (_with(3, True), r"config\[3\] \(hidden_channels\) is True"),
        (_with(6, 10**9), r"config\[6\] \(n_layers\)"),
        (_with(6, 10**5000), r"config\[6\] \(n_layers\) is an integer of \d+ bits"),
        (_with(5, 5), "not a multiple of n_heads"),
        (_with(2, 7), "even number"),
        (_with(12, []), r"config\[12\] \(upsample_rates\) is a list of 0 entries"),
        (_with(12, [2] * 3), "3 upsample_rates and 4 upsample_kernel_sizes"),
        (_with(11, [[1, 3], [1]]), "3 resblock_kernel_sizes and 2 resblock_dilation_sizes"),
        (_with(11, [[1, 3], 1, [2]]), r"config\[11\] \(resblock_dilation_sizes\)\[1\]"),
        (_with(12, [-1] * 4), r"config\[12\] \(upsample_rates\)\[0\] is -1"),
        (_with(13, 8), "halve at every stage"),
        (_with(8, 2.5), r"p_dropout"),
        (_with(8, float("nan")), r"p_dropout"),
    ],
)
def test_a_malformed_configuration_is_named(tmp_path, config, message):
    saved = build_voice(tmp_path / "voice.pth")
    torch.save({**saved, "config": config}, tmp_path / "voice.pth")
    with open_pth(tmp_path / "voice.pth") as file, pytest.raises(PthFormatError, match=message):
        voice_model_info(file)


@pytest.mark.parametrize("fields", [{"f0": 2}, {"f0": [1]}, {"f0": 10**5000}, {"version": 2}, {"version": ["v1"]}])
def test_a_malformed_field_is_named(tmp_path, fields):
    saved = build_voice(tmp_path / "voice.pth")
    torch.save({**saved, **fields}, tmp_path / "voice.pth")
    with open_pth(tmp_path / "voice.pth") as file, pytest.raises(PthFormatError, match=next(iter(fields))):
        voice_model_info(file)


@pytest.mark.parametrize(("value", "expected"), [(1, True), (0, False), ("1", True), ("0", False), (True, True)])
def test_pitch_guidance_is_read_however_it_is_spelt(tmp_path, value, expected):
    saved = build_voice(tmp_path / "voice.pth", f0=expected)
    torch.save({**saved, "f0": value}, tmp_path / "voice.pth")
    assert _info(tmp_path / "voice.pth").f0 is expected
