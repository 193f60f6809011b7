"""Fine-tuning: the output layer for new speakers, the command, phases of an x-vector, and the ready configurations."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hyperion_lite.cli import finetune, main, train
from hyperion_lite.core.errors import ConfigError, HyperionLiteError
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.trainers.finetuning import is_pretrained, read_ids, trained_model
from hyperion_lite.trainers.mode_schedule import ModeSchedule
from hyperion_lite.trainers.training_options import parse_options
from hyperion_lite.trainers.training_run import make_trainer, make_training_data
from tests.trainers import voices
from tests.trainers.small_training import assert_same_state

CONFIGS = Path(train.__file__).resolve().parent.parent / "configs"
KERNEL = "xvector.classif_net.output.kernel"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voices")
    voices.write_voices(folder / "train")
    voices.write_voices(folder / "val", 3, first=100, voices=3)
    model = voices.make_model()
    model.save(folder / "model")
    model.class_names = None
    model.save(folder / "no_ids.pth")
    return folder


def options(path: Path, **changes: Any) -> dict[str, Any]:
    return {"path": str(path), "model_name": "model", "rebuild_output": False, "change": {}, **changes}


# the output layer


def test_known_speakers_keep_their_prototypes(folder: Path) -> None:
    old = HyperTorchModel.auto_load(folder / "model").state_dict()[KERNEL]
    model, report = trained_model(options(folder / "model"), ["new", "spk3", "spk0"])
    assert (report.kept, report.new, report.dropped) == (("spk3", "spk0"), ("new",), ("spk1", "spk2"))
    assert torch.equal(model.state_dict()[KERNEL][:, 1:], old[:, [3, 0]]) and model.class_names == [
        "new",
        "spk3",
        "spk0",
    ]
    model, report = trained_model(options(folder / "model"), voices.SPEAKERS)
    assert report.kept == tuple(voices.SPEAKERS) and torch.equal(model.state_dict()[KERNEL], old)


@pytest.mark.parametrize("file", ["model", "no_ids.pth"])
@pytest.mark.parametrize("ids", [["a", "b", "c", "d"], ["a", "b"]])
def test_a_head_is_never_random_in_silence(folder: Path, file: str, ids: list[str]) -> None:
    message = "knows none of the" if file == "model" else "has no class ids"
    with pytest.raises(ConfigError, match=message) as caught:
        trained_model(options(folder / file), ids)
    assert "finetune.allow_random_output=true" in str(caught.value) and file in str(caught.value)
    model, report = trained_model(options(folder / file, allow_random_output=True), ids)
    assert report.new == tuple(ids) and not report.kept and model.num_classes == len(ids)


def test_a_table_of_classes_tells_whose_the_prototypes_are(folder: Path, tmp_path: Path) -> None:
    old = HyperTorchModel.auto_load(folder / "no_ids.pth").state_dict()[KERNEL]
    names = ["w", "x", "y", "z"]
    (tmp_path / "list.txt").write_text("w\nx\ny\nz\n")
    (tmp_path / "table.csv").write_text("id,class_idx\ny,2\nw,0\nz,3\nx,1\n")
    for file in ("list.txt", "table.csv"):
        assert read_ids(str(tmp_path / file)) == names
        chosen = options(folder / "no_ids.pth", classes_file=str(tmp_path / file))
        model, report = trained_model(chosen, ["z", "q", "x"])
        assert report.kept == ("z", "x")
        assert torch.equal(model.state_dict()[KERNEL][:, [0, 2]], old[:, [3, 1]])
    with pytest.raises(ConfigError, match="has class ids of its own"):
        trained_model(options(folder / "model", classes_file=str(tmp_path / "list.txt")), ["x"])
    (tmp_path / "short.txt").write_text("w\nx\n")
    with pytest.raises(ConfigError, match="has 2 ids, the model has 4 classes"):
        trained_model(options(folder / "no_ids.pth", classes_file=str(tmp_path / "short.txt")), ["x"])
    (tmp_path / "twice.txt").write_text("w\nw\n")
    with pytest.raises(ConfigError, match="has 'w' twice"):
        read_ids(str(tmp_path / "twice.txt"))
    with pytest.raises(FileNotFoundError, match="no table of classes"):
        read_ids("nowhere.csv")


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        (b"\xef\xbb\xbfid,class_idx\nb,1\na,0\n", ["a", "b"]),
        (b"id\tclass_idx\nb\t1\na\t0\n", ["a", "b"]),
        (b'class_idx,id\n1,"a,b"\n0,c\n', ["c", "a,b"]),
        (b"id\na\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\r\n\r\nid\r\n", ["a", "id"]),
        (b"id,class_idx\na,0\nb,0\n", "class_idx must be 0 ... 1, each once"),
        (b"id,class_idx\na,0\nb,5\n", "class_idx must be 0 ... 1, each once"),
        (b"id,class_idx\na,0\nb,x\n", "class_idx"),
        (b"id,class_idx\na,0\nb,\n", "class_idx"),
        (b"id,class_idx\na,0\na,1\n", "'a'"),
        (b"name,class_idx\na,0\n", "id"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b" \n", "is empty"),
    ],
)
def test_a_table_of_classes_is_read_as_everywhere(tmp_path: Path, content: bytes, ids: list[str] | str) -> None:
    file = tmp_path / "classes.csv"
    file.write_bytes(content)
    if isinstance(ids, list):
        assert read_ids(str(file)) == ids
        return
    with pytest.raises(HyperionLiteError, match=ids) as caught:
        read_ids(str(file))
    assert "classes.csv" in str(caught.value)


# the command


def write_config(folder: Path, path: Path, **trainer: Any) -> str:
    sampler = {"min_chunk_length": 0.5, "max_batch_size": 8, "max_batches_per_epoch": 3, "num_chunks_per_seg_epoch": 4}
    config = {
        "data": {
            "train": {"dataset": {"dataset_path": str(folder / "train")}, "sampler": sampler},
            "val": {"dataset": {"dataset_path": str(folder / "val")}, "trials": "all"},
        },
        "finetune": {"path": str(folder / "model")},
        "trainer": {"exp_path": str(path / "exp"), "num_epochs": 1, "device": "cpu", "optim": voices.OPTIM, **trainer},
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return str(path / "config.yaml")


def test_the_command_writes_what_became_of_each_speaker(folder: Path, tmp_path: Path) -> None:
    model = voices.make_model()
    model.rebuild_output_layer(class_names=["spk1", "gone"])
    model.save(tmp_path / "start")
    config = write_config(folder, tmp_path)
    assert main.main(["finetune", "--config", config, f"--finetune.path={tmp_path / 'start'}"]) == 0
    with open(tmp_path / "exp" / "output_layer.csv", newline="") as file:
        rows = {row["id"]: row["prototype"] for row in csv.DictReader(file)}
    assert rows == {"spk1": "kept", "spk0": "new", "spk2": "new", "spk3": "new", "gone": "gone"}
    assert "1 speakers keep their prototypes, 3 begin at random, 1 of the model are gone" in (
        tmp_path / "exp" / "report.md"
    ).read_text(encoding="utf-8")


def test_the_command_refuses_random_weights_and_random_heads(folder: Path, tmp_path: Path, capsys: Any) -> None:
    config = write_config(folder, tmp_path)
    assert finetune.main(["--config", config, f"--finetune.path={folder / 'no_ids.pth'}"]) == 2
    assert "hyperion-lite finetune: error:" in (text := capsys.readouterr().err) and "has no class ids" in text
    assert finetune.main(["--model.class_name=Wav2ResNet1dXVector"]) == 2
    assert "nothing to fine-tune" in capsys.readouterr().err
    for arguments in ([], ["--seed", "1"], ["--finetune.path", "null"], ["--print_config"]):
        assert finetune.main(arguments) == 2
        assert "nothing to fine-tune: give finetune.path" in capsys.readouterr().err
    assert finetune.main(["--config", config, "--model.class_name", "Wav2ResNet1dXVector"]) == 2
    assert "leave one of them out" in capsys.readouterr().err
    assert is_pretrained({"model": {"hf_feats": {"pretrained_model_path": "x"}}})
    assert not is_pretrained({"model": {"hf_feats": {"pretrained_model_path": None}}})


@pytest.mark.parametrize("start", [[], ["--finetune.path", "model"]])
def test_the_help_shows_the_options_of_fine_tuning(folder: Path, capsys: Any, start: list[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        finetune.main([*(str(folder / token) if token == "model" else token for token in start), "--help"])
    text = capsys.readouterr().out
    for option in (
        "--finetune.path",
        "--finetune.classes_file",
        "--finetune.change.xvector.margin",
        "--trainer.phases",
    ):
        assert option in text
    assert "--model." not in text.split("options:")[1]


# phases of an x-vector

PHASES = [
    {"train_mode": "ft-embed-affine"},
    {"start_epoch": 1, "last_layers": 1, "change": {"xvector": {"margin": 0.2, "margin_warmup_steps": 4}}},
    {
        "start_epoch": 2,
        "train_mode": "full",
        "optim": {"layer_decay": 0.5},
        "change": {"xvector": {"margin": 0.5}},
        "sampler": {"min_chunk_length": 0.6, "max_batch_size": 4, "num_hard_prototypes": 2},
    },
]


def phased(folder: Path, exp: Path, **trainer: Any) -> tuple[Any, Any]:
    config = parse_options(["--config", write_config(folder, exp, phases=PHASES, **{"num_epochs": 3, **trainer})])[1]
    changes = [ModeSchedule(PHASES)[index].sampler for index in range(len(PHASES))]
    data = make_training_data(config["data"], "speaker", exp, changes)
    torch.manual_seed(3)
    model, _ = trained_model(config["finetune"], data.class_ids)
    return make_trainer(config, model, data), data


def test_margins_layers_and_chunks_change_with_the_phases(folder: Path, tmp_path: Path) -> None:
    trainer, data = phased(folder, tmp_path)
    seen: list[tuple[Any, ...]] = []
    compute = trainer.compute_loss

    def record(batch: Any) -> Any:
        if trainer.module.training:
            output = trainer.module.xvector.classif_net.output
            encoder = {p.requires_grad for p in trainer.module.xvector.encoder_net.parameters()}
            seen.append((trainer.phase, output.cur_margin, tuple(batch["audio"].shape), encoder))
        return compute(batch)

    trainer._update_step.compute_loss = trainer.compute_loss = record
    trainer.fit(data.train, data.val)
    phases = [row[0] for row in seen]
    assert phases == sorted(phases) and set(phases) == {0, 1, 2}
    # the warm-up counts from where the phase begins, and the margin is that of the phase
    assert [row[1] for row in seen if row[0] == 1] == pytest.approx([0.0, 0.05, 0.1])
    assert [row[1] for row in seen if row[0] == 2][:2] == pytest.approx([0.0, 0.125])
    assert {row[2] for row in seen if row[0] < 2} == {(8, 4000)}
    assert {row[2] for row in seen if row[0] == 2} == {(4, 4800)}
    assert [seen[0][3], seen[3][3], seen[-1][3]] == [{False}, {True, False}, {True}]
    config = HyperTorchModel.auto_load(tmp_path / "exp").get_config()
    assert config["xvector"]["margin"] == 0.5 and config["xvector"]["margin_warmup_steps"] == 4
    sampler = data.train.for_phase(2).sampler
    assert sampler.hard_prototypes is not None


@pytest.mark.parametrize("cut", [3, 4, 6, 7])
def test_a_resumed_run_is_the_same_in_and_across_phases(folder: Path, tmp_path: Path, cut: int) -> None:
    trainer, data = phased(folder, tmp_path / "whole")
    trainer.fit(data.train, data.val)
    first, data = phased(folder, tmp_path / "parts", max_steps=cut)
    first.fit(data.train, data.val)
    resumed, data = phased(folder, tmp_path / "parts")
    resumed.load_last_checkpoint()
    resumed.fit(data.train, data.val)
    assert resumed.global_step == trainer.global_step
    assert_same_state(trainer.module.state_dict(), resumed.module.state_dict())


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"sampler": {"min_chunk_len": 1.0}}, r"phases\[1\]\.sampler: .*min_chunk_len"),
        ({"change": {"xvector": {"margn": 0.5}}}, r"phases\[1\]\.change: .*did you mean 'margin'"),
        ({"change": {"margin": 0.5}}, r"phases\[1\]\.change"),
        ({"change": {"xvector": {"dropout_rate": 3.0}}}, r"phases\[1\]\.change: .*dropout_rate: must be in \[0, 1\)"),
        (
            {"change": {"xvector": {"loss_type": "softmax"}}},
            r"phases\[1\]\.change: loss_type cannot change .*finetune\.change",
        ),
        ({"change": {"xvector": {"num_subcenters": 3}}}, r"phases\[1\]\.change: num_subcenters cannot change"),
        ({"train_mode": "frozen"}, r"phases\[1\]: nothing learns in it"),
        ({"last_layers": 9}, r"last_layers is 9, the encoder of Wav2ResNet1dXVector has 1 layers"),
    ],
)
def test_wrong_phases_are_named(folder: Path, tmp_path: Path, capsys: Any, phase: dict[str, Any], message: str) -> None:
    config = write_config(folder, tmp_path, phases=[{}, {"start_epoch": 1, **phase}])
    assert finetune.main(["--config", config]) == 2
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(capsys.readouterr().err)


def test_the_loss_may_be_chosen_in_the_first_phase(folder: Path, tmp_path: Path) -> None:
    first = {"change": {"xvector": {"loss_type": "subcenter-arc-softmax", "num_subcenters": 3}}}
    phases = [first, {"start_epoch": 1, "change": {"xvector": {"loss_type": "subcenter-arc-softmax", "margin": 0.1}}}]
    config = write_config(folder, tmp_path, phases=phases, num_epochs=2)
    assert finetune.main(["--config", config]) == 0
    assert finetune.main(["--config", config, "--trainer.num_epochs=3"]) == 0
    settings = HyperTorchModel.auto_load(tmp_path / "exp").get_config()["xvector"]
    assert (settings["loss_type"], settings["num_subcenters"], settings["margin"]) == (
        "subcenter-arc-softmax",
        3,
        0.1,
    )


def test_an_experiment_that_cannot_be_written_is_named(folder: Path, tmp_path: Path, capsys: Any) -> None:
    config = write_config(folder, tmp_path)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "exp"):
        assert finetune.main(["--config", config, f"--trainer.exp_path={path}"]) == 2
        text = capsys.readouterr().err
        assert f"trainer.exp_path {path}" in text and "give another one" in text


# ready configurations

NATIVE = ("finetune_new_speakers", "finetune_large_margin")


def shortened(name: str) -> dict[str, Any]:
    """Phases of a configuration, one epoch each."""
    phases = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["trainer"].get("phases")
    if phases is None:
        return {"num_epochs": 1}
    for index, phase in enumerate(phases[1:], start=1):
        phase["start_epoch"] = index
        if "sampler" in phase:
            phase["sampler"] = {"min_chunk_length": 0.6, "max_batch_size": 4}
        if "last_layers" in phase:
            phase["last_layers"] = 1
    return {"phases": phases, "num_epochs": len(phases)}


def smoke_options(folder: Path, tmp_path: Path, name: str, rate: int) -> list[str]:
    settings = {
        "data.train.dataset.dataset_path": folder / "train",
        "data.train.dataset.target_sample_freq": rate,
        "data.val.dataset.dataset_path": folder / "val",
        "data.val.dataset.target_sample_freq": rate,
        "data.val.trials": "all",
        "data.val.dataset.class_names": "null",
        "data.train.sampler.min_chunk_length": 0.5,
        "data.train.sampler.max_batch_size": 8,
        "data.train.sampler.max_batches_per_epoch": 1,
        "data.train.sampler.num_chunks_per_seg_epoch": 2,
        "data.train.data_loader.num_workers": 0,
        "trainer.exp_path": tmp_path / "exp",
        "trainer.use_amp": "false",
        "trainer.device": "cpu",
    }
    settings |= {f"trainer.{key}": json.dumps(value) for key, value in shortened(name).items()}
    return ["--config", f"builtin:{name}", *(f"--{key}={value}" for key, value in settings.items())]


@pytest.mark.parametrize("name", NATIVE)
def test_native_configurations_train(folder: Path, tmp_path: Path, capsys: Any, name: str) -> None:
    start = f"--finetune.path={folder / 'model'}"
    assert finetune.main(["--config", f"builtin:{name}", start, "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    written = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    assert printed["trainer"]["phases"] == written["trainer"].get("phases")
    hard = ["--data.train.sampler.num_hard_prototypes=2"] if name == "finetune_large_margin" else []
    assert finetune.main([*smoke_options(folder, tmp_path, name, voices.SAMPLE_FREQ), start, *hard]) == 0
    model = HyperTorchModel.auto_load(tmp_path / "exp")
    assert model.get_config()["xvector"]["margin"] == written["finetune"]["change"]["xvector"]["margin"]
