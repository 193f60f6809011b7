"""A run from its configuration: what is made of it, what it writes, how it goes on, how a trained model is trained further."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from hyperion_lite.cli.train import main
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.trainers.training_data import class_ids
from hyperion_lite.trainers.training_options import commented_yaml, parse_options
from tests.helpers import slow_but
from tests.trainers import voices

ROOT = Path(__file__).resolve().parent.parent.parent
# so that the tests run from a checkout that is not installed, too
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
RUN = {"check": True, "capture_output": True, "text": True, "env": ENVIRONMENT, "timeout": 300}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("voices")
    voices.write_voices(folder / "train")
    voices.write_voices(folder / "val", 3, first=100, voices=3)
    voices.write_voices(folder / "more", 3, voices=6)
    return folder


def write_config(folder, tmp_path, **changes):
    sampler = {"min_chunk_length": 0.5, "max_batch_size": 8, "max_batches_per_epoch": 3, "num_chunks_per_seg_epoch": 4}
    config = {
        "data": {
            "train": {"dataset": {"dataset_path": str(folder / "train")}, "sampler": sampler},
            "val": {"dataset": {"dataset_path": str(folder / "val")}, "trials": "all"},
        },
        "model": {"class_name": "Wav2ResNet1dXVector", **voices.MODEL},
        "trainer": {
            "exp_path": str(tmp_path / "exp"),
            "num_epochs": 1,
            "device": "cpu",
            "best_metric": "val_eer",
            "optim": voices.OPTIM,
        },
    }
    for section, value in changes.items():
        if value is None:
            del config[section]
        else:
            config[section] = {**config.get(section, {}), **value}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_a_run_writes_config_logs_checkpoints_and_report(folder, tmp_path):
    path = write_config(folder, tmp_path)
    assert main(["--config", path, "--trainer.num_epochs", "2"]) == 0
    exp = tmp_path / "exp"
    assert [p.name for p in sorted(exp.glob("checkpoint_*"))] == [
        "checkpoint_ep0001_step0000000003",
        "checkpoint_ep0002_step0000000006",
    ]
    with open(exp / "train_log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 and {"train_loss", "val_loss", "val_acc", "val_eer", "lr"} <= set(rows[0])
    report = (exp / "report.md").read_text()
    assert "Wav2ResNet1dXVector" in report and "report_curves.png" in report
    assert f"{float(rows[1]['val_eer']):.4g}" in report
    assert (exp / "report_curves.png").read_bytes().startswith(b"\x89PNG")
    # the resolved configuration describes the same run
    assert parse_options(["--config", str(exp / "config.yaml")])[1]["trainer"]["num_epochs"] == 2
    checkpoint = exp / "checkpoint_ep0002_step0000000006"
    assert (checkpoint / "config.yaml").read_text() == (exp / "config.yaml").read_text()
    assert HyperTorchModel.auto_load(exp).class_names == voices.SPEAKERS


def test_the_same_command_goes_on_where_it_was(folder, tmp_path):
    def run(name, epochs):
        folder_of_run = tmp_path / name
        folder_of_run.mkdir(exist_ok=True)
        path = write_config(folder, folder_of_run)
        assert main(["--config", path, f"--trainer.num_epochs={epochs}"]) == 0
        return HyperTorchModel.auto_load(folder_of_run / "exp").state_dict()

    run("parts", 1)
    parts, whole = run("parts", 3), run("whole", 3)
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    histories = [json.loads((tmp_path / n / "exp" / "report_history.json").read_text()) for n in ("parts", "whole")]
    for rows in histories:
        for row in rows:
            del row["seconds"]
    assert histories[0] == histories[1] and [row["epoch"] for row in histories[0]] == [0, 1, 2]


def test_validation_has_the_class_table_of_training(folder, tmp_path):
    # the validation data has three of the four speakers, and a table of its own with three
    assert main(["--config", write_config(folder, tmp_path)]) == 0
    with open(tmp_path / "exp" / "classes_speaker.csv", newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == voices.SPEAKERS


def test_a_validation_speaker_that_training_lacks_is_named(folder, tmp_path, capsys):
    data = {
        "train": {
            "dataset": {"dataset_path": str(folder / "train")},
            "sampler": {"min_chunk_length": 0.5, "max_batch_size": 8},
        },
        "val": {"dataset": {"dataset_path": str(folder / "more")}},
    }
    assert main(["--config", write_config(folder, tmp_path, data=data)]) == 2
    assert "'spk4'" in capsys.readouterr().err


def test_without_validation_data_there_is_none(folder, tmp_path):
    path = write_config(folder, tmp_path)
    options = ["--data.val.dataset.dataset_path=null", "--data.val.trials=null"]
    assert main(["--config", path, *options]) == 0
    assert "val_loss" not in json.loads((tmp_path / "exp" / "report_history.json").read_text())[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.train.dataset.dataset_path=null"], "data.train.dataset names no data"),
        (["--model.xvector.num_classes=9"], "num_classes of the model is 9, but the training data has 4 classes"),
        (["--model.xvector.resnet_enc.in_feats=null"], "missing key 'in_feats'"),
        (["--data.train.dataset.target_sample_freq=16000"], "has 16000 Hz, the model takes 8000 Hz"),
        (["--data.train.dataset.dataset_path=nowhere"], "nowhere"),
        (["--finetune.path=nowhere"], "both model"),
        (["--data.val.dataset.dataset_path=null"], "data.val.trials is given"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, tmp_path, capsys, options, message):
    assert main(["--config", write_config(folder, tmp_path), *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("hyperion-lite train: error:") and message in lines[-1]


def test_a_trained_model_is_trained_further(folder, tmp_path):
    assert main(["--config", write_config(folder, tmp_path)]) == 0
    first = HyperTorchModel.auto_load(tmp_path / "exp")
    path = write_config(
        folder,
        tmp_path,
        model=None,
        finetune={
            "path": str(tmp_path / "exp"),
            "change": {"xvector": {"margin": 0.5, "train_mode": "ft-embed-affine"}},
        },
        trainer={"exp_path": str(tmp_path / "finetune"), "num_epochs": 1, "device": "cpu", "optim": voices.OPTIM},
    )
    assert main(["--config", path]) == 0
    second = HyperTorchModel.auto_load(tmp_path / "finetune")
    assert second.get_config()["xvector"]["margin"] == 0.5 and second.class_names == first.class_names
    changed = [n for n, t in second.state_dict().items() if not torch.equal(t, first.state_dict()[n])]
    # the mode freezes the encoder, statistics of its norms included
    assert changed and all(name.startswith("xvector.classif_net") for name in changed)


def test_new_speakers_keep_what_is_known_of_the_old_ones(folder, tmp_path):
    assert main(["--config", write_config(folder, tmp_path)]) == 0
    first = HyperTorchModel.auto_load(tmp_path / "exp")
    train = {
        "dataset": {"dataset_path": str(folder / "more")},
        "sampler": {"min_chunk_length": 0.5, "max_batch_size": 8},
    }
    path = write_config(
        folder,
        tmp_path,
        model=None,
        data={"train": train},
        finetune={"path": str(tmp_path / "exp")},
        trainer={"exp_path": str(tmp_path / "more"), "max_steps": 1, "device": "cpu", "optim": {"lr": 1e-9}},
    )
    assert main(["--config", path]) == 0
    second = HyperTorchModel.auto_load(tmp_path / "more")
    assert second.class_names == [f"spk{voice}" for voice in range(6)]
    kernel = "xvector.classif_net.output.kernel"
    assert torch.allclose(second.state_dict()[kernel][:, :4], first.state_dict()[kernel], atol=1e-6)


def test_a_model_on_features_gets_a_front_end(folder, tmp_path):
    model = {"class_name": "ResNet1dXVector", **voices.XVECTOR}
    path = write_config(folder, tmp_path, model=None)
    document = yaml.safe_load(Path(path).read_text())
    Path(path).write_text(yaml.safe_dump({**document, "model": model, "feats": voices.FEATS}))
    assert main(["--config", path]) == 0
    assert type(HyperTorchModel.auto_load(tmp_path / "exp")).__name__ == "ResNet1dXVector"


def test_voices_that_speed_perturbation_makes_are_classes_of_their_own(folder):
    from hyperion_lite.data.audio_dataset import AudioDataset

    augment = {"augmenters": [{"type": "speed", "speeds": [0.9, 1.0, 1.1], "new_classes": ["speaker"]}]}
    dataset = AudioDataset(dataset_path=str(folder / "train"), class_names=["speaker"], aug_cfgs=augment)
    ids = class_ids(dataset, "speaker")
    assert len(ids) == dataset.num_classes("speaker") == 12 and len(set(ids)) == 12
    assert ids[:4] == voices.SPEAKERS and ids[4] == "spk0#speed1"


@pytest.mark.parametrize("kind", slow_but(["ddp", "fsdp"], ["ddp"]))
def test_two_ranks_of_torchrun_train_one_model(folder, tmp_path, kind):
    sampler = ["--data.train.sampler.num_hard_prototypes=2", "--data.train.sampler.max_batches_per_epoch=4"]
    path = write_config(folder, tmp_path)
    printed = tmp_path / "printed.yaml"
    train = str(ROOT / "recipes" / "train.py")
    printed.write_text(
        subprocess.run([sys.executable, train, "--config", path, *sampler, "--print_config"], **RUN).stdout
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", train]
    subprocess.run([*launcher, "--config", str(printed), f"--trainer.ddp_type={kind}", "--trainer.num_epochs=2"], **RUN)
    state = json.loads((tmp_path / "exp" / "checkpoint_ep0002_step0000000004" / "trainer_state.json").read_text())
    assert state["world_size"] == 2 and state["sampler"]["next_hard_prototypes"] is not None
    # the same batches in one process, from the same weights
    single = write_config(
        folder, tmp_path, trainer={"exp_path": str(tmp_path / "single"), "num_epochs": 2, "device": "cpu"}
    )
    steps = ["--data.train.sampler.num_hard_prototypes=2", "--data.train.sampler.max_batches_per_epoch=2"]
    assert main(["--config", single, *steps, "--trainer.optim.opt_type=adamw", "--trainer.optim.lr=0.003"]) == 0
    alone = json.loads((tmp_path / "single" / "checkpoint_ep0002_step0000000004" / "trainer_state.json").read_text())
    for name in ("train_loss", "val_loss", "val_acc", "val_eer"):
        assert state["logs"][name] == pytest.approx(alone["logs"][name], rel=2e-2), name


def test_sigterm_leaves_a_complete_checkpoint(folder, tmp_path):
    path = write_config(folder, tmp_path)
    command = [sys.executable, str(ROOT / "recipes" / "train.py"), "--config", path, "--trainer.num_epochs=100000"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "end of epoch" in line:
            break
    process.send_signal(signal.SIGTERM)
    process.stderr.read()
    assert process.wait(timeout=120) == 75
    step = HyperTorchModel.auto_load(tmp_path / "exp")
    assert step.class_names == voices.SPEAKERS
    assert main(["--config", path, "--trainer.max_steps=1"]) == 0


def test_written_configuration_loads_to_the_same_document(folder, tmp_path):
    parser, config = parse_options(["--config", write_config(folder, tmp_path), "--trainer.optim.lr", "1e-5"])
    text = commented_yaml(parser, config)
    (tmp_path / "again.yaml").write_text(text)
    again_parser, again = parse_options(["--config", str(tmp_path / "again.yaml")])
    assert again == config and commented_yaml(again_parser, again) == text
    assert config["trainer"]["optim"]["lr"] == 1e-5
