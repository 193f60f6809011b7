"""A misspelt option was ignored; ``--frame-shift`` and ``--frame_shift`` were two options; a dumped configuration did not load.

Right: an error that names the nearest key; both spellings are one option; dumping and loading is the identity.
"""

from __future__ import annotations

import pytest
import yaml

from hyperion_lite import HyperTorchModel
from hyperion_lite.cli.main import main
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.audio_dataset import AudioDataset
from tests.data.audio_files import write_recordings
from tests.models.small_models import ALL_MODELS, WAV2XVECTORS


def test_an_unknown_key_names_the_nearest() -> None:
    class_name, config = WAV2XVECTORS["wav2-ecapa"]
    for place, key, near in (
        ((), "feat", "feats"),
        (("xvector",), "embeddim", "embed_dim"),
        (("xvector", "resnet_enc"), "res2net_scales", "res2net_scale"),
        (("feats", "audio_feats"), "num_filter", "num_filters"),
    ):
        wrong: dict = {"class_name": class_name, **config}
        inner = wrong
        for name in place:
            inner[name] = dict(inner[name])
            inner = inner[name]
        inner[key] = 3
        with pytest.raises(ConfigError, match=f"unknown key '{key}', did you mean '{near}'"):
            HyperTorchModel.load(cfg=wrong)
    with pytest.raises(ConfigError, match="did you mean 'num_augs'"):
        AudioDataset.from_config({"num_aug": 2})


def test_the_command_line_names_the_nearest(capsys) -> None:
    for wrong, near in (("--ouput", "--output"), ("--modle_name", "--model-name")):
        with pytest.raises(SystemExit):
            main(["extract", "--model", "m", "--input", "i", wrong, "o"])
        assert f"unknown option {wrong}, did you mean '{near}'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--trainer.num_epoch=3"])
    assert "did you mean 'trainer.num_epochs'" in capsys.readouterr().err


def test_dashes_and_underscores_are_one_option(tmp_path, capsys) -> None:
    seen = []
    write_recordings(tmp_path, [800])
    for option in ("--model-name", "--model_name", "--model-name=swa_model", "--model_name=swa_model"):
        value = [] if "=" in option else ["swa_model"]
        main(
            [
                "extract",
                "--model",
                str(tmp_path / "none.pth"),
                "--input",
                str(tmp_path),
                "--output",
                "o",
                option,
                *value,
            ]
        )
        seen.append(capsys.readouterr().err)
    assert "no model at" in seen[0] and set(seen) == {seen[0]}
    values = []
    for name in ("num-epochs", "num_epochs"):
        assert main(["train", f"--trainer.{name}=3", "--print_config"]) == 0
        values.append(capsys.readouterr().out)
    assert values[0] == values[1] and yaml.safe_load(values[0])["trainer"]["num_epochs"] == 3


def test_a_dumped_configuration_loads_as_itself(tmp_path, capsys) -> None:
    texts = []
    for _ in range(2):
        source = ["--config", str(tmp_path / "c.yaml")] if texts else ["--trainer.num_epochs=3", "--seed=5"]
        assert main(["train", *source, "--print_config"]) == 0
        texts.append(capsys.readouterr().out)
        (tmp_path / "c.yaml").write_text(texts[-1])
    assert yaml.safe_load(texts[0]) == yaml.safe_load(texts[1])
    (tmp_path / "c.yaml").write_text(texts[0].replace("num_epochs:", "num_epoch:"))
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "c.yaml")])
    assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize("name", ALL_MODELS)
def test_a_model_configuration_survives_yaml(name: str) -> None:
    class_name, config = ALL_MODELS[name]
    model = HyperTorchModel.load(cfg={"class_name": class_name, **config})
    document = yaml.safe_load(yaml.safe_dump(model.get_config()))
    assert HyperTorchModel.load(cfg=document).get_config() == model.get_config() == document
