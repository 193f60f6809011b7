"""A run in phases: what learns when, what survives, and that an interrupted run ends as one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.trainers.mode_schedule import ModeSchedule
from tests.models.small_models import build
from tests.trainers.runs import complete_run, last_checkpoint
from tests.trainers.small_training import Batches, assert_same_state, make_trainer, sgd
from tests.trainers.test_distributed_training import assert_close, weights
from tests.two_ranks import in_two_ranks

COSINE = {"lrsch_type": "cos_lr", "t": 10, "update_lr_on_opt_step": True}
PHASES: list[dict[str, Any]] = [
    {"name": "head", "train_mode": "ft-out", "optim": {"lr": 0.05}},
    # within the first epoch of five steps
    {"name": "all", "start_step": 3, "train_mode": "full", "optim": {"lr": 0.02}},
    {"name": "slow", "start_epoch": 2, "optim": {"lr": 0.005}, "lrsched": "restart"},
]
OPTIONS: dict[str, Any] = {
    "optim": {"opt_type": "adamw", "lr": 0.01},
    "lrsched": COSINE,
    "num_epochs": 3,
    "phases": PHASES,
    "ema_decay": 0.9,
}


def trainer_for(path: Path, **options: Any) -> Any:
    return make_trainer(path, **{**OPTIONS, **options})


def recorded(trainer: Any) -> list[dict[str, Any]]:
    """What holds in each update, filled while ``trainer`` trains."""
    rows: list[dict[str, Any]] = []
    step = trainer.on_step_begin

    def record() -> None:
        step()
        learning = {n for n, p in trainer.module.named_parameters() if p.requires_grad}
        in_optimizer = {id(p) for g in trainer.optimizer.param_groups for p in g["params"]}
        assert in_optimizer == {id(p) for p in trainer.module.parameters() if p.requires_grad}
        rates = {g["lr"] for g in trainer.optimizer.param_groups}
        rows.append(
            {"phase": trainer.phase, "learning": learning, "rates": rates, "norm": trainer.module.norm.training}
        )

    trainer.on_step_begin = record
    return rows


def moments(trainer: Any) -> dict[str, torch.Tensor]:
    state = trainer.optimizer.state
    return {n: state[p]["exp_avg"].clone() for n, p in trainer.module.named_parameters() if p in state}


def test_each_phase_trains_what_it_says(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    rows = recorded(trainer)
    trainer.fit(Batches())
    assert [row["phase"] for row in rows] == [0] * 3 + [1] * 7 + [2] * 5
    everything = {n for n, _ in trainer.module.named_parameters()}
    head = {"out.weight", "out.bias"}
    assert [row["learning"] for row in rows] == [head] * 3 + [everything] * 12
    # the frozen norm is in evaluation mode
    assert [row["norm"] for row in rows] == [False] * 3 + [True] * 12
    # the cosine goes on at its position in the second phase and begins anew in the third
    cosine = [0.5 * (1 + torch.cos(torch.tensor(torch.pi * n / 10))).item() for n in range(11)]
    expected = (
        [0.05 * cosine[n] for n in range(3)]
        + [0.02 * cosine[n] for n in range(3, 10)]
        + [0.005 * cosine[n] for n in range(5)]
    )
    assert [rate for row in rows for rate in row["rates"]] == pytest.approx(expected, rel=1e-5)
    assert trainer._logs["phase"] == 3


def test_what_goes_on_learning_keeps_its_optimizer_state(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, num_epochs=1, max_steps=3)
    trainer.fit(Batches())
    before = moments(trainer)
    assert before.keys() == {"out.weight", "out.bias"}
    trainer.max_steps, trainer.num_epochs = None, 3
    assert trainer._advance_phase() and trainer.phase == 1
    after = moments(trainer)
    assert_same_state(before, after)
    steps = {n: trainer.optimizer.state[p]["step"].item() for n, p in trainer.module.named_parameters() if n in after}
    assert set(steps.values()) == {3.0}
    assert not trainer._advance_phase()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = trainer_for(tmp_path_factory.mktemp("whole"))
    trainer.fit(Batches())
    return trainer


@pytest.mark.parametrize("cut", [2, 3, 4, 5, 9, 10, 12])
def test_a_run_cut_anywhere_ends_as_the_whole_one(whole: Any, tmp_path: Path, cut: int) -> None:
    trainer_for(tmp_path, max_steps=cut).fit(Batches())
    resumed = trainer_for(tmp_path, seed=99)
    resumed.load_last_checkpoint()
    assert resumed.global_step == cut
    rows = recorded(resumed)
    resumed.fit(Batches())
    assert len(rows) == 15 - cut
    assert_same_state(whole.module.state_dict(), resumed.module.state_dict())
    assert_same_state(moments(whole), moments(resumed))
    assert whole.optimizer.param_groups[0]["lr"] == resumed.optimizer.param_groups[0]["lr"]
    assert_same_state(whole._averages["ema_model"].state_dict(), resumed._averages["ema_model"].state_dict())


def test_checkpoints_can_be_loaded_in_any_order(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, save_steps=2)
    trainer.fit(Batches())
    final = {n: t.clone() for n, t in trainer.module.state_dict().items()}
    trainer.load_checkpoint(0, 2)
    assert trainer.phase == 0 and trainer.module.train_mode == "ft-out"
    assert moments(trainer).keys() == {"out.weight", "out.bias"}
    trainer.fit(Batches())
    assert_same_state(final, trainer.module.state_dict())


def test_the_schedule_may_change_on_the_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer_for(tmp_path, max_steps=7).fit(Batches())
    shorter = trainer_for(tmp_path, phases=PHASES[:1])
    with pytest.raises(ConfigError, match=r"in phase 2, trainer\.phases has 1"):
        shorter.load_last_checkpoint()
    later = trainer_for(tmp_path, phases=[PHASES[0], {**PHASES[1], "start_step": 9}])
    later.load_last_checkpoint()
    assert later.phase == 1


def spec_of(kind: str, phases: list[dict[str, Any]], **trainer: Any) -> dict[str, Any]:
    options = {**OPTIONS, "phases": phases, "grad_acc_steps": 2, "grad_clip": 0.5, **trainer}
    if kind != "single":
        options["ddp_type"] = kind
    return {
        "world_size": 1 if kind == "single" else 2,
        "dtype": "float64",
        "model": {"dropout_rate": 0.0},
        "data": {"num_items": 52, "batch_size": 6},
        "trainer": options,
    }


SAME_PARTS = [{}, {"start_epoch": 1, "optim": {"lr": 0.003}}, {"start_step": 8, "lrsched": {"lrsch_type": "exp_lr"}}]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("single")
    return {
        name: complete_run(root / name, spec_of("single", phases))
        for name, phases in (("modes", PHASES), ("same", SAME_PARTS))
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ddp", "modes"),
        ("fsdp", "same"),
        pytest.param("oss_ddp", "modes", marks=pytest.mark.slow),
        pytest.param("ddp", "same", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_equal_one_process_in_every_phase(
    single: dict[str, Path], tmp_path: Path, kind: str, name: str
) -> None:
    spec = spec_of(kind, PHASES if name == "modes" else SAME_PARTS)
    # interrupted in the second phase
    complete_run(tmp_path, {**spec, "trainer": {**spec["trainer"], "max_steps": 9}})
    halfway = json.loads((last_checkpoint(tmp_path) / "trainer_state.json").read_text())
    assert halfway["progress"]["phase"] == (1 if name == "modes" else 2) and halfway["step"] == 9
    checkpoint = complete_run(tmp_path, spec)
    assert checkpoint.name == single[name].name
    assert_close(weights(checkpoint), weights(single[name]))
    assert_close(weights(checkpoint, "ema_model"), weights(single[name], "ema_model"))


def refused_with_fsdp(rank: int, path: Path) -> str:
    try:
        trainer_for(path / "exp", ddp_type="fsdp")
    except ConfigError as error:
        return str(error)
    return ""


def test_fsdp_refuses_to_change_what_learns(tmp_path: Path) -> None:
    for text in in_two_ranks(refused_with_fsdp, tmp_path):
        assert "with fsdp the parts that learn cannot change" in text


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{"start_epoch": 1}], r"phases\[0\] begins at once"),
        ([{}, {}], r"phases\[1\] needs either start_epoch or start_step"),
        ([{}, {"start_epoch": 1, "start_step": 2}], "needs either"),
        ([{}, {"start_epoch": 0}], "of at least 1"),
        ([{}, {"start_epoch": 2}, {"start_epoch": 1}], "not in order: their start_epoch are 2, 1"),
        ([{}, {"start_epoch": 2}, {"start_epoch": 2}], "not in order"),
        ([{"train_mod": "full"}], r"phases\[0\].*train_mod.*did you mean 'train_mode'"),
        ([{}, {"start_epoch": 1, "train_mode": "ft-outt"}], r"phases\[1\].train_mode.*did you mean 'ft-out'"),
        ([{}, {"start_epoch": 1, "last_layers": 1}], r"last_layers is 1, the encoder of SmallClassifier has 0 layers"),
        ([{}, {"start_epoch": 1, "train_mode": "full", "last_layers": 1}], "exclude each other"),
        ([{}, {"start_epoch": 1, "train_mode": "frozen"}], r"phases\[1\]: nothing learns in it .*frozen"),
        ([{}, {"start_epoch": 1, "optim": {"opt_type": "sgd"}}], "opt_type cannot change"),
        ([{}, {"start_epoch": 1, "optim": {"lrr": 1.0}}], r"phases\[1\].*lrr"),
        ([{}, {"start_epoch": 1, "lrsched": {"lrsch_type": "cos"}}], r"phases\[1\].*cos"),
        ([{}, {"start_epoch": 1, "lrsched": "again"}], "lrsched"),
        ([{}, {"start_epoch": 1, "change": {"margin": 0.3}}], "SmallClassifier has nothing that can be changed"),
        ([{}, {"start_epoch": 1, "change": {"xvector": {"train_mode": "full"}}}], "train_mode is a key of the phase"),
        ([{}, {"start_step": 1, "sampler": {"min_chunk_length": 2}}], "sampler needs start_epoch"),
    ],
)
def test_what_is_wrong_is_found_before_training(tmp_path: Path, phases: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_for(tmp_path, phases=phases)


def test_changes_stand_below_the_part_that_they_change() -> None:
    schedule = ModeSchedule([{}, {"start_epoch": 1, "change": {"margin": 0.3}}])
    with pytest.raises(ConfigError, match=r"phases\[1\].change: .*no part 'margin'.*\{xvector: \{margin: ...\}\}"):
        schedule.fit_to(build("wav2-ecapa"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"swa_start": 3}, "use ema_decay"),
        (
            {"optim": sgd, "lrsched": None, "phases": PHASES},
            r"phases\[0\].optim needs an optimizer that is given as a configuration",
        ),
    ],
)
def test_what_does_not_go_with_phases(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_for(tmp_path, **options)


def test_a_function_can_make_the_optimizers_of_all_phases(tmp_path: Path) -> None:
    phases = [{"train_mode": "ft-out"}, {"start_step": 2, "train_mode": "full"}]
    trainer = trainer_for(tmp_path, optim=sgd, lrsched=None, phases=phases, num_epochs=1)
    rows = recorded(trainer)
    trainer.fit(Batches())
    assert [len(row["learning"]) for row in rows] == [2, 2, 8, 8, 8]


def test_an_optimizer_that_is_made_cannot_be_made_anew(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path / "a", optim=sgd, lrsched=None, phases=None)
    with pytest.raises(ConfigError, match="phases make the optimizer anew"):
        trainer_for(tmp_path / "b", optim=trainer.optimizer, lrsched=None, phases=[{}, {"start_epoch": 1}])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=5), st.integers(2, 4))
def test_phases_follow_one_another(starts: list[tuple[bool, int]], steps_an_epoch: int) -> None:
    epochs = sorted({n for is_epoch, n in starts if is_epoch})
    steps = sorted({n for is_epoch, n in starts if not is_epoch})
    order = [is_epoch for is_epoch, _ in starts]
    documents: list[dict[str, Any]] = [{}]
    for is_epoch in order:
        if is_epoch and epochs:
            documents.append({"start_epoch": epochs.pop(0)})
        elif not is_epoch and steps:
            documents.append({"start_step": steps.pop(0)})
    schedule = ModeSchedule(documents)
    index, seen = 0, [0]
    for step in range(40):
        epoch = step // steps_an_epoch
        following = schedule.next_after(index, epoch, step)
        assert following >= index
        for document in documents[1 : following + 1]:
            assert epoch >= document.get("start_epoch", 0) and step >= document.get("start_step", 0)
        # asking in one go is asking step by step
        assert following == schedule.next_after(0, epoch, step)
        index = following
        seen.append(index)
    assert seen[-1] == len(documents) - 1
