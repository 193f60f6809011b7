"""Checkpoint directories: complete or absent, compatible or refused, kept or removed."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.trainers import trainer_checkpoints
from hyperion_lite.trainers.checkpoint_files import UnreadableCheckpointError
from hyperion_lite.trainers.compatibility import IncompatibleCheckpointError
from tests.trainers.runs import make_data
from tests.trainers.small_training import Batches, SmallTrainer, assert_same_state, make_trainer

OPTIM = {"opt_type": "adamw", "lr": 0.01}


def trained(path: Path, **options: Any) -> SmallTrainer:
    trainer = make_trainer(path, **{"optim": OPTIM, "num_epochs": 2, **options})
    trainer.fit(Batches(), Batches(seed=1))
    return trainer


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir())


def test_layout_and_loading(tmp_path: Path) -> None:
    trainer = trained(tmp_path, lrsched={"lrsch_type": "cos_lr"}, swa_start=2, swa_update_steps=1)
    last = trainer.find_last_checkpoint_dir()
    assert last == tmp_path / "checkpoint_ep0002_step0000000010" == trainer.checkpoint_dir(2, 10)
    assert last.name == trainer.checkpoint_dir_name(2, 10)
    assert trainer.checkpoint_trainer_state_path(last) == last / "trainer_state.json"
    assert trainer.checkpoint_rng_state_path(last) == last / "rng_state.pth"
    model_dir = trainer.checkpoint_model_dir(last)
    assert {p.name for p in model_dir.iterdir()} == {
        trainer.model_config_file_name,
        trainer.model_weights_file_name,
        trainer.optimizer_state_file_name,
        "lr_scheduler.pt",
        "swa_model.safetensors",
        "swa_scheduler.pt",
    }
    for file in [*last.rglob("*.pt"), *last.rglob("*.pth")]:
        torch.load(file, weights_only=True)
    for path in (tmp_path, last, model_dir):
        assert_same_state(HyperTorchModel.auto_load(path).state_dict(), trainer.module.state_dict())


def test_no_checkpoint_gives_none(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "new")
    assert trainer.load_last_checkpoint() is None
    assert trainer.find_last_checkpoint_dir() is None
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        trainer.load_checkpoint(1, 5)


def test_logs_come_back(tmp_path: Path) -> None:
    logs = trained(tmp_path)._logs
    again = make_trainer(tmp_path, optim=OPTIM, seed=3)
    assert again.load_last_checkpoint() == logs
    assert (again.cur_epoch, again.cur_batch, again.global_step) == (2, 0, 10)
    first = again.load_checkpoint(1, 5)
    assert first != logs
    assert again.global_step == 5


@pytest.mark.parametrize(
    "missing",
    ["trainer_state.json", "rng_state.pth", "model/config.json", "model/model.safetensors", "model/optimizer.pt"],
)
def test_a_checkpoint_without_one_of_its_files_is_not_complete(tmp_path: Path, missing: str) -> None:
    trainer = trained(tmp_path)
    last = trainer.find_last_checkpoint_dir()
    assert trainer.is_complete_checkpoint_dir(last)
    (last / missing).unlink()
    assert not trainer.is_complete_checkpoint_dir(last)
    assert trainer.find_last_checkpoint_dir() == tmp_path / "checkpoint_ep0001_step0000000005"


@pytest.mark.parametrize(
    "damaged",
    ["trainer_state.json", "rng_state.pth", "model/config.json", "model/model.safetensors", "model/optimizer.pt"],
)
def test_the_one_before_an_unreadable_checkpoint_is_used(
    tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path)
    file = tmp_path / "checkpoint_ep0002_step0000000010" / damaged
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    again = make_trainer(tmp_path, optim=OPTIM)
    with caplog.at_level(logging.WARNING):
        assert again.load_last_checkpoint() is not None
    assert again.global_step == 5
    assert "checkpoint_ep0002_step0000000010" in caplog.text
    shutil.copy(file, tmp_path / "checkpoint_ep0001_step0000000005" / damaged)
    with pytest.raises(UnreadableCheckpointError, match="no checkpoint"):
        make_trainer(tmp_path, optim=OPTIM).load_last_checkpoint()


def test_saving_is_all_or_nothing(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(RuntimeError, match="stop"), trainer.checkpoint_save_dir(1, 2) as folder:
        (folder / "half").write_text("x")
        assert folder.parent == tmp_path
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []
    with trainer.checkpoint_save_dir(1, 2) as folder:
        (folder / "whole").write_text("x")
    assert (trainer.checkpoint_dir(1, 2) / "whole").read_text() == "x"


def test_left_over_temporaries_are_removed_and_never_used(tmp_path: Path) -> None:
    trained(tmp_path)
    last = tmp_path / "checkpoint_ep0002_step0000000010"
    left = tmp_path / f"{last.name}.hl-tmp-abc"
    shutil.copytree(last, left)
    shutil.rmtree(last)
    again = make_trainer(tmp_path, optim=OPTIM)
    again.load_last_checkpoint()
    assert again.global_step == 5
    again.fit(Batches())
    assert not left.exists()


def test_a_failing_disk_is_tried_again_and_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, calls = trainer_checkpoints.write_checkpoint, []

    def failing(folder: Path, checkpoint: Any) -> None:
        calls.append(folder)
        write(folder, checkpoint)
        if len(calls) in (1, 3, 4, 5):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer_checkpoints, "write_checkpoint", failing)
    trainer = make_trainer(tmp_path, num_epochs=3)
    trainer.store.retry_seconds = 0.0
    with caplog.at_level(logging.WARNING):
        trainer.fit(Batches())
    # the first epoch's at the second try, the second epoch's not at all
    assert names(tmp_path) == ["checkpoint_ep0001_step0000000005", "checkpoint_ep0003_step0000000015"]
    assert trainer.store.num_failed == 1
    assert "could not be written" in caplog.text


def test_how_the_writers_report_a_full_disk_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(value: Any, path: Path) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    trainer = make_trainer(tmp_path, num_epochs=1)
    trainer.store.retry_seconds = 0.0
    monkeypatch.setattr(torch, "save", full)
    trainer.fit(Batches())
    assert trainer.global_step == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": {"hid_dim": 9}}, "hid_dim: 8 -> 9"),
        ({"optim": {"opt_type": "sgd", "lr": 0.1}}, "optimizer: AdamW -> SGD"),
        ({"lrsched": {"lrsch_type": "cos_lr"}}, "lr_scheduler: None -> CosineLR"),
    ],
)
def test_another_run_is_refused_with_what_differs(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    trained(tmp_path)
    with pytest.raises(IncompatibleCheckpointError, match=told):
        make_trainer(tmp_path, **{"optim": OPTIM, **options}).load_last_checkpoint()


@pytest.mark.parametrize(
    ("classes", "told"),
    [(["a", "c", "b"], "order of the classes: class 1 was 'b' and is 'c'"), (["a", "b", "d"], "new classes: d")],
)
def test_another_class_table_is_refused(tmp_path: Path, classes: list[str], told: str) -> None:
    first, second = make_trainer(tmp_path, num_epochs=1), make_trainer(tmp_path, num_epochs=1)
    first.module.class_names = ["a", "b", "c"]
    first.fit(Batches())
    second.module.class_names = classes
    with pytest.raises(IncompatibleCheckpointError, match=told):
        second.load_last_checkpoint()


def test_another_data_set_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path, num_epochs=1).fit(make_data())
    again = make_trainer(tmp_path, num_epochs=2)
    again.load_last_checkpoint()
    with pytest.raises(ValueError, match="num_segments was 42 and is 41"):
        again.fit(make_data(num_items=41))


def test_kept_checkpoints_are_the_newest_and_the_best(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_epochs=0 + 6, keep_last=2, keep_best=1, best_metric="val_loss")
    losses = iter([3.0, 1.0, 2.0, float("nan"), 4.0, 5.0])
    trainer.validation_epoch = lambda data: {"val_loss": next(losses)}  # type: ignore[method-assign]
    trainer.fit(Batches(), [])
    assert [name[:17] for name in names(tmp_path)] == ["checkpoint_ep0002", "checkpoint_ep0005", "checkpoint_ep0006"]
    assert trainer.find_best_checkpoint_dir().name.startswith("checkpoint_ep0002")


def test_optimizer_state_survives_freezing_and_unfreezing(tmp_path: Path) -> None:
    first = trained(tmp_path)
    moments = {n: first.optimizer.state[p]["exp_avg"].clone() for n, p in first.module.named_parameters()}
    frozen = make_trainer(tmp_path, optim=OPTIM, train_mode="ft-out", num_epochs=3)
    frozen.load_last_checkpoint()
    assert {n for n, p in frozen.module.named_parameters() if p in frozen.optimizer.state} == {"out.weight", "out.bias"}
    assert torch.equal(frozen.optimizer.state[frozen.module.out.weight]["exp_avg"], moments["out.weight"])
    frozen.fit(Batches())
    thawed = make_trainer(tmp_path, optim=OPTIM, num_epochs=4)
    thawed.load_last_checkpoint()
    assert thawed.optimizer.state[thawed.module.out.weight]["step"] == 15
    assert thawed.module.body[0].weight not in thawed.optimizer.state
    thawed.fit(Batches())


def test_asynchronous_saving_writes_the_same(tmp_path: Path) -> None:
    a, b = trained(tmp_path / "a", save_steps=1), trained(tmp_path / "b", save_steps=1, async_save=True)
    assert names(tmp_path / "a") == names(tmp_path / "b")
    for name in names(tmp_path / "a"):
        a.load_checkpoint(*map(int, (name[13:17], name[22:])))
        b.load_checkpoint(*map(int, (name[13:17], name[22:])))
        assert_same_state(a.module.state_dict(), b.module.state_dict())


def test_another_number_of_threads_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path)
    file = tmp_path / "checkpoint_ep0002_step0000000010" / "trainer_state.json"
    state = json.loads(file.read_text())
    assert state["num_threads"] == torch.get_num_threads()
    file.write_text(json.dumps({**state, "num_threads": 77}))
    with caplog.at_level(logging.WARNING):
        make_trainer(tmp_path, optim=OPTIM).load_last_checkpoint()
    assert "77 threads" in caplog.text


def test_a_single_random_state_is_read(tmp_path: Path) -> None:
    trained(tmp_path)
    state = torch.Generator().manual_seed(5).get_state()
    torch.save(state, tmp_path / "checkpoint_ep0002_step0000000010" / "rng_state.pth")
    make_trainer(tmp_path, optim=OPTIM).load_last_checkpoint()
    assert torch.equal(torch.get_rng_state(), state)
