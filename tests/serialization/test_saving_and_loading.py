"""What goes into a model file comes out of it, or an error says why not."""

from __future__ import annotations

import builtins
import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from hyperion_lite import HyperTorchModel, Wav2XVector
from hyperion_lite.core.errors import ConfigError, ModelFileError
from hyperion_lite.models.state_loading import load_state
from hyperion_lite.models.xvectors.resnet1d_xvector import ResNet1dXVector
from hyperion_lite.serialization import single_file
from hyperion_lite.serialization.names import clean_names, match_weight_norm, other_weight_norm_spelling
from tests.models.small_models import ALL_MODELS, build


class Tied(HyperTorchModel):
    """Two layers that share a weight, and a weight that is no contiguous tensor."""

    def __init__(self, size: int = 4, tie: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(size, size)
        self.second = nn.Linear(size, size)
        if tie:
            self.second.weight = self.first.weight
        self.transposed = nn.Parameter(torch.randn(size, 2 * size).t())


class Normed(HyperTorchModel):
    """A weight-normed layer in the older spelling."""

    def __init__(self, new: bool = True) -> None:
        super().__init__()
        layer = nn.Linear(3, 3)
        self.layer = torch.nn.utils.parametrizations.weight_norm(layer) if new else torch.nn.utils.weight_norm(layer)


@pytest.fixture
def model():
    return build("ecapa")


FORMS = ["m.pth", "m.pt", "m"]


@pytest.mark.parametrize("form", FORMS)
def test_tied_tensors_are_stored_once_and_tied_again(tmp_path, form):
    original = Tied()
    original.save(tmp_path / form)
    loaded = HyperTorchModel.auto_load(tmp_path / form)
    assert loaded.first.weight is loaded.second.weight
    assert torch.equal(loaded.first.weight, original.first.weight)
    assert torch.equal(loaded.transposed, original.transposed)
    untied = Tied(tie=False)
    untied.second.weight = untied.first.weight
    untied.save(tmp_path / f"2{form}")
    again = HyperTorchModel.auto_load(tmp_path / f"2{form}")
    assert again.first.weight is again.second.weight


@pytest.mark.parametrize("form", FORMS)
def test_a_class_table_travels_with_the_model(tmp_path, model, form):
    ids = [f"spk,{i}" for i in range(model.num_classes)]
    model.class_names = ids
    model.save(tmp_path / form)
    assert HyperTorchModel.auto_load(tmp_path / form).class_names == ids
    with pytest.raises(ValueError, match="3 ids, but the model has 7 classes"):
        model.class_names = ids[:3]
    with pytest.raises(ValueError, match="distinct"):
        model.class_names = ["a"] * 7


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_dtypes_are_kept(tmp_path, model, form, dtype):
    model.to(dtype).save(tmp_path / form)
    loaded = HyperTorchModel.auto_load(tmp_path / form)
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_leaves_the_old_file(tmp_path, model, form, monkeypatch):
    model.save(tmp_path / form)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with torch.no_grad():
        next(model.parameters()).add_(1)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hyperion_lite.serialization.directory.save_file", full)
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        model.save(tmp_path / form)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_directory_with_other_content_is_never_replaced(tmp_path, model):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "results.csv").write_text("precious")
    with pytest.raises(FileExistsError, match=r"results.csv"):
        model.save(tmp_path / "exp")
    assert (tmp_path / "exp" / "results.csv").read_text() == "precious"
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a file"):
        model.save(tmp_path / "file")


def test_loading_never_unpickles(tmp_path, model, monkeypatch):
    model.save(tmp_path / "m.pth")

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was run")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    HyperTorchModel.auto_load(tmp_path / "m.pth")


class Evil:
    def __reduce__(self):
        return os.system, ("echo owned > /tmp/owned-by-a-model-file",)


