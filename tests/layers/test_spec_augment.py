"""SpecAugment: identity in eval, masks and warps inside each item, distributions, determinism."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.layers.spec_augment import SpecAugment, draw_masks, warp_time


def masked_frames(x: torch.Tensor, value: float = -77.0) -> torch.Tensor:
    return (x == value).all(dim=2)


def test_eval_is_the_identity_and_train_returns_self():
    augment = SpecAugment(time_warp_prob=1, time_mask_prob=1, freq_mask_prob=1)
    x = torch.randn(2, 50, 10)
    x[1, 30:] = math.nan
    assert augment.eval()(x, torch.tensor([50, 30])) is x
    assert augment.train() is augment


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=5),
    widths=st.tuples(st.integers(0, 20), st.integers(0, 40)),
    numbers=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    percentage=st.booleans(),
    fill=st.sampled_from([0.0, 1e3, math.nan, math.inf]),
    seed=st.integers(0, 1000),
)
def test_time_masks_lie_within_each_item(lengths, widths, numbers, percentage, fill, seed):
    torch.manual_seed(seed)
    low, high = sorted(widths)
    augment = SpecAugment(
        time_mask_prob=1,
        time_mask_min_width=low,
        time_mask_max_width=high,
        time_mask_min_num_masks=min(numbers),
        time_mask_max_num_masks=max(numbers),
        time_use_num_masks_percentage=percentage,
        mask_value=-77.0,
    ).train()
    x = torch.randn(len(lengths), max(lengths) + 3, 4)
    for row, length in zip(x, lengths, strict=True):
        row[length:] = fill
    out = augment(x, torch.tensor(lengths))
    assert out.isfinite().all()
    for before, after, length in zip(x, out, lengths, strict=True):
        masked = masked_frames(after[None])[0]
        assert not masked[length:].any() and not after[length:].any()
        assert torch.equal(after[:length][~masked[:length]], before[:length][~masked[:length]])
        most = max(numbers) if not percentage else round(max(numbers) * length / 100)
        least = min(numbers) if not percentage else round(min(numbers) * length / 100)
        assert int(masked.sum()) <= min(length, most * high)
        assert int(masked.sum()) >= (min(low, length) if least else 0)


def test_widths_and_starts_cover_their_ranges():
    torch.manual_seed(0)
    sizes = torch.full((4000,), 12)
    masks = draw_masks(sizes, 15, (2, 4), torch.ones(4000, dtype=torch.int64))
    widths = masks.sum(1)
    counts = torch.bincount(widths, minlength=5)
    assert counts[:2].sum() == 0 and counts[2:].min() > 1100 and len(counts) == 5
    starts = masks.float().argmax(1)
    for width in (2, 3, 4):
        assert sorted(set(starts[widths == width].tolist())) == list(range(12 - width + 1))
    assert not draw_masks(sizes, 15, (2, 4), torch.zeros(4000, dtype=torch.int64)).any()


def test_number_of_masks_is_common_to_the_batch_and_covers_its_range():
    torch.manual_seed(0)
    augment = SpecAugment(
        time_mask_prob=1,
        time_mask_min_width=1,
        time_mask_max_width=1,
        time_mask_min_num_masks=1,
        time_mask_max_num_masks=3,
        mask_value=-77.0,
    ).train()
    seen = set()
    for _ in range(60):
        # so many frames that two masks hardly ever meet
        seen.add(int(masked_frames(augment(torch.zeros(4, 100_000, 1))).sum(1).max()))
    assert seen == {1, 2, 3}


def test_percentage_scales_with_the_item():
    torch.manual_seed(0)
    augment = SpecAugment(
        time_mask_prob=1,
        time_mask_min_width=1,
        time_mask_max_width=1,
        time_mask_min_num_masks=2,
        time_mask_max_num_masks=2,
        time_use_num_masks_percentage=True,
        mask_value=-77.0,
    ).train()
    counts = masked_frames(augment(torch.zeros(2, 2000, 2), torch.tensor([2000, 300]))).sum(1).tolist()
    assert 36 <= counts[0] <= 40 and 5 <= counts[1] <= 6


def test_frequency_masks_cover_all_valid_frames():
    torch.manual_seed(3)
    augment = SpecAugment(
        freq_mask_prob=1, freq_mask_min_width=3, freq_mask_max_width=3, freq_mask_max_num_masks=1, mask_value=-77.0
    ).train()
    out = augment(torch.zeros(2, 20, 10), torch.tensor([20, 9]))
    for item, length in zip(out, (20, 9), strict=True):
        columns = (item[:length] == -77.0).all(0)
        assert int(columns.sum()) == 3 and int((item == -77.0).sum()) == 3 * length
        assert not item[length:].any()


@pytest.mark.parametrize("method", ["mean", "min"])
def test_mask_value_comes_from_valid_frames_only(method):
    augment = SpecAugment(time_mask_prob=1, time_mask_min_width=30, time_mask_max_width=30, mask_method=method).train()
    x = torch.randn(3, 40, 5) + 5
    x[1, 12:] = -1e6
    x[2, 20:] = math.nan
    out = augment(x, torch.tensor([40, 12, 20]))
    for b, length in ((0, 40), (1, 12), (2, 20)):
        valid = x[b, :length]
        expected = valid.mean() if method == "mean" else valid.min()
        changed = (out[b, :length] != valid).any(1)
        assert changed.any()
        torch.testing.assert_close(out[b, :length][changed], expected.expand_as(valid[changed]))


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["bicubic", "bilinear", "nearest"]),
    sizes=st.lists(st.tuples(st.integers(2, 30), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=4),
)
def test_warp_equals_interpolation_of_both_parts(mode, sizes):
    lengths = torch.tensor([size for size, _, _ in sizes])
    pivot = torch.tensor([1 + int(a * (size - 2)) for size, a, _ in sizes])
    target = torch.tensor([1 + int(b * (size - 2)) for size, _, b in sizes])
    x = torch.randn(len(sizes), int(lengths.max()) + 2, 3, dtype=torch.float64)
    out = warp_time(x, lengths, pivot, target, mode)
    options = {} if mode == "nearest" else {"align_corners": False}
    for row, result, length, c, d in zip(x, out, lengths.tolist(), pivot.tolist(), target.tolist(), strict=True):
        parts = [
            F.interpolate(part[None, None], (size, 3), mode=mode, **options)[0, 0]
            for part, size in ((row[:c], d), (row[c:length], length - d))
        ]
        torch.testing.assert_close(result[:length], torch.cat(parts), rtol=1e-5, atol=1e-5)


def test_warp_stays_in_the_item_and_leaves_short_items_alone():
    torch.manual_seed(0)
    augment = SpecAugment(time_warp_prob=1, time_warp_window=5).train()
    x = torch.rand(3, 60, 4)
    x[0, 40:] = 1e6
    x[1, 10:] = math.nan
    out = augment(x, torch.tensor([40, 10, 60]))
    assert float(out[0].abs().max()) < 3 and not out[0, 40:].any()
    assert torch.equal(out[1, :10], x[1, :10])
    assert not torch.equal(out[2], x[2])


def test_probabilities_are_decided_once_per_batch():
    torch.manual_seed(0)
    augment = SpecAugment(time_mask_prob=0.3, time_mask_min_width=5, mask_value=-77.0).train()
    hits = [masked_frames(augment(torch.zeros(3, 20, 2))).any(1).tolist() for _ in range(300)]
    assert all(len(set(hit)) == 1 for hit in hits)
    assert 60 <= sum(hit[0] for hit in hits) <= 120


def test_same_seed_same_result_and_gradients_flow():
    augment = SpecAugment(time_warp_prob=1, time_mask_prob=1, freq_mask_prob=1, mask_method="mean").train()
    x = torch.randn(2, 90, 20, requires_grad=True)
    torch.manual_seed(5)
    first = augment(x, torch.tensor([90, 50]))
    torch.manual_seed(5)
    assert torch.equal(first, augment(x, torch.tensor([90, 50])))
    first.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and x.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("kwargs", "key"),
    [
        ({"time_mask_prob": 1.5}, "time_mask_prob"),
        ({"time_mask_min_width": 9, "time_mask_max_width": 3}, "time_mask_min_width"),
        ({"freq_mask_max_num_masks": 0}, "freq_mask_min_num_masks"),
        ({"time_warp_window": 0}, "time_warp_window"),
        ({"time_warp_mode": "cubic"}, "time_warp_mode"),
        ({"mask_method": "max"}, "mask_method"),
    ],
)
def test_impossible_settings_are_named(kwargs, key):
    with pytest.raises(ValueError, match=key):
        SpecAugment(**kwargs)
