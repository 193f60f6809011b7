"""A margin loss under mixed precision: an inverse cosine just beyond one, or its infinite slope at one, gave NaN.

Right: the margin is computed in single precision whatever surrounds it, without inverse cosines, with cosines clamped.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hyperion_lite.layers.margin_losses import LOSS_TYPES, make_output_layer
from tests.models.small_models import build, make_item


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cosines_of_one_have_finite_loss_and_gradient(loss_type, dtype) -> None:
    torch.manual_seed(0)
    output = make_output_layer(loss_type, 8, 5, margin=0.3, cos_scale=64.0).train()
    prototypes = output.prototypes().T
    # on a prototype, opposite of it, anywhere, nowhere
    x = torch.stack([prototypes[0] * 3, -prototypes[1], torch.randn(8) * 1e3, torch.zeros(8)]).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        logits = output(x.to(dtype), torch.tensor([0, 1, 2, 3]))
        loss = F.cross_entropy(logits.float(), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert torch.isfinite(logits).all() and torch.isfinite(loss)
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in output.parameters())
    if loss_type != "softmax":
        assert logits.dtype == torch.float32


def test_a_whole_model_under_autocast_stays_finite() -> None:
    model = build("wav2-ecapa").train()
    x = torch.stack([make_item(model, 6000, seed) for seed in range(3)])
    y = torch.tensor([0, 1, 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x, y=y).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    assert all(torch.isfinite(p).all() for p in model.parameters())