def test_a_hostile_configuration_is_refused_and_not_run(tmp_path):
    Path("/tmp/owned-by-a-model-file").unlink(missing_ok=True)
    torch.save(
        {"model_cfg": {"class_name": "ResNet1dXVector", "x": Evil()}, "model_state_dict": {}}, tmp_path / "e.pth"
    )
    with pytest.raises(ModelFileError, match="nothing of it was executed"):
        HyperTorchModel.auto_load(tmp_path / "e.pth")
    assert not Path("/tmp/owned-by-a-model-file").exists()


@pytest.mark.parametrize(
    "compiled", ["_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module.", "module."]
)
def test_wrapper_prefixes_are_stripped(tmp_path, model, compiled):
    state = OrderedDict((compiled + k, v) for k, v in model.state_dict().items())
    state["n_averaged"] = torch.tensor(3)
    torch.save(
        {"model_cfg": model.get_config(), "swa_model_state_dict": state, "model_state_dict": {}}, tmp_path / "m.pth"
    )
    loaded = HyperTorchModel.auto_load(tmp_path / "m.pth", model_name="swa_model")
    assert all(torch.equal(v, loaded.state_dict()[k]) for k, v in model.state_dict().items())


def test_a_part_that_was_compiled_loads_too():
    names = clean_names({"module.encoder._orig_mod.conv.weight": 1, "a_module.x": 2, "my_orig_mod.y": 3})
    assert list(names) == ["encoder.conv.weight", "a_module.x", "my_orig_mod.y"]
    with pytest.raises(ValueError, match="two tensors are called 'a'"):
        clean_names({"module.a": 1, "a": 2})


def test_a_part_called_module_keeps_its_tensors(tmp_path):
    class Outer(HyperTorchModel, abstract=True):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 3)

    outer = Outer()
    for name in ("m.pth", "m"):
        outer.save(tmp_path / name)
        loaded = HyperTorchModel.auto_load(tmp_path / name, extra_objs=[Outer])
        assert torch.equal(loaded.module.weight, outer.module.weight)


def test_a_compiled_part_leaves_no_trace_in_a_file(tmp_path, model):
    compiled = model.copy()
    names = list(compiled.state_dict())
    compiled.encoder_net = torch.compile(compiled.encoder_net)
    compiled.save(tmp_path / "m.pth")
    assert list(torch.load(tmp_path / "m.pth", weights_only=True)["model_state_dict"]) == names
    load_state(compiled, HyperTorchModel.auto_load(tmp_path / "m.pth").state_dict())


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_both_spellings_of_weight_norm_load(tmp_path, new):
    original = Normed(new)
    config = original.get_config() | {"new": not new}
    torch.save({"model_cfg": config, "model_state_dict": original.state_dict()}, tmp_path / "m.pth")
    loaded = HyperTorchModel.auto_load(tmp_path / "m.pth")
    x = torch.randn(2, 3)
    assert torch.allclose(loaded.layer(x), original.layer(x))


def test_the_two_spellings_are_inverse():
    for name in (
        "weight_g",
        "a.b.weight_v",
        "a.parametrizations.weight.original0",
        "parametrizations.weight.original1",
    ):
        assert other_weight_norm_spelling(other_weight_norm_spelling(name)) == name
    assert other_weight_norm_spelling("my_weight_g") == "my_weight_g"
    assert list(match_weight_norm({"weight_g": 1}, ["weight_g"])) == ["weight_g"]


