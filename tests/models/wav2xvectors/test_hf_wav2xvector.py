"""Waveform models with a Hugging Face encoder: structured output, chunks, parts that fit, files."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections import OrderedDict
from importlib import resources

import pytest
import torch
import yaml

from hyperion_lite import HFWav2XVector, HyperTorchModel
from hyperion_lite.core.config import check_config
from hyperion_lite.core.errors import ConfigError, TooShortError, UnknownClassError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.models.wav2xvectors.hf_wav2mhfa_xvector import HFWavLM2MHFAXVector
from hyperion_lite.models.wav2xvectors.waveform_xvector import WaveformXVector
from tests.contracts.model_tester import relative_error
from tests.models.small_hf_models import GROUP_NORM, HF_MODELS, LAYER_NORM, MHFA, RESNET1D, fusion
from tests.models.small_hf_models import model as model_config
from tests.models.small_models import build, make_item, pad_items


@pytest.fixture(scope="module")
def model():
    return build("hf-wavlm-layer")


@pytest.fixture(scope="module")
def batch(model):
    items = [make_item(model, n, i) for i, n in enumerate((6000, 4000))]
    return pad_items(items, float("nan"))


class TestOutput:
    @torch.no_grad()
    def test_all_that_is_asked_for_and_nothing_else(self, model, batch):
        x, lengths = batch
        logits = model(x, lengths)
        out = model(x, lengths, return_feat_layers=[0, 2], return_enc_layers=[1], return_classif_layers=[0])
        assert torch.equal(out.logits, logits)
        assert [tuple(h.shape) for h in out.h_feats] == [(2, 16, 18)] * 2
        assert out.h_feats_lengths.tolist() == model.feat_lengths(lengths).tolist() == [18, 12]
        assert not out.h_feats[0][1, :, 12:].any()
        assert out.h_enc[0].shape == (2, 12, 9) and out.h_classif[0].shape == (2, 12)
        out = model(x, lengths, return_feat_layers=[1], return_logits=False)
        assert out.logits is None and out.h_enc is None and out.h_classif is None and len(out.h_feats) == 1
        out = model(x, lengths, return_enc_layers=[0])
        assert torch.equal(out.logits, logits) and out.h_feats is None and out.h_classif is None

    @torch.no_grad()
    def test_layers_are_counted_from_the_input_of_the_first_one_wherever_fusion_starts(self, model, batch):
        x, lengths = batch
        assert model.feat_fusion_start == 1
        found = model(x, lengths, return_feat_layers=[0, 1, 2, -1]).h_feats
        expected = model.hf_feats(torch.nan_to_num(x), lengths).hidden_states
        for h, other in zip(found, [*expected, expected[2]], strict=True):
            assert torch.equal(h, other.transpose(1, 2))
        for layer in (3, -2, "last"):
            with pytest.raises(ValueError, match="return_feat_layers must be 0 to 2"):
                model(x, lengths, return_feat_layers=[layer])

    @torch.no_grad()
    def test_frames_of_the_front_end(self, model, batch):
        x, lengths = batch
        feats, h_feats, feat_lengths = model.forward_feats(x, lengths, return_feat_layers=[2])
        states = model.hf_feats(torch.nan_to_num(x), lengths).hidden_states
        fused, _ = model.feat_fuser(states[1:], feat_lengths)
        assert torch.equal(feats, fused.transpose(1, 2)) and len(h_feats) == 1
        assert relative_error(model.xvector(feats, feat_lengths), model(x, lengths)) <= 1e-6
        assert model.forward_feats(x, lengths).h_feats is None

    @torch.no_grad()
    def test_selected_frames_shorten_what_the_x_vector_sees_but_not_the_hidden_states(self, model, batch):
        x, lengths = batch
        keep = torch.arange(18).expand(2, -1) < 9
        out = model(x, lengths, vad_feats=keep, return_feat_layers=[1], return_enc_layers=[1])
        assert out.h_feats[0].shape[-1] == 18 and out.h_enc[0].shape[-1] == 5
        assert not torch.allclose(out.logits, model(x, lengths))


class TestEmbeddings:
    @torch.no_grad()
    def test_chunks_as_long_as_the_item_change_nothing(self, model, batch):
        x, lengths = batch
        whole = model.extract_embed(x, lengths)
        for options in ({"hf_chunk_length": 1.0}, {"xvec_chunk_length": 1.0}, {"chunk_length": 1.0}):
            assert relative_error(model.extract_embed(x, lengths, **options), whole) <= 1e-5

    @torch.no_grad()
    def test_the_two_chunk_lengths_are_separate_controls(self, model):
        x = make_item(model, 32000)[None]
        whole = model.extract_embed(x)
        encoder, backend = model.extract_embed(x, hf_chunk_length=0.5), model.extract_embed(x, xvec_chunk_length=1.0)
        assert torch.equal(model.extract_embed(x, chunk_length=0.5), encoder)
        # of the layers the frames of other chunks are out of sight; squeeze-excitation sees a chunk only
        assert 1e-6 < relative_error(encoder, whole) < 0.5
        assert 1e-6 < relative_error(backend, whole) < 0.5
        assert not torch.equal(encoder, backend)

    def test_detached_chunks_have_no_graph(self, model):
        x = make_item(model, 16000)[None].requires_grad_()
        assert model.extract_embed(x, hf_chunk_length=0.5).requires_grad
        embedding = model.extract_embed(x, hf_chunk_length=0.5, detach_chunks=True)
        (grad,) = torch.autograd.grad(embedding.sum(), x, allow_unused=True)
        assert grad is None

    def test_wrong_chunks_are_refused(self, model):
        x = make_item(model, 8000)[None]
        for options in ({"hf_chunk_length": -1.0}, {"xvec_chunk_length": float("inf")}, {"hf_chunk_length": 0.01}):
            with pytest.raises(ValueError, match="chunk"):
                model.extract_embed(x, **options)
        with pytest.raises(ValueError, match=r"needs at least 0\.02 s"):
            model.check_extraction(0.001)
        assert model.check_extraction(0.02) == model.check_extraction() == 0

    def test_the_shortest_item_is_accepted_and_no_shorter_one(self, model):
        assert model.min_samples == 400 and model.frame_shift_samples == 320
        assert torch.isfinite(model.extract_embed(make_item(model, 400)[None])).all()
        with pytest.raises(TooShortError, match=r"399 samples.*the minimum is 400"):
            model.extract_embed(make_item(model, 399)[None])

    @torch.no_grad()
    def test_windows_are_utterances(self, model):
        x = make_item(model, 16000)
        windows = model.extract_embed_slidwin(x[None], win_length=0.5, win_shift=0.25)
        assert windows.num_windows.tolist() == [3]
        assert relative_error(windows.embeddings[0, 1], model.extract_embed(x[None, 4000:12000])[0]) <= 1e-5

    def test_the_frame_rate_is_that_of_an_adapter_whose_output_is_taken(self):
        model = build("hf-adapter")
        assert model.frame_shift_samples == 640 and model.feat_fuser.num_feats == 14
        assert model.feat_lengths(torch.tensor([16000])).item() == 25
        out = model(make_item(model, 16000)[None], return_feat_layers=[2])
        assert out.h_feats[0].shape == (1, 16, 49)

    @torch.no_grad()
    def test_a_half_precision_network_takes_single_precision_waves(self, model):
        half = copy.deepcopy(model).to(torch.bfloat16)
        x = make_item(model, 6000)[None]
        embedding = half.extract_embed(x)
        assert embedding.dtype == torch.bfloat16
        assert torch.cosine_similarity(embedding.float(), model.extract_embed(x)).item() > 0.98


class TestTrainModes:
    @pytest.mark.parametrize(
        ("mode", "learning"),
        [
            ("full", {"hf_feats", "feat_fuser", "xvector"}),
            ("hf-feats-frozen", {"feat_fuser", "xvector"}),
            ("ft-xvector", {"xvector"}),
            ("ft-embed-affine", {"xvector"}),
            ("frozen", set()),
        ],
    )
    def test_what_learns(self, mode, learning):
        model = build("hf-wav2vec2-group")
        model.set_train_mode(mode)
        model.train()
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        assert {name.partition(".")[0] for name in names} == learning
        assert all(name.startswith("xvector.classif_net") for name in names) == (mode in ("ft-embed-affine", "frozen"))
        assert model.xvector.train_mode == (mode if mode in ("frozen", "ft-embed-affine") else "full")
        assert model.hf_feats.training == (mode == "full") and model.feat_fuser.training == ("feat_fuser" in learning)

    def test_gradients_pass_through_a_frozen_encoder(self):
        model = build("hf-wav2vec2-group")
        model.set_train_mode("ft-xvector")
        x = make_item(model, 4000)[None].requires_grad_()
        model(x).sum().backward()
        assert x.grad.abs().max() > 0
        assert all(p.grad is None for p in model.hf_feats.parameters())


class TestConfiguration:
    def test_sizes_are_filled_in_and_arguments_are_left_alone(self):
        config = model_config(GROUP_NORM, fusion("linear", num_feats=99, feat_dim=1), RESNET1D, 1)
        before = copy.deepcopy(config)
        model = find_model_class("HFHubert2ResNet1dXVector")(**config)
        assert config == before
        full = model.get_config()
        fuser = full["feat_fuser"]["feat_fuser"]
        assert (fuser["num_feats"], fuser["feat_dim"]) == (2, 16)
        assert full["xvector"]["resnet_enc"]["in_feats"] == 16
        assert full["hf_feats"]["ignore_pretrained"] is True and "class_name" not in full["hf_feats"]

    def test_attention_over_layers_gets_their_number_and_size(self):
        model = build("hf-hubert-mhfa")
        config = model.get_config()
        assert "feat_fuser" not in config
        assert config["xvector"]["in_feats"] == 2 * 16
        assert config["xvector"]["pool_net"]["pool_type"] == "mhfa"
        assert config["xvector"]["pool_net"]["num_layers"] == 2
        sizes = {key: config["xvector"]["pool_net"][key] for key in ("num_heads", "d_k", "d_v")}
        assert sizes == {"num_heads": 3, "d_k": 6, "d_v": 5}
        other = copy.deepcopy(HF_MODELS["hf-wavlm-mhfa"][1])
        del other["xvector"]["pool_net"]
        assert find_model_class("HFWavLM2MHFAXVector")(**other).xvector.pool_net.out_feats(48) == 64 * 128
        other["xvector"]["pool_net"] = "mean+stddev"
        assert find_model_class("HFWavLM2MHFAXVector")(**other).xvector.pool_net.out_feats(48) == 96

    def test_encoder_and_x_vector_by_class_name(self):
        config = build("hf-by-class-name").get_config()
        assert config["hf_feats"]["class_name"] == "HFWavLM" and config["xvector"]["class_name"] == "ResNet1dXVector"
        parts = HF_MODELS["hf-by-class-name"][1]
        with pytest.raises(ConfigError, match="hf_feats: missing key 'class_name'"):
            HFWav2XVector.from_config({**parts, "hf_feats": GROUP_NORM})
        with pytest.raises(UnknownClassError, match="did you mean 'HFWavLM'"):
            HFWav2XVector(**{**parts, "hf_feats": {"class_name": "HFWavLm"}})

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"feat_fusion_start": 3}, "feat_fusion_start must be 0 to 2"),
            ({"feat_fusion_start": -1}, "feat_fusion_start must be 0 to 2"),
            ({"feat_fuser": fusion("cat", proj_dim=5)}, "feat_fuser gives 5 features.*in_feats = 16"),
            ({"feat_fuser": {"feat_fuser": {"fuser_typ": "cat"}}}, "did you mean 'fuser_type'"),
            ({"hf_feats": {**GROUP_NORM, "hiden_size": 3}}, "did you mean 'hidden_size'"),
            ({"channel_policy": "left"}, "channel_policy"),
        ],
    )
    def test_parts_that_do_not_fit_are_named(self, change, message):
        parts = model_config(GROUP_NORM, fusion("weighted-avg"), RESNET1D)
        parts["xvector"] = copy.deepcopy(RESNET1D)
        parts["xvector"]["resnet_enc"]["in_feats"] = 16
        with pytest.raises(ConfigError, match=message):
            find_model_class("HFWavLM2ResNet1dXVector").from_config({**parts, **change})

    def test_the_last_layer_needs_no_start(self):
        parts = model_config(GROUP_NORM, fusion("last"), RESNET1D, 7)
        model = find_model_class("HFWavLM2ResNet1dXVector")(**parts)
        assert model.get_config()["feat_fuser"]["feat_fuser"]["num_feats"] == 1

    def test_a_fusion_that_transposes_does_so_once(self):
        parts = model_config(LAYER_NORM, {**fusion("weighted-avg"), "trans": True}, RESNET1D)
        transposed = find_model_class("HFWavLM2ResNet1dXVector")(**parts).eval()
        parts["feat_fuser"] = fusion("weighted-avg")
        plain = find_model_class("HFWavLM2ResNet1dXVector")(**parts).eval()
        plain.load_state_dict(transposed.state_dict())
        x = make_item(plain, 4000)[None]
        assert torch.equal(plain.extract_embed(x), transposed.extract_embed(x))

    def test_options_of_a_command_line(self):
        parser = ArgumentParser()
        find_model_class("HFWavLM2MHFAXVector").add_class_args(parser)
        parsed = parser.parse_args(
            ["--hf_feats.hidden_size", "16", "--xvector.num_classes", "3", "--xvector.pool_net.num_heads", "4"]
        )
        assert parsed.hf_feats.hidden_size == 16 and "feat_fuser" not in parsed

    def test_the_ready_configuration_is_one(self):
        path = resources.files("hyperion_lite") / "configs" / "wavlm_mhfa.yaml"
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        config = document["model"]
        checked = check_config(HFWavLM2MHFAXVector, {**config, "xvector": {**config["xvector"], "num_classes": 5}})
        checked["hf_feats"] |= {**GROUP_NORM, "pretrained_model_path": None}
        model = HFWavLM2MHFAXVector(**checked)
        model.set_train_mode(document["trainer"]["train_mode"])
        rates = {group.get("lr") for group in model.trainable_param_groups()}
        assert rates == {None, 1e-5} and model.embed_dim == 256


class TestFiles:
    def test_a_saved_model_needs_neither_network_nor_the_pretrained_directory(self, tmp_path, monkeypatch):
        from hyperion_lite.tpm.hf.wavlm import HFWavLM

        folder = tmp_path / "pretrained"
        HFWavLM(**GROUP_NORM).hf_model.save_pretrained(folder)
        config = model_config({"pretrained_model_path": str(folder)}, None, MHFA)
        model = find_model_class("HFWavLM2MHFAXVector")(**config).eval()
        x = make_item(model, 4000)[None]
        expected = model.extract_embed(x)
        model.save(tmp_path / "model.pth")
        model.save(tmp_path / "directory")
        shutil.rmtree(folder)
        monkeypatch.setattr("socket.socket", None)
        for name in ("model.pth", "directory"):
            loaded = WaveformXVector.auto_load(tmp_path / name)
            assert torch.equal(loaded.extract_embed(x), expected)
            assert loaded.get_config() == model.get_config()

    @pytest.mark.parametrize("form", ["model.pth", "directory"])
    def test_a_file_never_sends_to_a_pretrained_model(self, tmp_path, form, caplog):
        model = build("hf-wavlm-group")
        model.save(tmp_path / form)
        foreign = {"ignore_pretrained": False, "pretrained_model_path": "somebody/something", "resume_download": True}
        if form == "directory":
            config = json.loads((tmp_path / form / "config.json").read_text())
            config["hf_feats"].update(foreign)
            (tmp_path / form / "config.json").write_text(json.dumps(config))
        else:
            content = torch.load(tmp_path / form, weights_only=True)
            content["model_cfg"]["hf_feats"].update(foreign)
            torch.save(content, tmp_path / form)
        loaded = HyperTorchModel.auto_load(tmp_path / form)
        assert loaded.get_config()["hf_feats"]["ignore_pretrained"] is True
        assert not caplog.records
        x = make_item(model, 4000)[None]
        assert torch.equal(loaded.extract_embed(x), model.extract_embed(x))

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    @pytest.mark.parametrize("lora", [False, True])
    def test_models_can_be_copied_and_sent_to_other_processes(self, duplicate, lora):
        config = copy.deepcopy(HF_MODELS["hf-wavlm-group"])
        config[1]["hf_feats"]["use_lora"] = lora
        model = find_model_class(config[0])(**config[1])
        model.set_train_mode("hf-lora" if lora else "ft-xvector")
        twin = duplicate(model.train())
        assert [(n, p.requires_grad) for n, p in twin.named_parameters()] == [
            (n, p.requires_grad) for n, p in model.named_parameters()
        ]
        assert [(n, m.training) for n, m in twin.named_modules()] == [(n, m.training) for n, m in model.named_modules()]
        x = make_item(model, 4000)[None]
        expected = model.eval().extract_embed(x)
        assert torch.equal(twin.eval().extract_embed(x), expected)
        twin.load_state_dict({name: torch.zeros_like(t) for name, t in twin.state_dict().items()})
        assert torch.equal(model.extract_embed(x), expected)

    def test_weight_norm_in_either_spelling(self, tmp_path):
        model = build("hf-wav2vec2-group")
        x = make_item(model, 4000)[None]
        state = model.state_dict()
        assert any("parametrizations.weight" in name or "weight_g" in name for name in state)
        for old, new in (
            ("parametrizations.weight.original0", "weight_g"),
            ("weight_g", "parametrizations.weight.original0"),
        ):
            other_old, other_new = (
                s.replace("original0", "original1").replace("weight_g", "weight_v") for s in (old, new)
            )
            spelled = OrderedDict((n.replace(old, new).replace(other_old, other_new), v) for n, v in state.items())
            torch.save({"model_cfg": model.get_config(), "model_state_dict": spelled}, tmp_path / "model.pth")
            assert torch.equal(
                HyperTorchModel.auto_load(tmp_path / "model.pth").extract_embed(x), model.extract_embed(x)
            )

    @pytest.mark.parametrize("lora", [False, True])
    @pytest.mark.parametrize("masks", [0.05, 0.0])
    def test_the_embedding_of_masked_frames_may_be_there_or_not(self, tmp_path, lora, masks):
        config = copy.deepcopy(HF_MODELS["hf-wavlm-group"])
        config[1]["hf_feats"] = {**GROUP_NORM, "mask_time_prob": masks, "use_lora": lora}
        model = find_model_class(config[0])(**config[1]).eval()
        prefix = "hf_feats.hf_model.base_model.model." if lora else "hf_feats.hf_model."
        for present in (False, True):
            state = OrderedDict((n, v) for n, v in model.state_dict().items() if "masked_spec_embed" not in n)
            if present:
                state[f"{prefix}masked_spec_embed"] = torch.ones(16)
            torch.save({"model_cfg": model.get_config(), "model_state_dict": state}, tmp_path / "model.pth")
            x = make_item(model, 4000)[None]
            assert torch.equal(
                HyperTorchModel.auto_load(tmp_path / "model.pth").extract_embed(x), model.extract_embed(x)
            )

    def test_adapters_are_saved_in_the_spelling_of_either_release(self, tmp_path):
        config = copy.deepcopy(HF_MODELS["hf-hubert-group"])
        config[1]["hf_feats"] = {
            **GROUP_NORM,
            "use_lora": True,
            "lora_rank": 2,
            "lora_alpha": 3,
            "lora_components": ["q_proj", "out_proj"],
        }
        model = find_model_class(config[0])(**config[1])
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        x = make_item(model, 4000)[None]
        expected = model.eval().extract_embed(x)
        model.save(tmp_path / "model.pth")
        model.save(tmp_path / "directory")
        single = torch.load(tmp_path / "model.pth", weights_only=True)["model_state_dict"]
        layer = "encoder.layers.0.attention.q_proj"
        assert single[f"hf_feats.hf_model.{layer}.lora_A"].shape == (2, 16)
        assert f"hf_feats.hf_model.{layer}.weight" in single and not any("base_layer" in name for name in single)
        from safetensors.torch import load_file

        wrapped = "hf_feats.hf_model.base_model.model."
        assert f"{wrapped}{layer}.lora_A.default.weight" in load_file(tmp_path / "directory/model.safetensors")
        for name in ("model.pth", "directory"):
            assert torch.equal(HyperTorchModel.auto_load(tmp_path / name).extract_embed(x), expected)

    def test_tensors_have_the_names_of_the_original(self):
        names = set(build("hf-wavlm-layer").state_dict())
        assert {"feat_fuser.feat_fuser.feat_fuser.weight", "feat_fuser.feat_fuser.feat_fuser.bias"} <= names
        assert {name.partition(".")[0] for name in names} == {"hf_feats", "feat_fuser", "xvector"}
        assert all(name.startswith("hf_feats.hf_model.") for name in names if name.startswith("hf_feats."))

    def test_class_names_and_a_new_output_layer(self, tmp_path):
        model = build("hf-wavlm-mhfa")
        model.class_names = [f"s{i}" for i in range(7)]
        report = model.rebuild_output_layer(class_names=["s3", "new", "s0"])
        assert set(report.kept) == {"s3", "s0"} and model.num_classes == 3
        model.save(tmp_path / "m")
        assert HyperTorchModel.auto_load(tmp_path / "m").class_names == ["s3", "new", "s0"]
