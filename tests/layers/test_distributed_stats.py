"""Batch norm and sub-centre counts of two ranks are those of one process with both batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.margin_losses import SubCenterArcLossOutput
from hyperion_lite.layers.norm import BatchNorm1d
from tests.two_ranks import in_two_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

# items of rank 0 are padded in the first case; rank 1 has another number of items and frames, and no padding
LENGTHS = {"padded": ([9, 3], [6, 6, 6]), "full": ([9, 9], [6, 6, 6])}


def batches(case: str) -> list[tuple[torch.Tensor, list[int]]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for rank, lengths in enumerate(LENGTHS[case]):
        x = torch.randn(len(lengths), 5, max(lengths), generator=generator) * 2 + 30 * (rank + 1)
        made.append((x, lengths))
    return made


def loss_of(y: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Some function that weighs every valid value differently, the same wherever it is computed."""
    total = y.new_zeros(())
    for item, n in zip(y, lengths, strict=True):
        weights = torch.linspace(-1, 1, 5 * n, dtype=y.dtype).sin().view(5, n)
        total = total + (item[:, :n] * weights).sum() + (item[:, :n] ** 3 * weights).sum()
    return total


def step(layer: BatchNorm1d, x: torch.Tensor, lengths: list[int]) -> dict[str, torch.Tensor]:
    x = x.clone().requires_grad_()
    padding = None if len(set(lengths)) == 1 else Padding(torch.tensor(lengths), x.size(-1))
    y = layer(x, padding)
    loss_of(y, lengths).backward()
    valid = torch.cat([item[:, :n] for item, n in zip(x.grad, lengths, strict=True)], 1)
    return {"y": torch.cat([item[:, :n] for item, n in zip(y.detach(), lengths, strict=True)], 1), "grad": valid}


def work(rank: int) -> dict[Any, Any]:
    results: dict[Any, Any] = {}
    for case in LENGTHS:
        for dtype in (torch.float32, torch.float64):
            layer = BatchNorm1d(5).to(dtype)
            x, lengths = batches(case)[rank]
            result = step(layer, x.to(dtype), lengths)
            result.update({f"{n}.grad": p.grad for n, p in layer.named_parameters()}, **layer.state_dict())
            # evaluation must not wait for the other rank
            if rank == 0:
                layer.eval()(x.to(dtype))
            results[case, dtype] = result
    output = SubCenterArcLossOutput(3, 2, num_subcenters=2)
    with torch.no_grad():
        output.kernel.copy_(torch.eye(3)[:, [0, 1, 2, 0]])
    output(torch.eye(3)[[0, 1 + rank]], torch.tensor([0, rank]))
    results["counts"] = output.subcenter_counts
    return results


@pytest.fixture(scope="module")
def ranks():
    return in_two_ranks(work)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    return bool((a - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("case", LENGTHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_two_ranks_are_one_process(ranks, case, dtype, tolerance):
    layer = BatchNorm1d(5).to(dtype)
    (x0, lengths0), (x1, lengths1) = batches(case)
    x = torch.cat([x0, torch.nn.functional.pad(x1, (0, x0.size(-1) - x1.size(-1)))])
    # the reference is computed in double precision: float32 has an error of its own
    one = step(layer.double(), x.to(dtype).double(), lengths0 + lengths1)
    split = [sum(lengths0), sum(lengths1)]
    for rank in range(2):
        result = ranks[rank][case, dtype]
        assert close(result["y"], one["y"].split(split, 1)[rank], 10 * tolerance)
        assert close(result["running_mean"], layer.running_mean, tolerance)
        assert close(result["running_var"], layer.running_var, tolerance)
        assert close(result["grad"], one["grad"].split(split, 1)[rank], 50 * tolerance)
    first, second = ranks[0][case, dtype], ranks[1][case, dtype]
    assert torch.equal(first["running_mean"], second["running_mean"])
    assert torch.equal(first["running_var"], second["running_var"])
    # each rank has its part of the gradient of parameters, for the sum that data parallelism makes
    for name in ("weight.grad", "bias.grad"):
        total = first[name] + second[name]
        assert close(total, layer.get_parameter(name.removesuffix(".grad")).grad, 50 * tolerance)


def test_counts_of_sub_centres_are_those_of_the_whole_batch(ranks):
    # rank 0: class 0 wins with 0 and with 1; rank 1: class 1 wins with 0, class 0 with 0
    assert torch.equal(ranks[0]["counts"], ranks[1]["counts"])
    one = SubCenterArcLossOutput(3, 2, num_subcenters=2)
    with torch.no_grad():
        one.kernel.copy_(torch.eye(3)[:, [0, 1, 2, 0]])
    one(torch.eye(3)[[0, 1, 0, 2]], torch.tensor([0, 0, 0, 1]))
    assert torch.equal(ranks[0]["counts"], one.subcenter_counts)
