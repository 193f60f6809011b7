"""SpecAugment placed its time masks over the padded length, so that short items of a batch were masked less, or not at all.

Right: the masks of an item lie within its own length; the padding is left zero.
"""

from __future__ import annotations

from typing import Any

import torch

from hyperion_lite.layers.spec_augment import SpecAugment


def test_every_item_gets_its_masks_within_its_length() -> None:
    one: dict[str, Any] = {
        "time_mask_prob": 1,
        "time_mask_min_width": 4,
        "time_mask_max_width": 4,
        "time_mask_max_num_masks": 1,
    }
    masks = SpecAugment(**one, mask_value=-3.0).train()
    torch.manual_seed(0)
    for _ in range(30):
        y = masks(torch.ones(3, 400, 5), torch.tensor([400, 30, 6]))
        for item, length in zip(y, (400, 30, 6), strict=True):
            assert (item[:length, 0] == -3.0).sum() == 4
            assert not item[length:].any()
