"""Options of the train command: complete, commented, forgiving about dashes, strict about names."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import hyperion_lite
from hyperion_lite.cli.main import main
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.trainers.training_options import commented_yaml, make_parser, parse_options

CONFIGS = Path(hyperion_lite.__file__).parent / "configs"
RUNS = ["demo", "real_voices", "voxceleb_ecapa", "voxceleb_resnet34"]


@pytest.mark.parametrize("name", RUNS)
def test_shipped_configurations_are_read_and_written_without_loss(name, tmp_path, capsys):
    assert main(["train", "--config", str(CONFIGS / f"{name}.yaml"), "--print_config"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "full.yaml").write_text(text)
    _, config = parse_options(["--config", str(CONFIGS / f"{name}.yaml")])
    parser, again = parse_options(["--config", str(tmp_path / "full.yaml")])
    assert again == config and commented_yaml(parser, again) == text


@pytest.mark.parametrize("name", RUNS)
def test_shipped_configurations_build_their_model(name):
    from hyperion_lite.trainers.training_run import make_model

    _, config = parse_options(["--config", f"builtin:{name}"])
    model = make_model(config, ["a", "b", "c"])
    assert model.class_names == ["a", "b", "c"]


def test_shipped_configurations_are_one_set_of_files():
    link = Path(hyperion_lite.__file__).parent.parent / "configs"
    if not link.exists():
        pytest.skip("not a checkout: an installed package has no top-level configs folder")
    assert link.resolve() == CONFIGS.resolve()


def test_every_key_is_explained():
    parser, config = parse_options([])
    lines = commented_yaml(parser, config).splitlines()
    for number, line in enumerate(lines):
        key, _, value = line.strip().partition(":")
        if value and not line.strip().startswith("#"):
            assert lines[number - 1].strip().startswith("#"), key


def test_a_complete_configuration_has_every_option():
    parser, config = parse_options([])
    found = {name for name, _ in _flat(config)}
    assert {n for n in parser.option_names() if n not in ("help", "config", "print_config", "print_shtab")} == found


def _flat(config, prefix=""):
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ("--trainer.num_epoch=3", "trainer.num_epochs"),
        ("--model.xvector.resnet_enc.resb_chanels=3", "model.xvector.resnet_enc.resb_channels"),
        ("--data.train.samplr.seed=3", "data.train.sampler.seed"),
        ("--trainer.optim.lrr=1", "trainer.optim.lr"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_known_one(option, nearest, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", option])
    assert caught.value.code == 2
    assert f"did you mean '{nearest}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", ["trainer.grad_acc_stepz", "data.val.sampler.shufle", "model.feats.audio_feats.num_filter"]
)
def test_an_unknown_key_of_a_file_is_named_with_the_nearest_known_one(path, tmp_path, capsys):
    *parents, key = path.split(".")
    document = {key: 1}
    for parent in reversed(parents):
        document = {parent: document}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "config.yaml")])
    error = capsys.readouterr().err
    assert path in error and "did you mean" in error


def test_dashes_and_underscores_are_the_same():
    _, first = parse_options(["--trainer.num-epochs", "7", "--model.xvector.cos-scale=12"])
    _, second = parse_options(["--trainer.num_epochs", "7", "--model.xvector.cos_scale=12"])
    assert first == second and first["trainer"]["num_epochs"] == 7 and first["model"]["xvector"]["cos_scale"] == 12


def test_a_value_of_another_type_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--trainer.num_epochs=many"])
    assert "num_epochs" in capsys.readouterr().err


def test_an_unknown_model_class_is_named(capsys):
    assert main(["train", "--model.class_name=Wav2ResNet1dXVectr"]) == 2
    assert "Wav2ResNet1dXVector" in capsys.readouterr().err


def test_a_missing_file_is_named(capsys):
    assert main(["train", "--config", "no_such.yaml"]) == 2
    assert "no configuration file no_such.yaml" in capsys.readouterr().err


def test_an_unknown_built_in_configuration_is_named():
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        parse_options(["--config", "builtin:demmo"])


_VALUES = {
    "seed": st.integers(0, 2**31),
    "trainer.optim.lr": st.floats(1e-12, 1.0),
    "trainer.grad_clip_norm": st.sampled_from(["inf", 1.0, 2.0]),
    "trainer.exp_path": st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12),
    # not "#x" and the like: where text or null may stand, jsonargparse takes text that YAML would read as null for null
    "trainer.best_metric": st.none() | st.sampled_from(["val_eer", "yes", "1", "a: b", "x#y"]),
    "data.train.dataset.class_names": st.none() | st.lists(st.sampled_from(["speaker", "no", "1.0"]), max_size=3),
    "data.train.dataset.aug_cfgs": st.none() | st.just({"augmenters": [{"type": "gain", "gain_db": [-1.5, 2]}]}),
    "data.train.sampler.num_chunks_per_seg_epoch": st.none() | st.floats(0.1, 9) | st.just("auto"),
    "model.xvector.resnet_enc.resb_channels": st.integers(1, 99) | st.lists(st.integers(1, 99), min_size=1, max_size=3),
}


@settings(max_examples=5)
@given(st.fixed_dictionaries({}, optional=_VALUES))
def test_any_document_survives_writing_and_reading(tmp_path_factory, changes):
    parser = make_parser()
    config = parse_options([])[1]
    for name, value in changes.items():
        *parents, key = name.split(".")
        target = config
        for parent in parents:
            target = target[parent]
        target[key] = value
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(commented_yaml(parser, config), encoding="utf-8")
    assert parse_options(["--config", str(path)])[1] == config
