"""The statistics of a frozen encoder went on moving, because ``.train()`` had switched its batch norms back on.

Right: the buffers of what a train mode freezes are the same bits after any number of steps, whoever calls ``.train()``.
"""

from __future__ import annotations

import pytest
import torch

from hyperion_lite.layers.batch_norm import BatchNorm1d, BatchNorm2d
from tests.models.small_models import build, make_item
from tests.trainers.small_training import Batches, make_trainer


@pytest.mark.parametrize("name", ["wav2-ecapa", "wav2-resnet18"])
@pytest.mark.parametrize("mode", ["ft-embed-affine", "frozen"])
def test_buffers_stay_while_the_rest_learns(name: str, mode: str) -> None:
    model = build(name)
    model.set_train_mode(mode)
    frozen = dict(model.xvector.encoder_net.named_buffers())
    before = {key: buffer.clone() for key, buffer in frozen.items()}
    assert any(isinstance(module, (BatchNorm1d, BatchNorm2d)) for module in model.xvector.encoder_net.modules())
    x = torch.stack([make_item(model, 6000, seed) for seed in range(4)]) * 30
    for wake in (model.train, model.xvector.train, model.xvector.encoder_net.train, lambda: model.eval().train()):
        wake()
        model(x, y=torch.arange(4))
    assert all(torch.equal(before[key], buffer) for key, buffer in frozen.items())
    model.set_train_mode("full")
    model.train()
    model(x, y=torch.arange(4))
    assert not all(torch.equal(before[key], buffer) for key, buffer in frozen.items())


def test_buffers_stay_while_a_trainer_trains_and_validates(tmp_path) -> None:
    trainer = make_trainer(tmp_path, train_mode="ft-out", val_steps=2)
    before = {key: buffer.clone() for key, buffer in trainer.module.norm.state_dict().items()}
    trainer.fit(Batches(), Batches(seed=1))
    assert all(torch.equal(before[key], buffer) for key, buffer in trainer.module.norm.state_dict().items())
