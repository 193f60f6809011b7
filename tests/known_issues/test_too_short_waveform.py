"""A waveform too short for the encoder gave NaN alone, and in a batch finite numbers that were made of padding.

Right: the model states the shortest input it takes and enforces it, alone and in a batch, by the number of the item; the shortest
one allowed has a finite embedding, the same alone and in a batch, and does no harm to the others.
"""

from __future__ import annotations

import pytest
import torch

from hyperion_lite.core.errors import TooShortError
from tests.contracts.model_tester import relative_error
from tests.models.small_models import build, make_item, pad_items


@pytest.mark.parametrize("name", ["wav2-ecapa", "wav2-basic-strided", "wav2-resnet18"])
def test_the_minimum_is_stated_and_enforced(name: str) -> None:
    model = build(name).double()
    long, shortest = (make_item(model, n, dtype=torch.float64) for n in (9000, model.min_samples))
    with torch.inference_mode():
        batch, lengths = pad_items([long, shortest], float("nan"))
        embeds = model.extract_embed(batch, x_lengths=lengths)
        alone = [model.extract_embed(item[None])[0] for item in (long, shortest)]
        assert torch.isfinite(embeds).all()
        assert all(relative_error(a, b) <= 1e-10 for a, b in zip(embeds, alone, strict=True))

        lengths[1] -= 1
        with pytest.raises(TooShortError, match=f"item 1 .* {model.min_samples - 1} samples") as caught:
            model.extract_embed(batch, x_lengths=lengths)
        assert (caught.value.index, caught.value.length, caught.value.minimum) == (
            1,
            model.min_samples - 1,
            model.min_samples,
        )
        with pytest.raises(TooShortError, match="item 0"):
            model.extract_embed(shortest[None, :-1])