class TestErrors:
    def test_missing_path(self):
        with pytest.raises(FileNotFoundError, match="no model at nowhere"):
            HyperTorchModel.auto_load("nowhere")

    def test_a_local_path_is_never_looked_up_on_a_hub(self, monkeypatch):
        monkeypatch.setattr("hyperion_lite.serialization.locate.require", None)
        with pytest.raises(FileNotFoundError):
            HyperTorchModel.auto_load("org/repo")

    def test_unknown_class(self, tmp_path, model):
        config = model.get_config() | {"class_name": "ResNet1dXVektor"}
        torch.save({"model_cfg": config, "model_state_dict": {}}, tmp_path / "m.pth")
        with pytest.raises(KeyError, match=r"m\.pth: .*did you mean 'ResNet1dXVector'.*known: .*Wav2ResNetXVector"):
            HyperTorchModel.auto_load(tmp_path / "m.pth")

    def test_a_class_of_yours(self, tmp_path):
        class Own(HyperTorchModel, abstract=True):
            def __init__(self, size: int) -> None:
                super().__init__()
                self.layer = nn.Linear(size, 1)

        Own(3).save(tmp_path / "m.pth")
        with pytest.raises(KeyError, match="Own"):
            HyperTorchModel.auto_load(tmp_path / "m.pth")
        for extra in ([Own], {"Own": Own}):
            assert type(HyperTorchModel.auto_load(tmp_path / "m.pth", extra_objs=extra)) is Own

    def test_two_classes_under_one_name(self):
        with pytest.raises(
            ValueError, match=r"two different model classes have the name 'Tied'.*test_saving_and_loading"
        ):
            type("Tied", (HyperTorchModel,), {"__module__": "elsewhere", "__init__": Tied.__init__})

    def test_another_class_than_asked_for(self, tmp_path, model):
        model.save(tmp_path / "m.pth")
        with pytest.raises(ModelFileError, match="holds a ResNet1dXVector, which is not a Wav2XVector"):
            Wav2XVector.auto_load(tmp_path / "m.pth")
        assert type(ResNet1dXVector.auto_load(tmp_path / "m.pth")) is ResNet1dXVector

    def test_every_tensor_that_does_not_fit_is_listed(self, tmp_path, model):
        state = model.state_dict()
        removed, reshaped = [k for k in state if k.endswith("weight")][:2]
        del state[removed]
        state[reshaped] = torch.zeros(1, 2, 3)
        state["extra.tensor"] = torch.zeros(1)
        torch.save({"model_cfg": model.get_config(), "model_state_dict": state}, tmp_path / "m.pth")
        with pytest.raises(ModelFileError) as caught:
            HyperTorchModel.auto_load(tmp_path / "m.pth")
        for name in (removed, reshaped, "extra.tensor", "(1, 2, 3)"):
            assert name in str(caught.value)
        with pytest.raises(ModelFileError, match="wrong shapes"):
            HyperTorchModel.auto_load(tmp_path / "m.pth", strict=False)

    def test_missing_and_ill_typed_keys(self, tmp_path, model):
        for change, message in (
            ({"num_classes": "many"}, "num_classes: expected int"),
            (None, "missing key 'num_classes'"),
        ):
            config = model.get_config()
            config.pop("num_classes") if change is None else config.update(change)
            torch.save({"model_cfg": config, "model_state_dict": model.state_dict()}, tmp_path / "m.pth")
            with pytest.raises(ConfigError, match=message):
                HyperTorchModel.auto_load(tmp_path / "m.pth")

    @pytest.mark.parametrize(
        ("part", "change", "message"),
        [
            ("feats", {"audio_feat": None}, "missing key 'audio_feat'"),
            ("feats", {"num_filters": "many"}, "num_filters: expected int"),
            ("feats", {"low_freq": 9000}, "low_freq = 9000"),
            ("feats", {"num_filters": 20}, "feats gives 20 features per frame, but the encoder has in_feats = 24"),
            ("xvector", {"resb_type": "bascic"}, "did you mean 'basic'"),
        ],
    )
    def test_every_mistake_in_a_configuration_names_the_file(self, tmp_path, part, change, message):
        wave_model = build("wav2-ecapa")
        config = wave_model.get_config()
        del config["feats"]["frontend_rules"]
        inner = config[part]["audio_feats" if part == "feats" else "resnet_enc"]
        inner.update(change)
        for key in [key for key, value in change.items() if value is None]:
            del inner[key]
        torch.save({"model_cfg": config, "model_state_dict": wave_model.state_dict()}, tmp_path / "m.pth")
        with pytest.raises(ConfigError, match=rf"m\.pth: .*{message}"):
            HyperTorchModel.auto_load(tmp_path / "m.pth")

    @pytest.mark.parametrize(
        ("own", "message"),
        [
            ({"classes": ["a", "b"]}, "class table has 2 ids, but the model has"),
            ({"classes": 5}, "hyperion_lite.classes must be a list"),
            ({"tied": 5}, "hyperion_lite.tied must be a dict"),
        ],
    )
    def test_what_this_package_adds_is_checked_too(self, tmp_path, model, own, message):
        content = {"model_cfg": model.get_config(), "model_state_dict": model.state_dict(), "hyperion_lite": own}
        torch.save(content, tmp_path / "m.pth")
        with pytest.raises(ModelFileError, match=rf"m\.pth.*{message}"):
            HyperTorchModel.auto_load(tmp_path / "m.pth")

    def test_unknown_keys(self, tmp_path, model, caplog):
        config = model.get_config() | {"embed_dimm": 3}
        with pytest.raises(ConfigError, match="unknown key 'embed_dimm', did you mean 'embed_dim'"):
            HyperTorchModel.load(cfg=config)
        with pytest.raises(ConfigError, match="no 'class_name'"):
            HyperTorchModel.load(cfg={"num_classes": 3})
        torch.save({"model_cfg": config, "model_state_dict": model.state_dict()}, tmp_path / "m.pth")
        HyperTorchModel.auto_load(tmp_path / "m.pth")
        assert sum("embed_dimm" in r.message for r in caplog.records) == 1

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"state_dict": {}}, "no 'model_cfg'"),
            ([1], "holds a list"),
            ({"model_cfg": {}, "model_state_dict": {}}, "class_name"),
            ({"model_cfg": {"class_name": "Tied"}}, "no weights 'model'"),
            ({"model_cfg": {"class_name": "Tied"}, "model_state_dict": {"a": 1}}, "should be a tensor"),
        ],
    )
    def test_other_content(self, tmp_path, content, message):
        torch.save(content, tmp_path / "m.pth")
        with pytest.raises(ModelFileError, match=message):
            HyperTorchModel.auto_load(tmp_path / "m.pth")

    @pytest.mark.parametrize(
        "content", [b"", b"<html>", b"version https://git-lfs.github.com/spec/v1\n", b"\x00" * 100]
    )
    def test_no_checkpoint_at_all(self, tmp_path, content):
        (tmp_path / "m.pth").write_bytes(content)
        with pytest.raises(ModelFileError, match=r"m\.pth"):
            HyperTorchModel.auto_load(tmp_path / "m.pth")

    def test_flipped_bytes_are_noticed(self, tmp_path, model):
        path = tmp_path / "m.pth"
        model.save(path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(ModelFileError):
            HyperTorchModel.auto_load(path)

    def test_a_newer_format(self, tmp_path, model):
        model.save(tmp_path / "m")
        document = json.loads((tmp_path / "m" / "config.json").read_text())
        document["hyperion_lite"]["format"] = 99
        (tmp_path / "m" / "config.json").write_text(json.dumps(document))
        with pytest.raises(ModelFileError, match="format 99"):
            HyperTorchModel.auto_load(tmp_path / "m")

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_a_damaged_directory(self, tmp_path, model, name):
        model.save(tmp_path / "m")
        (tmp_path / "m" / name).write_bytes(b"{")
        with pytest.raises(ModelFileError, match=name):
            HyperTorchModel.auto_load(tmp_path / "m")
        (tmp_path / "m" / name).unlink()
        with pytest.raises(FileNotFoundError):
            HyperTorchModel.auto_load(tmp_path / "m")


def write_checkpoint(folder: Path, model: HyperTorchModel) -> None:
    folder.mkdir(parents=True)
    model.save(folder / "model")
    (folder / "model" / "optimizer.pt").touch()
    (folder / "rng_state.pth").touch()
    (folder / "trainer_state.json").write_text('{"epoch": 1, "step": 2}')


class TestExperiments:
    def test_the_newest_complete_checkpoint_is_taken(self, tmp_path, caplog):
        for epoch, seed in ((1, 1), (2, 2), (10, 3)):
            write_checkpoint(tmp_path / f"checkpoint_ep{epoch:04d}_step{epoch:010d}", build("ecapa", seed))
        newest = tmp_path / "checkpoint_ep0010_step0000000010"
        loaded = HyperTorchModel.auto_load(tmp_path)
        assert torch.equal(next(loaded.parameters()), next(build("ecapa", 3).parameters()))
        (newest / "model" / "model.safetensors").write_bytes(b"cut")
        loaded = HyperTorchModel.auto_load(tmp_path)
        assert torch.equal(next(loaded.parameters()), next(build("ecapa", 2).parameters()))
        assert "the one before is used" in caplog.text
        (newest / "rng_state.pth").unlink()
        caplog.clear()
        HyperTorchModel.auto_load(tmp_path)
        assert "the one before is used" not in caplog.text

    def test_files_of_the_older_trainer(self, tmp_path):
        for name, seed in (("model_ep0001.pth", 1), ("model_ep0002.pth", 2), ("model_ep0002_step0000000009.pth", 3)):
            build("ecapa", seed).save(tmp_path / name)
        loaded = HyperTorchModel.auto_load(tmp_path)
        assert torch.equal(next(loaded.parameters()), next(build("ecapa", 3).parameters()))
        (tmp_path / "model_ep0002_step0000000009.pth").write_bytes(b"PK\x03\x04")
        loaded = HyperTorchModel.auto_load(tmp_path)
        assert torch.equal(next(loaded.parameters()), next(build("ecapa", 2).parameters()))

    def test_an_empty_directory(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="is no model, checkpoint or experiment directory"):
            HyperTorchModel.auto_load(tmp_path)


def test_only_the_wanted_tensors_are_read(tmp_path, model, monkeypatch):
    torch.save(
        {
            "model_cfg": model.get_config(),
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": {"s": torch.ones(9)},
        },
        tmp_path / "m.pth",
    )
    read = []
    real = single_file._read
    monkeypatch.setattr(single_file, "_read", lambda f, ref, name: read.append(name) or real(f, ref, name))
    HyperTorchModel.auto_load(tmp_path / "m.pth")
    assert read and all(name.startswith("model_state_dict.") for name in read)


def test_map_location_moves_the_model(tmp_path, model):
    model.save(tmp_path / "m.pth")
    assert HyperTorchModel.auto_load(tmp_path / "m.pth", map_location="cpu").device == torch.device("cpu")


@pytest.mark.parametrize("name", ["wav2-ecapa", "wav2-resnet18"])
def test_native_models_work_where_other_libraries_do_not(tmp_path, name, monkeypatch):
    build(name).save(tmp_path / "m.pth")
    real = builtins.__import__

    def guarded(module, *args, **kwargs):
        if module.split(".")[0] in ("torchaudio", "transformers"):
            raise OSError("undefined symbol: a compiled part that does not match")
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)
    loaded = HyperTorchModel.auto_load(tmp_path / "m.pth")
    assert loaded.extract_embed(torch.randn(1, 8000)).shape == (1, 12)


