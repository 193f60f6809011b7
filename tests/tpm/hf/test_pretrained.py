"""What a pretrained directory may look like, and what becomes of it."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil

import pytest
import safetensors.torch
import torch

from hyperion_lite.core.errors import ConfigError, ModelFileError
from hyperion_lite.tpm.hf import HFWav2Vec2, HFWavLM
from tests.tpm.hf.small_encoders import ENCODERS, encoder_class, make_encoder, make_original, save_original, waveforms


def states_of(encoder):
    with torch.no_grad():
        return encoder.eval()(waveforms(1700)).last_hidden_state


def rewrite(folder, change, **save):
    """The weights of ``folder`` as one pickled file, changed."""
    state = change(safetensors.torch.load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin", **save)


def old_spelling(state):
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    renamed = {}
    for name, tensor in state.items():
        for new, old in names.items():
            name = name.replace(new, old)
        renamed[name] = tensor
    return renamed


@pytest.mark.parametrize("name", ENCODERS)
def test_a_pretrained_directory_gives_its_encoder_and_is_not_needed_again(name, tmp_path, caplog):
    folder = save_original(name, tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        encoder = encoder_class(name)(pretrained_model_path=str(folder))
    assert not caplog.records
    expected = states_of(make_encoder(name))
    assert torch.equal(states_of(encoder), expected)
    shutil.rmtree(folder)
    again = encoder_class(name).from_config(json.loads(json.dumps(encoder.get_config())))
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(states_of(again), expected)


@pytest.mark.parametrize("spelling", [dict, old_spelling], ids=["new-weight-norm", "old-weight-norm"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy-container"])
def test_pickled_weights_in_both_spellings(spelling, zipped, tmp_path, monkeypatch):
    folder = save_original("wavlm-group", tmp_path / "model")
    rewrite(folder, spelling, _use_new_zipfile_serialization=zipped)

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was executed")

    for module, function in ((torch, "load"), (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
        monkeypatch.setattr(module, function, refuse)
    encoder = HFWavLM(pretrained_model_path=str(folder))
    assert torch.equal(states_of(encoder), states_of(make_encoder("wavlm-group")))


def test_safetensors_in_the_old_spelling(tmp_path):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    state = old_spelling(safetensors.torch.load_file(folder / "model.safetensors"))
    safetensors.torch.save_file(state, folder / "model.safetensors")
    encoder = HFWav2Vec2(pretrained_model_path=str(folder))
    assert torch.equal(states_of(encoder), states_of(make_encoder("wav2vec2-group")))


@pytest.mark.parametrize("pickled", [False, True])
def test_weights_in_several_files(pickled, tmp_path):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    state = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    name, suffix = ("pytorch_model", "bin") if pickled else ("model", "safetensors")
    table = {}
    for index, part in enumerate((list(state)[::2], list(state)[1::2]), start=1):
        file = f"{name}-0000{index}-of-00002.{suffix}"
        content = {key: state[key] for key in part}
        if pickled:
            torch.save(content, folder / file)
        else:
            safetensors.torch.save_file(content, folder / file)
        table.update(dict.fromkeys(part, file))
    index = folder / f"{name}.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": table}))
    assert torch.equal(
        states_of(HFWav2Vec2(pretrained_model_path=str(folder))), states_of(make_encoder("wav2vec2-group"))
    )
    index.write_text(json.dumps({"weight_map": {**table, "x": "../outside.bin"}}))
    with pytest.raises(ModelFileError, match="not a file of its own directory"):
        HFWav2Vec2(pretrained_model_path=str(folder))
    index.write_text(json.dumps({"weight_map": {**table, "x": "gone.bin"}}))
    with pytest.raises(FileNotFoundError, match=r"gone\.bin"):
        HFWav2Vec2(pretrained_model_path=str(folder))


def test_weights_of_a_model_with_a_head(tmp_path, caplog):
    folder = save_original("wav2vec2-group", tmp_path / "model")

    def with_head(state):
        prefixed = {f"wav2vec2.{name}": tensor for name, tensor in state.items()}
        return {**prefixed, "lm_head.weight": torch.ones(3, 16), "quantizer.codevectors": torch.ones(2)}

    rewrite(folder, with_head)
    with caplog.at_level(logging.WARNING):
        encoder = HFWav2Vec2(pretrained_model_path=str(folder))
    assert not caplog.records
    assert torch.equal(states_of(encoder), states_of(make_encoder("wav2vec2-group")))


def test_unknown_tensors_are_reported(tmp_path, caplog):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    rewrite(folder, lambda state: {**state, "encoder.extra.weight": torch.ones(1)})
    with caplog.at_level(logging.WARNING):
        HFWav2Vec2(pretrained_model_path=str(folder))
    assert "encoder.extra.weight" in caplog.text


def test_missing_and_misshapen_tensors_are_errors(tmp_path):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    lost, bent = "encoder.layers.1.attention.q_proj.weight", "feature_projection.projection.bias"

    def damage(state):
        return {**{k: v for k, v in state.items() if k != lost}, bent: torch.ones(3)}

    rewrite(folder, damage)
    with pytest.raises(ModelFileError) as caught:
        HFWav2Vec2(pretrained_model_path=str(folder))
    assert lost in str(caught.value) and bent in str(caught.value)


def test_the_mask_embedding_may_be_missing(tmp_path):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    rewrite(folder, lambda state: {k: v for k, v in state.items() if k != "masked_spec_embed"})
    encoder = HFWav2Vec2(pretrained_model_path=str(folder))
    assert torch.equal(states_of(encoder), states_of(make_encoder("wav2vec2-group")))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", ["float32", "stored", "float16"])
def test_weights_are_float32_unless_asked_otherwise(stored, wanted, tmp_path):
    folder = save_original("wavlm-group", tmp_path / "model", make_original("wavlm-group").to(stored))
    encoder = HFWavLM(pretrained_model_path=str(folder), weight_dtype=wanted)
    expected = stored if wanted == "stored" else getattr(torch, wanted)
    assert {p.dtype for p in encoder.parameters()} == {expected}
    if wanted == "float32":
        assert states_of(encoder).dtype == torch.float32


def test_fewer_layers(tmp_path, caplog):
    folder = save_original("wavlm-stable", tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        encoder = HFWavLM(pretrained_model_path=str(folder), drop_layers_gt=2)
    assert not caplog.records
    assert encoder.num_hidden_layers == len(encoder.encoder_layers()) == 2
    assert encoder.get_config()["num_hidden_layers"] == 2
    whole = make_encoder("wavlm-stable")
    with torch.no_grad():
        ours, theirs = encoder.eval()(waveforms(2000)), whole(waveforms(2000))
    assert torch.equal(ours.hidden_states[1], theirs.hidden_states[1])
    assert HFWavLM(pretrained_model_path=str(folder), drop_layers_gt=99).num_hidden_layers == 3
    with pytest.raises(ConfigError, match="drop_layers_gt"):
        HFWavLM(pretrained_model_path=str(folder), drop_layers_gt=0)


def test_dropouts_and_masks_are_the_models_unless_overridden(tmp_path):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    options = {"hidden_dropout": 0.7, "mask_time_prob": 0.9, "hidden_size": 999}
    kept = HFWav2Vec2(pretrained_model_path=str(folder), **options).get_config()
    assert (kept["hidden_dropout"], kept["mask_time_prob"], kept["hidden_size"]) == (0.1, 0.05, 16)
    encoder = HFWav2Vec2(
        pretrained_model_path=str(folder), override_dropouts=True, override_spec_augment=True, **options
    )
    changed = encoder.get_config()
    assert (changed["hidden_dropout"], changed["mask_time_prob"], changed["hidden_size"]) == (0.7, 0.9, 16)
    assert encoder.encoder_layers()[0].dropout.p == 0.7


def test_the_feature_processor_is_honoured_and_kept(tmp_path):
    settings = {"do_normalize": False, "sampling_rate": 8000, "return_attention_mask": False, "padding_value": 0.0}
    folder = save_original("wav2vec2-group", tmp_path / "model", processor=settings)
    encoder = HFWav2Vec2(pretrained_model_path=str(folder))
    config = encoder.get_config()
    assert config["feature_processor"] == settings
    assert (config["normalize_input"], config["sample_frequency"]) == (False, 8000)
    assert encoder.sample_frequency == 8000
    x = waveforms(1500)
    with torch.no_grad():
        loud = encoder.eval()(3 * x + 1).hidden_states[0]
        assert not torch.allclose(loud, encoder(x).hidden_states[0], atol=1e-3)
        again = HFWav2Vec2(**config).eval()
        again.load_state_dict(encoder.state_dict())
        assert torch.equal(again(x).last_hidden_state, encoder(x).last_hidden_state)
        normalised = make_encoder("wav2vec2-group")
        assert torch.allclose(normalised(3 * x + 1).last_hidden_state, normalised(x).last_hidden_state, atol=1e-4)
    with pytest.raises(ConfigError, match="8000"):
        HFWav2Vec2(pretrained_model_path=str(folder), sample_frequency=44100)
    with pytest.raises(ConfigError, match="do_normalize"):
        HFWav2Vec2(pretrained_model_path=str(folder), feature_processor={"do_normalize": "no"})


def test_a_model_of_another_family_is_refused(tmp_path):
    folder = save_original("hubert-group", tmp_path / "model")
    with pytest.raises(ConfigError, match=r"'hubert'.*HFWavLM takes 'wavlm'"):
        HFWavLM(pretrained_model_path=str(folder))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"hidden_size": 10**7}, ModelFileError),
        ({"num_hidden_layers": 10**8}, ModelFileError),
        ({"intermediate_size": 10**9}, ModelFileError),
        ({"hidden_size": "wide"}, ConfigError),
        ({"hidden_size": 17}, ConfigError),
        ({"hidden_size": -16}, ConfigError),
        ({"num_hidden_layers": 0}, ConfigError),
        ({"mask_time_length": 0}, ConfigError),
        ({"conv_stride": [5, 0, 4]}, ConfigError),
        ({"conv_dim": [8, 8]}, ConfigError),
        ({"hidden_act": "no-such-activation"}, ConfigError),
        ({"feat_extract_norm": "none"}, ConfigError),
    ],
)
def test_a_crafted_configuration_is_refused(change, error, tmp_path):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(error, match=rf"config\.json|model|{next(iter(change))}"):
        HFWav2Vec2(pretrained_model_path=str(folder))


@pytest.mark.parametrize("buckets", [(2, 800), (16, 0), (16, 4)])
def test_tables_of_positions_that_cannot_be_are_refused(buckets, tmp_path):
    sizes = dict(zip(("num_buckets", "max_bucket_distance"), buckets, strict=True))
    with pytest.raises(ConfigError, match="num_buckets"):
        make_encoder("wavlm-group", **sizes)
    folder = save_original("wavlm-group", tmp_path / "model")
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, **sizes}))
    with pytest.raises(ConfigError, match="num_buckets"):
        HFWavLM(pretrained_model_path=str(folder))


def test_layers_that_the_configuration_does_not_know_are_reported(tmp_path, caplog):
    folder = save_original("wavlm-group", tmp_path / "model")
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "num_hidden_layers": 2}))
    with caplog.at_level(logging.WARNING):
        assert HFWavLM(pretrained_model_path=str(folder)).num_hidden_layers == 2
    assert "encoder.layers.2." in caplog.text


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy-container"])
def test_weights_with_foreign_objects_are_refused_and_not_run(zipped, tmp_path):
    folder, mark = save_original("wav2vec2-group", tmp_path / "model"), tmp_path / "mark"
    rewrite(folder, lambda state: {**state, "extra": Hostile(mark)}, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin.*extra"):
        HFWav2Vec2(pretrained_model_path=str(folder))
    assert not mark.exists()


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_damaged_files_are_named(tmp_path):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelFileError, match=r"model\.safetensors"):
        HFWav2Vec2(pretrained_model_path=str(folder))
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin"):
        HFWav2Vec2(pretrained_model_path=str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match="has no weights"):
        HFWav2Vec2(pretrained_model_path=str(folder))
    (folder / "config.json").write_text("[1")
    with pytest.raises(ModelFileError, match=r"config\.json"):
        HFWav2Vec2(pretrained_model_path=str(folder))
    with pytest.raises(FileNotFoundError, match="no such directory"):
        HFWav2Vec2(pretrained_model_path=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        HFWav2Vec2(pretrained_model_path=str(tmp_path / "empty"))


def test_a_weight_that_repeats_one_element_is_refused(tmp_path):
    folder = save_original("wav2vec2-group", tmp_path / "model")
    rewrite(folder, lambda state: {**state, "lm_head.weight": torch.ones(1).expand(1 << 20, 1 << 10)})
    with pytest.raises(ModelFileError, match=r"lm_head\.weight"):
        HFWav2Vec2(pretrained_model_path=str(folder))
