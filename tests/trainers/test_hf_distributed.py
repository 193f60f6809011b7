"""Two ranks train models with a Hugging Face encoder in every train mode: every parameter that learns takes part in every update."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hyperion_lite.optim import OptimizerFactory
from hyperion_lite.trainers.accumulation import MicroBatch
from hyperion_lite.trainers.distribution import Distribution, full_tensor
from hyperion_lite.trainers.precision import Precision
from hyperion_lite.trainers.update_step import UpdateStep
from tests.models.wav2xvectors.hf_learning_models import MODELS, MODES, learns, make_batch, make_model
from tests.two_ranks import in_two_ranks

UPDATES = 2
LEARNING_MODES = tuple(mode for mode in MODES if mode != "frozen")


def updates(name: str, mode: str, rank: int, ddp_type: Any, amp: bool) -> dict[str, Any]:
    """Train two updates; what the other rank can be compared with."""
    model = make_model(name, trained=False)
    model.set_train_mode(mode)
    model.train()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    distribution = Distribution(None, ddp_type, torch.device("cpu"))
    wrapped = distribution.wrap(model)
    optimizer = OptimizerFactory.create(model.trainable_param_groups(), opt_type="adam", lr=0.01)

    def compute_loss(batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        logits = wrapped(batch["x"], batch["lengths"], batch["y"])
        return torch.nn.functional.cross_entropy(logits.float(), batch["y"]), {}

    precision = Precision(torch.device("cpu"), amp, "bfloat16")
    step = UpdateStep(model, wrapped, optimizer, precision, distribution, compute_loss)
    for number in range(UPDATES):
        micro = []
        for index in range(2):
            x, lengths, y = make_batch(10 * number + 2 * index + rank)
            micro.append(MicroBatch({"x": x, "lengths": lengths, "y": y}, 3, 0.5, index == 1))
        assert step.run(micro).updated
    after = {n: full_tensor(p.detach()) for n, p in model.named_parameters()}
    distribution.release(wrapped)
    return {
        "sums": {n: float(p.double().sum()) for n, p in after.items()},
        "moved": sorted(n for n, p in after.items() if not torch.equal(p, before[n])),
    }


def all_updates(rank: int, cases: list[list[Any]]) -> list[dict[str, Any]]:
    return [updates(name, mode, rank, ddp_type, amp) for name, mode, ddp_type, amp in cases]


def check(cases: list[list[Any]]) -> None:
    first, second = in_two_ranks(all_updates, cases, seconds=600)
    assert first == second and len(first) == len(cases)
    for case, result in zip(cases, first, strict=True):
        name, mode = case[:2]
        # the first update moves lora_B alone, because the gradient of lora_A has lora_B as a factor; the second moves both
        assert set(result["moved"]) == {n for n in result["sums"] if learns(n, mode, name)}, case


def test_two_ranks_train_in_every_mode():
    cases = [["wavlm", mode, "ddp", False] for mode in LEARNING_MODES]
    cases += [["wavlm", "hf-lora", "ddp", True]]
    cases += [["wavlm", mode, "fsdp", False] for mode in ("full", "hf-lora")]
    check(cases)


@pytest.mark.slow
def test_two_ranks_train_every_family_in_every_mode():
    check([[name, mode, "ddp", False] for name in MODELS if name != "wavlm" for mode in LEARNING_MODES])
