"""One optimizer step: accumulation, loss scaling, clipping, bad batches, and what follows a real update only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.trainers.gradients import NonFiniteLossError, clip_gradients
from hyperion_lite.trainers.torch_trainer_base import TorchTrainerBase
from tests.trainers.small_training import Batches, SmallClassifier, SmallTrainer, assert_same_state, make_trainer, sgd

NO_STATISTICS = {"use_norm": False, "dropout_rate": 0.0}


class Sizes(Batches):
    """Batches of given sizes, in the order of the items."""

    def __init__(self, sizes: list[int], **options: Any) -> None:
        super().__init__(num_items=sum(sizes), **options)
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in torch.arange(len(self.y)).split(self.sizes):
            yield self.items(index)


def train(path: Path, data: Batches, **options: Any) -> Any:
    options = {"num_epochs": 1, "optim": sgd, "model": NO_STATISTICS, "dtype": torch.float64, **options}
    trainer = make_trainer(path, **options)
    trainer.fit(data)
    return trainer


@pytest.mark.parametrize(
    ("micro", "big", "steps"),
    [
        ([4, 4, 4, 4], [8, 8], 2),
        ([4, 4, 4, 4, 4], [12, 8], 3),  # a remainder of two
        ([5, 3, 1, 7, 2], [8, 8, 2], 2),  # batches of unequal sizes, a remainder of one
    ],
)
def test_accumulation_equals_one_big_batch(tmp_path: Path, micro: list[int], big: list[int], steps: int) -> None:
    a = train(tmp_path / "a", Sizes(micro, dtype=torch.float64), grad_acc_steps=steps)
    b = train(tmp_path / "b", Sizes(big, dtype=torch.float64))
    assert a.global_step == b.global_step == len(big)
    for name, tensor in a.module.state_dict().items():
        torch.testing.assert_close(tensor, b.module.state_dict()[name], rtol=0, atol=1e-10)
    assert a._logs["train_loss"] == pytest.approx(b._logs["train_loss"], abs=1e-10)


def test_wrong_scaling_of_the_remainder_would_be_seen(tmp_path: Path) -> None:
    a = train(tmp_path / "a", Sizes([4, 4, 4], dtype=torch.float64), grad_acc_steps=2)
    b = train(
        tmp_path / "b", Sizes([8, 4], dtype=torch.float64), optim=lambda g: torch.optim.SGD(g, lr=0.025, momentum=0.9)
    )
    assert not torch.allclose(a.module.out.weight, b.module.out.weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize("max_steps", [1, 3, 5, 7])
def test_max_steps_is_exact(tmp_path: Path, max_steps: int) -> None:
    trainer = train(tmp_path, Batches(dtype=torch.float64), num_epochs=10, max_steps=max_steps)
    assert trainer.global_step == max_steps
    assert trainer.find_last_checkpoint_dir() == trainer.checkpoint_dir(*divmod(max_steps, 5)[:1], max_steps)


def test_more_steps_continue_in_the_middle_of_the_epoch(tmp_path: Path) -> None:
    train(tmp_path / "a", Batches(dtype=torch.float64), num_epochs=2, max_steps=3)
    again = make_trainer(tmp_path / "a", optim=sgd, model=NO_STATISTICS, dtype=torch.float64, num_epochs=2, seed=9)
    again.load_last_checkpoint()
    again.fit(Batches(dtype=torch.float64))
    whole = train(tmp_path / "b", Batches(dtype=torch.float64), num_epochs=2)
    assert_same_state(again.module.state_dict(), whole.module.state_dict())


def test_clipping() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))]
    for bound, scale in ((0.0, 1.0), (-1.0, 1.0), (2.5, 0.5), (100.0, 1.0)):
        parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 4.0])
        norm = clip_gradients(parameters, bound)
        assert (norm is None) if bound <= 0 else float(norm) == 5.0
        torch.testing.assert_close(parameters[1].grad, torch.tensor([0.0, 4.0 * scale]), rtol=1e-5, atol=0)
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 4.0])
    assert float(clip_gradients(parameters, 1.0, "inf")) == 4.0
    torch.testing.assert_close(parameters[0].grad, torch.tensor([0.75, 0.0, 0.0]), rtol=1e-5, atol=0)


def test_a_step_that_the_scaler_skips_moves_neither_scheduler_nor_counter(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        use_amp=True,
        amp_dtype="float16",
        num_epochs=1,
        ema_decay=0.9,
        optim={"opt_type": "sgd", "lr": 0.1},
        lrsched={
            "lrsch_type": "exp_lr",
            "decay_rate": 0.5,
            "decay_steps": 1,
            "hold_steps": 0,
            "update_lr_on_opt_step": True,
        },
    )
    # a scale that overflows float32 itself at first, and is halved until it fits
    trainer.precision.scaler.load_state_dict({**trainer.precision.state_dict(), "scale": 2.0**127})
    before = {k: v.clone() for k, v in trainer.module.state_dict().items() if "norm" not in k}
    trainer.max_steps, data = None, Batches(num_items=8)
    trainer.fit(data)
    assert trainer.global_step + trainer.lr_scheduler.step < 2 * len(data)
    assert trainer.lr_scheduler.step == trainer.global_step == trainer._averages["ema_model"].num_averaged
    if trainer.global_step == 0:
        assert_same_state(before, {k: v for k, v in trainer.module.state_dict().items() if "norm" not in k})


def test_scaler_state_survives_a_checkpoint(tmp_path: Path) -> None:
    options = {"use_amp": True, "amp_dtype": "float16", "num_epochs": 1}
    trainer = make_trainer(tmp_path, **options)
    trainer.fit(Batches())
    state = trainer.precision.state_dict()
    assert state["_growth_tracker"] > 0
    again = make_trainer(tmp_path, **options)
    assert again.precision.state_dict() != state
    again.load_last_checkpoint()
    assert again.precision.state_dict() == state


def test_bfloat16_needs_no_scaler(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, use_amp=True, amp_dtype="bfloat16", num_epochs=1)
    assert not trainer.precision.scaler.is_enabled()
    trainer.fit(Batches())
    assert not (trainer.find_last_checkpoint_dir() / "model" / "grad_scaler.pt").exists()


def test_frozen_parts_are_bit_equal_after_an_epoch(tmp_path: Path) -> None:
    optim = {"opt_type": "adamw", "lr": 0.1, "weight_decay": 0.1}
    trainer = make_trainer(tmp_path, train_mode="ft-out", num_epochs=1, optim=optim)
    before = {k: v.clone() for k, v in trainer.module.state_dict().items()}
    trainer.fit(Batches())
    for name, tensor in trainer.module.state_dict().items():
        assert torch.equal(tensor, before[name]) != name.startswith("out."), name


class Poisoned(Batches):
    """One batch of each epoch holds NaN."""

    def __init__(self, bad: set[int], **options: Any) -> None:
        super().__init__(**options)
        self.bad = bad

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index, batch in enumerate(super().__iter__()):
            yield {**batch, "x": batch["x"] * float("nan")} if index in self.bad else batch


def test_a_bad_batch_is_skipped_and_leaves_nothing_behind(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_epochs=1, lrsched={"lrsch_type": "noam_lr", "d_model": 4, "warmup_steps": 3})
    logs = trainer.fit(Poisoned({1, 3}))
    assert logs["bad_steps"] == 2
    assert trainer.global_step == trainer.lr_scheduler.step == 3
    assert all(bool(t.isfinite().all()) for t in trainer.module.state_dict().values())
    assert logs["train_loss"] == logs["train_loss"]
    assert int(trainer.module.norm.num_batches_tracked) == 3


def test_too_many_bad_batches_end_training_and_name_the_items(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_epochs=1, max_bad_steps=1)
    with pytest.raises(NonFiniteLossError, match=r"seg12, seg13, seg14, seg15"):
        trainer.fit(Poisoned({1, 3}))


def test_an_infinite_gradient_of_a_finite_loss_is_skipped(tmp_path: Path) -> None:
    class Rooted(SmallClassifier):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # the square root of an exact zero: finite value, infinite slope
            return super().forward(x) + (self.out.bias * 0.0).sqrt().sum()

    trainer = SmallTrainer(Rooted(), exp_path=str(tmp_path), optim=sgd, num_epochs=1, grad_clip=1.0, device="cpu")
    assert trainer.fit(Batches())["bad_steps"] == 5
    assert trainer.global_step == 0


def test_options_are_checked(tmp_path: Path) -> None:
    wrong_options: list[dict[str, Any]] = [
        {"grad_acc_steps": 0},
        {"ddp_type": "horovod"},
        {"amp_dtype": "int8"},
        {"val_steps": -1},
        {"keep_last": -1},
        {"ema_decay": 1.0},
        {"best_mode": "largest"},
    ]
    for wrong in wrong_options:
        with pytest.raises(ConfigError):
            make_trainer(tmp_path, **wrong)
    with pytest.raises(ConfigError, match="nothing to train"):
        make_trainer(tmp_path, train_mode="frozen")


def test_a_trainer_has_to_define_its_loss(tmp_path: Path) -> None:
    trainer = TorchTrainerBase(SmallClassifier(), exp_path=str(tmp_path), loggers=[], input_key="x", device="cpu")
    with pytest.raises(NotImplementedError, match="compute_loss"):
        trainer.fit(Batches())


def test_no_data_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no batch"):
        make_trainer(tmp_path).fit([])


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    states = []
    for name, checkpointed in (("a", False), ("b", True)):
        trainer = make_trainer(tmp_path / name, num_epochs=1, gradient_checkpointing=checkpointed)
        trainer.fit(Batches())
        states.append(trainer.module.state_dict())
    assert_same_state(*states)
