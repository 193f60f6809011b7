"""Low-rank adapters of encoders: every one moves the output, merging changes nothing, and they travel alone."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hyperion_lite.core.errors import ConfigError, MissingDependencyError, ModelFileError
from hyperion_lite.tpm.hf import HFHubert, HFWav2Vec2Bert, HFWav2VecBase
from hyperion_lite.tpm.hf.lora import LoRASettings, adapted_layers, adapter_parameters
from tests.tpm.hf.small_encoders import ENCODERS, make_encoder, make_original, waveforms

NAMES = [
    "wav2vec2-stable",
    "wav2vec2-adapter",
    "hubert-group",
    "wavlm-group",
    "wavlm-stable",
    "bert-relative",
    "bert-adapter",
    "whisper",
]
LENGTHS = torch.tensor([2400, 1700])


def components_of(encoder: HFWav2VecBase) -> tuple[str, ...]:
    names = {n.rpartition(".")[2] for n, m in encoder.hf_model.named_modules() if isinstance(m, nn.Linear)}
    return tuple(sorted(names))


def adapted(name: str, components: tuple[str, ...] | None = None, trained: bool = True) -> HFWav2VecBase:
    encoder = make_encoder(name)
    encoder.add_lora(LoRASettings(components or components_of(encoder), rank=2, alpha=3))
    generator = torch.Generator().manual_seed(1)
    for parameter in adapter_parameters(encoder.hf_model) if trained else []:
        parameter.data.normal_(std=0.2, generator=generator)
    return encoder


def outputs(encoder: HFWav2VecBase) -> torch.Tensor:
    out = encoder(waveforms(*LENGTHS.tolist()), LENGTHS)
    return torch.cat([state.flatten() for state in (*out.hidden_states, out.last_hidden_state)])


@pytest.mark.parametrize("name", NAMES)
def test_new_adapters_change_nothing_and_trained_ones_are_the_formula(name):
    plain = make_encoder(name)
    with torch.no_grad():
        expected = outputs(plain)
        assert torch.equal(outputs(adapted(name, trained=False)), expected)
        encoder = adapted(name)
        moved = outputs(encoder)
        weights = dict(plain.hf_model.named_parameters())
        for layer_name, layer in adapted_layers(encoder.hf_model):
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            weights[f"{layer_name.removeprefix('base_model.model.')}.weight"] += 3 / 2 * b @ a
        assert not torch.allclose(moved, expected, atol=1e-2)
        torch.testing.assert_close(outputs(plain), moved, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_every_adapter_moves_the_output_and_gets_a_gradient(name):
    encoder = adapted(name)
    found = outputs(encoder)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
    (found * weight).sum().backward()
    layers = dict(adapted_layers(encoder.hf_model))
    assert {n.rpartition(".")[2] for n in layers} == set(components_of(make_encoder(name)))
    with torch.no_grad():
        # without a graph attention takes another way, which rounds otherwise
        expected = outputs(encoder)
        for layer_name, layer in layers.items():
            b = layer.lora_B["default"].weight
            assert b.grad.abs().max() > 0 and layer.lora_A["default"].weight.grad.abs().max() > 0, layer_name
            kept = b.clone()
            b.zero_()
            assert (outputs(encoder) - expected).abs().max() > 1e-4, layer_name
            b.copy_(kept)
        assert torch.equal(outputs(encoder), expected)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_merged_it_is_a_plain_encoder_with_the_same_outputs(name):
    encoder, plain = adapted(name), make_encoder(name)
    expected = outputs(encoder)
    other = copy.deepcopy(encoder)
    assert other.merge_lora() is other
    torch.testing.assert_close(outputs(other), expected, rtol=1e-4, atol=1e-4)
    assert list(other.state_dict()) == list(plain.state_dict())
    assert other.get_config() == {**encoder.get_config(), "use_lora": False} and other.lora_settings is None
    assert torch.equal(outputs(encoder), expected) and encoder.lora_settings is not None
    assert torch.equal(outputs(other.merge_lora()), outputs(other))


def test_tensors_are_named_as_peft_does_and_do_not_depend_on_the_mode():
    encoder = adapted("wavlm-stable", ("q_proj",))
    before = {n: t.clone() for n, t in encoder.train().state_dict().items()}
    encoder.eval()
    outputs(encoder)
    after = encoder.state_dict()
    assert list(after) == list(before) and all(torch.equal(t, after[n]) for n, t in before.items())
    layer = "hf_model.base_model.model.encoder.layers.1.attention.q_proj"
    assert {f"{layer}.base_layer.weight", f"{layer}.base_layer.bias"} <= set(after)
    assert after[f"{layer}.lora_A.default.weight"].shape == (2, 16)
    assert after[f"{layer}.lora_B.default.weight"].shape == (16, 2)
    assert "hf_model.base_model.model.feature_projection.projection.weight" in after


def test_the_configuration_rebuilds_the_adapters():
    encoder = adapted("hubert-group", ("v_proj", "output_dense"))
    config = json.loads(json.dumps(encoder.get_config()))
    expected = {"use_lora": True, "lora_components": ["v_proj", "output_dense"], "lora_rank": 2, "lora_alpha": 3}
    assert expected.items() <= config.items()
    again = HFHubert.from_config(config).eval()
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(outputs(again), outputs(encoder)) and again.get_config() == config


def test_without_names_queries_and_values_get_adapters():
    for name, expected in (("wavlm-group", {"q_proj", "v_proj"}), ("bert-rotary", {"linear_q", "linear_v"})):
        encoder = make_encoder(name)
        assert (
            set(type(encoder)(**{**encoder.get_config(), "lora_components": None}).get_config()["lora_components"])
            == expected
        )
    config = {**make_encoder("bert-rotary").get_config(), "use_lora": True, "lora_components": None}
    names = {n.rpartition(".")[2] for n, _ in adapted_layers(HFWav2Vec2Bert(**config).hf_model)}
    assert names == {"linear_q", "linear_v"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_components": ["q_porj"]}, r"'q_porj', did you mean 'q_proj'.*its linear layers: .*q_proj"),
        ({"lora_components": ["attention"]}, "is a SelfAttention, adapters go into linear layers"),
        ({"lora_components": ["conv"]}, "adapters go into linear layers"),
        ({"lora_components": []}, "lora_components is empty"),
        ({"lora_rank": 0}, "lora_rank must be at least 1"),
        ({"lora_dropout": 1.0}, "lora_dropout must be in"),
    ],
)
def test_adapters_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_encoder("hubert-group", use_lora=True, **settings)


def test_full_names_pick_single_layers():
    encoder = adapted("hubert-group", ("layers.2.attention.q_proj", "encoder.layers.0.feed_forward.output_dense"))
    names = {n.removeprefix("base_model.model.encoder.") for n, _ in adapted_layers(encoder.hf_model)}
    assert names == {"layers.2.attention.q_proj", "layers.0.feed_forward.output_dense"}


def test_who_has_no_peft_is_told_how_to_get_it_and_needs_it_for_adapters_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    encoder = make_encoder("wavlm-group")
    assert torch.isfinite(outputs(encoder)).all()
    assert encoder.merge_lora() is encoder
    with pytest.raises(MissingDependencyError, match=r'low-rank adapters.*pip install "hyperion-lite\[lora\]"'):
        make_encoder("wavlm-group", use_lora=True)


def test_in_inference_mode_they_are_made_and_merged_for_training_too(tmp_path):
    adapted("hubert-group", ("q_proj",)).save_adapters(tmp_path / "a")
    encoder, merged = make_encoder("hubert-group"), make_encoder("hubert-group")
    with torch.inference_mode():
        encoder.load_adapters(tmp_path / "a")
        merged.load_adapters(tmp_path / "a")
        merged.merge_lora()
    for one in (encoder, merged):
        outputs(one).sum().backward()
        assert all(p.grad is not None for n, p in one.named_parameters() if "layers" in n)


def test_there_is_one_set_of_adapters():
    encoder = adapted("hubert-group")
    with pytest.raises(ConfigError, match="merge them first"):
        encoder.add_lora(LoRASettings(("q_proj",), 1, 1))


class TestAlone:
    """Adapters in a directory of their own."""

    def test_they_come_back_onto_the_base(self, tmp_path):
        encoder = adapted("wavlm-stable")
        encoder.save_adapters(tmp_path / "a")
        assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
        stored = load_file(tmp_path / "a/adapter_model.safetensors")
        assert len(stored) == len(adapter_parameters(encoder.hf_model))
        for other in (make_encoder("wavlm-stable"), adapted("wavlm-stable", trained=False)):
            other.load_adapters(tmp_path / "a")
            assert torch.equal(outputs(other), outputs(encoder))
            assert other.get_config() == encoder.get_config()
        encoder.save_adapters(tmp_path / "a")

    @pytest.mark.parametrize("bias", ["all", "lora_only"])
    def test_biases_that_learn_with_them_go_along(self, tmp_path, bias):
        encoder = adapted("hubert-stable", ("q_proj",))
        for parameter in encoder.lora_parameters(bias):
            parameter.data.add_(0.3)
        encoder.save_adapters(tmp_path / "a", bias)
        biases = {n for n in load_file(tmp_path / "a/adapter_model.safetensors") if n.endswith(".bias")}
        assert all("base_layer" in n for n in biases) == (bias == "lora_only") and len(biases) >= 3
        other = make_encoder("hubert-stable")
        other.load_adapters(tmp_path / "a")
        assert torch.equal(outputs(other), outputs(encoder))

    @torch.no_grad()
    def test_peft_reads_them_and_they_are_read_from_peft(self, tmp_path):
        import peft

        encoder = adapted("hubert-group", ("q_proj", "output_dense"))
        encoder.save_adapters(tmp_path / "ours")
        x = waveforms(3000)
        wrapped = peft.PeftModel.from_pretrained(make_original("hubert-group"), str(tmp_path / "ours")).eval()
        normal = (x - x.mean()) / (x.var(correction=0) + 1e-7).sqrt()
        theirs = wrapped(normal).last_hidden_state
        torch.testing.assert_close(encoder(x).last_hidden_state, theirs, rtol=1e-4, atol=1e-4)
        plain = make_encoder("hubert-group")
        assert not torch.allclose(plain(x).last_hidden_state, theirs, atol=1e-2)
        wrapped.save_pretrained(str(tmp_path / "theirs"))
        plain.load_adapters(tmp_path / "theirs")
        assert torch.equal(outputs(plain), outputs(encoder))

    def test_there_must_be_some(self, tmp_path):
        encoder = make_encoder("hubert-group")
        with pytest.raises(ConfigError, match="no adapters to save"):
            encoder.save_adapters(tmp_path / "a")
        with pytest.raises(FileNotFoundError, match=r"no adapter_config\.json"):
            encoder.load_adapters(tmp_path)
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(FileExistsError, match=r"notes\.txt"):
            adapted("hubert-group").save_adapters(tmp_path)
        with pytest.raises(FileExistsError, match="is a file"):
            adapted("hubert-group").save_adapters(tmp_path / "notes.txt")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"r": 4}, "other shapes"),
            ({"r": 10**9}, "many times larger than the tensors"),
            ({"use_dora": True}, "use_dora are not supported"),
            ({"rank_pattern": {"q_proj": 3}}, "rank_pattern"),
            ({"peft_type": "IA3"}, "type 'IA3'"),
            ({"target_modules": "all-linear"}, "target_modules must be a list"),
            ({"target_modules": ["nothing"]}, "no layer 'nothing'"),
            ({"r": "two"}, "r must be a number"),
            ({"target_modules": ["q_proj", "k_proj"]}, "lacks"),
        ],
    )
    def test_adapters_that_do_not_fit_leave_the_encoder_alone(self, tmp_path, change, message):
        adapted("hubert-group", ("q_proj",)).save_adapters(tmp_path / "a")
        path = tmp_path / "a/adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        encoder = make_encoder("hubert-group")
        config, expected = encoder.get_config(), outputs(encoder)
        with pytest.raises((ConfigError, ModelFileError), match=message):
            encoder.load_adapters(tmp_path / "a")
        assert encoder.lora_settings is None and torch.equal(outputs(encoder), expected)
        assert encoder.get_config()["use_lora"] is False and list(encoder.state_dict()) == list(
            make_encoder("hubert-group").state_dict()
        )
        assert {k: v for k, v in encoder.get_config().items() if not k.startswith("lora_")} == {
            k: v for k, v in config.items() if not k.startswith("lora_")
        }

    def test_other_adapters_in_the_encoder_are_not_overwritten(self, tmp_path):
        adapted("hubert-group", ("q_proj",)).save_adapters(tmp_path / "a")
        encoder = adapted("hubert-group", ("v_proj",))
        expected = outputs(encoder)
        with pytest.raises(
            ConfigError, match=r"in q_proj; the encoder has some of rank 2, alpha 3, in v_proj.*merge_lora"
        ):
            encoder.load_adapters(tmp_path / "a")
        assert torch.equal(outputs(encoder), expected)

    def test_damaged_files_are_named(self, tmp_path):
        adapted("hubert-group", ("q_proj",)).save_adapters(tmp_path / "a")
        weights = tmp_path / "a/adapter_model.safetensors"
        save_file({**load_file(weights), "base_model.model.x.lora_A.weight": torch.ones(2, 2)}, weights)
        with pytest.raises(ModelFileError, match=r"unknown tensors: base_model\.model\.x"):
            make_encoder("hubert-group").load_adapters(tmp_path / "a")
        weights.write_bytes(weights.read_bytes()[:100])
        with pytest.raises(ModelFileError, match=r"adapter_model\.safetensors cannot be read"):
            make_encoder("hubert-group").load_adapters(tmp_path / "a")
        (tmp_path / "a/adapter_config.json").write_text("{")
        with pytest.raises(ModelFileError, match="not valid JSON"):
            make_encoder("hubert-group").load_adapters(tmp_path / "a")


def test_single_precision_adapters_train_on_a_half_precision_encoder(tmp_path: Path):
    from tests.tpm.hf.small_encoders import save_original

    folder = save_original("wavlm-group", tmp_path / "pretrained")
    options: dict[str, Any] = {
        "use_lora": True,
        "weight_dtype": "bfloat16",
        "lora_components": ["q_proj", "output_dense"],
    }
    encoder = type(make_encoder("wavlm-group"))(pretrained_model_path=str(folder), **options).train()
    kinds = {n: t.dtype for n, t in encoder.state_dict().items()}
    assert {d for n, d in kinds.items() if "lora_" in n} == {torch.float32}
    assert {d for n, d in kinds.items() if "lora_" not in n} == {torch.bfloat16}
    optimizer = torch.optim.SGD(adapter_parameters(encoder.hf_model), lr=0.1)
    for _ in range(2):
        outputs(encoder).float().square().mean().backward()
        optimizer.step()
    encoder.eval()
    found = outputs(encoder)
    assert found.dtype == torch.bfloat16 and torch.isfinite(found).all()
    merged = copy.deepcopy(encoder).merge_lora()
    assert {t.dtype for t in merged.state_dict().values()} == {torch.bfloat16}
    assert torch.cosine_similarity(outputs(merged).float(), found.float(), dim=0) > 0.999
    single = copy.deepcopy(encoder).float()
    assert torch.cosine_similarity(outputs(single), found.float(), dim=0) > 0.999
    half = copy.deepcopy(encoder).half()
    assert outputs(half).dtype == torch.float16


def test_the_names_here_are_of_every_family():
    assert {ENCODERS[name][0] for name in NAMES} == {cls for cls, _ in ENCODERS.values()}