def test_old_spellings_of_keys(tmp_path):
    class_name, config = ALL_MODELS["wav2-basic-strided"]
    model = build("wav2-basic-strided")
    old = json.loads(json.dumps({"class_name": class_name, **model.get_config()}))
    xvector, feats = old["xvector"], old["feats"]
    xvector["s"] = xvector.pop("cos_scale")
    xvector["wo_norm"] = not xvector.pop("use_norm")
    xvector["norm_after"] = not xvector.pop("norm_before")
    xvector["pool_net"] = xvector["pool_net"]["pool_type"]
    xvector["resnet_enc"]["wo_norm"] = not xvector["resnet_enc"].pop("use_norm")
    xvector["in_feats"] = 24
    feats["mvn"] = {"no_norm_mean": False, "norm_var": False, "context": 20}
    torch.save({"model_cfg": old, "model_state_dict": model.state_dict()}, tmp_path / "m.pth")
    loaded = HyperTorchModel.auto_load(tmp_path / "m.pth", frontend_rules="modern")
    x = torch.randn(1, 9000)
    assert torch.equal(loaded.extract_embed(x), model.extract_embed(x))
    assert loaded.get_config()["xvector"]["cos_scale"] == config["xvector"]["cos_scale"]


def save_changed(model, path, change) -> None:
    content = {"model_cfg": model.get_config(), "model_state_dict": model.state_dict()}
    change(content)
    torch.save(content, path)


