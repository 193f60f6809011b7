"""Random models of every kind, loaded from a file, give what the reference computes from the same tensors."""

from __future__ import annotations

import pytest

from hyperion_lite import HyperTorchModel
from tests.reference.comparing import agree, save, tensors_for
from tests.reference.random_models import draw_model, rename, respell

NUM_MODELS = {"ResNet1dXVector": 80, "Wav2ResNet1dXVector": 60, "ResNetXVector": 10, "Wav2ResNetXVector": 8}
CASES = [(kind, seed) for kind, count in NUM_MODELS.items() for seed in range(count)]


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_embeddings_and_logits(kind, seed, tmp_path):
    config, x = draw_model(seed, kind)
    rules = "legacy" if seed % 2 else "modern"
    tensors = tensors_for(config, x, seed, rules)
    stored, state = config, tensors.table
    if seed % 4 >= 2:
        stored, state = respell(config, seed), rename(tensors.table, seed)
    model = HyperTorchModel.auto_load(save(tmp_path / "model.pth", stored, state), frontend_rules=rules)
    agree(model, config, tensors, x, rules)
