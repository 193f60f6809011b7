"""Lengths were passed under a name that the layer does not know, vanished in a ``**kwargs``, and the padding counted as signal.

Right: whoever is given lengths that it cannot use raises.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hyperion_lite.layers.pool_factory import GlobalPool1dFactory
from hyperion_lite.layers.spec_augment import SpecAugment
from hyperion_lite.narchs.resnet1d_encoder import ResNet1dEncoder
from tests.models.small_models import ALL_MODELS, build, make_item, minimum_length

OTHER_NAMES = ("lengths", "x_length", "wav_lens", "attention_mask", "mask")


@pytest.mark.parametrize("name", ALL_MODELS)
def test_models_refuse_other_names(name: str) -> None:
    model = build(name)
    x = make_item(model, minimum_length(model) + 20)[None]
    lengths = torch.tensor([x.size(-1) - 10])
    for other in OTHER_NAMES:
        for method in (model, model.extract_embed):
            with pytest.raises(TypeError, match=other):
                method(x, **{other: lengths})


LAYERS: dict[str, Any] = {
    "encoder": lambda: ResNet1dEncoder(in_feats=4, in_conv_channels=4, resb_repeats=[1], resb_channels=[4]),
    "pooling": lambda: GlobalPool1dFactory.create("mean+stddev"),
    "spec augment": lambda: SpecAugment(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_refuse_other_names(name: str) -> None:
    layer = LAYERS[name]()
    for other in OTHER_NAMES:
        with pytest.raises(TypeError, match=other):
            layer(torch.zeros(1, 4, 30), **{other: torch.tensor([20])})
