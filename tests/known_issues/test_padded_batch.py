"""Embedding a short utterance in a padded batch gave something else than embedding it alone.

Every layer that looks beyond one frame had its share: convolutions, group norms, reflected edges of the framing, attention. Right:
the same embedding for any batch-mates, in any order, and whatever number fills the padding.
"""

from __future__ import annotations

import math

import pytest
import torch

from tests.contracts.model_tester import relative_error
from tests.models.small_models import build, make_item, minimum_length, pad_items

TOLERANCE = 1e-10


@pytest.mark.parametrize("name", ["sum-of-layers", "tse-instance-norm", "wav2-ecapa", "wav2-fwse-res2"])
def test_the_embedding_depends_on_the_utterance_alone(name: str) -> None:
    model = build(name).double()
    least = minimum_length(model)
    short = make_item(model, least + 25, 0, torch.float64)
    mates = [make_item(model, least + 25 + more, more, torch.float64) for more in (1, 40, 900)]
    with torch.inference_mode():
        alone = model.extract_embed(short[None])[0]
        for place, fill in ((0, 0.0), (1, -7.5), (3, math.nan)):
            items = list(mates)
            items.insert(place, short)
            batch, lengths = pad_items(items, fill)
            embeds = model.extract_embed(batch, x_lengths=lengths)
            assert relative_error(embeds[place], alone) <= TOLERANCE
        batch, lengths = pad_items([mates[-1], short], 1e6)
        assert relative_error(model.extract_embed(batch, x_lengths=lengths)[1], alone) <= TOLERANCE