def aliases(content):
    value: list = ["x"]
    for _ in range(30):
        value = [value] * 10
    content["model_cfg"]["bomb"] = value


class TestHostileFiles:
    @pytest.mark.parametrize(
        "change",
        [
            aliases,
            lambda c: c.update(hyperion_lite={"config": {"x": [[[1] * 1000] * 1000] * 1000}}),
            lambda c: c["model_cfg"]["resnet_enc"].update(resb_repeats=[10**8, 1]),
            lambda c: c["model_cfg"].update(num_embed_layers=10**7),
            lambda c: c["model_cfg"].update(embed_dim=5 * 10**7),
            lambda c: c["model_cfg"].update(num_classes=2**40),
            lambda c: c["model_cfg"]["resnet_enc"].update(in_conv_channels=10**7),
            lambda c: c["model_cfg"].update(embed_dim=10**30),
            lambda c: c["model_cfg"].update(embed_dim=-5),
            lambda c: c["model_cfg"].update(pool_net={"pool_type": "lde", "num_comp": 10**9}),
            lambda c: c["model_cfg"].update(pool_net={"pool_type": ["a"]}),
            lambda c: c["model_state_dict"].update(extra=torch.zeros(1).expand(10**6, 10**5)),
            lambda c: c["model_state_dict"].update({"classif_net.output.kernel": torch.zeros(1).expand(10**6, 10**5)}),
            lambda c: c["model_state_dict"].update(
                {"classif_net.output.kernel": torch.zeros(12, 7, dtype=torch.int64)}
            ),
            lambda c: c["model_state_dict"].update(
                {"classif_net.output.kernel": torch.zeros(12, 7, dtype=torch.complex64)}
            ),
        ],
    )
    def test_no_file_takes_more_than_it_holds(self, tmp_path, model, change):
        save_changed(model, tmp_path / "m.pth", change)
        with pytest.raises((ModelFileError, ConfigError), match=r"m\.pth|model_cfg|hyperion_lite|model_state_dict"):
            HyperTorchModel.auto_load(tmp_path / "m.pth")

    @pytest.mark.parametrize(("key", "value"), [("embed_dim", "12"), ("margin", "0.2"), ("use_norm", "false")])
    def test_a_number_written_as_text_is_named(self, tmp_path, model, key, value):
        save_changed(model, tmp_path / "m.pth", lambda c: c["model_cfg"].update({key: value}))
        with pytest.raises(ConfigError, match=key):
            HyperTorchModel.auto_load(tmp_path / "m.pth")

    def test_odd_content_of_a_directory(self, tmp_path, model):
        model.class_names = [str(i) for i in range(7)]
        model.save(tmp_path / "m")
        (tmp_path / "m" / "classes.csv").write_bytes(b"\xff\xfe")
        with pytest.raises(ModelFileError, match=r"classes\.csv"):
            HyperTorchModel.auto_load(tmp_path / "m")
        (tmp_path / "m" / "config.json").write_text('{"class_name": "A", "x": ' + "9" * 5000 + "}")
        with pytest.raises(ModelFileError, match=r"config\.json"):
            HyperTorchModel.auto_load(tmp_path / "m")


def test_a_full_disk_reported_by_torch_is_an_error_of_the_system(tmp_path, model, monkeypatch):
    def full(*args, **kwargs):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"cannot write .*m\.pth"):
        model.save(tmp_path / "m.pth")


def test_a_model_loaded_in_inference_mode_can_be_trained(tmp_path, model):
    model.save(tmp_path / "m.pth")
    with torch.inference_mode():
        loaded = HyperTorchModel.auto_load(tmp_path / "m.pth")
    loaded.train()(torch.randn(2, 24, 40), y=torch.tensor([0, 1])).sum().backward()
    assert any(p.grad is not None for p in loaded.parameters())
