"""Lengths as fractions of the longest item, in float32, gave a mask that is one off for about one in a hundred pairs of lengths.

Right: lengths are integers everywhere; fractions are refused instead of being multiplied back.
"""

from __future__ import annotations

import pytest
import torch

from hyperion_lite.core.padding import Padding
from tests.models.small_models import build, make_item, minimum_length, takes_waveforms


def test_every_length_comes_back_where_fractions_lose_some() -> None:
    longest = 400
    lengths = torch.arange(1, longest + 1)
    lost = ((lengths / longest) * longest).long() != lengths
    assert lost.any(), "float32 rounds some of the products down: the reason for the test"
    padding = Padding.from_lengths(lengths, longest, longest)
    assert padding is not None
    assert torch.equal(padding.mask.sum(1), lengths)
    assert torch.equal(padding.mask.long().argmin(1)[:-1], lengths[:-1])


@pytest.mark.parametrize("name", ["ecapa", "resnet18", "wav2-ecapa"])
def test_fractions_are_refused(name: str) -> None:
    model = build(name)
    item = make_item(model, minimum_length(model) + (2000 if takes_waveforms(model) else 20))
    x = torch.stack([item, item])
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(ValueError, match=r"must hold integers.*relative lengths are not accepted"):
            model(x, x_lengths=torch.tensor([1.0, 0.9], dtype=dtype))
