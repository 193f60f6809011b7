"""Lengths and masks: exact arithmetic, and errors that say what is wrong."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.core.errors import LengthsError, TooShortError
from hyperion_lite.core.padding import (
    Padding,
    check_lengths,
    check_minimum_length,
    conv_out_length,
    lengths_to_mask,
    mask_to_lengths,
)


@given(
    length=st.integers(1, 80),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 4),
    padding=st.integers(0, 4),
)
def test_conv_out_length_is_what_a_convolution_gives(length, kernel, stride, dilation, padding):
    expected = 0
    if length + 2 * padding >= dilation * (kernel - 1) + 1:
        ones = torch.ones(1, 1, length)
        weight = torch.ones(1, 1, kernel)
        expected = torch.nn.functional.conv1d(ones, weight, stride=stride, dilation=dilation, padding=padding).size(-1)
    assert conv_out_length(length, kernel, stride, dilation, padding) == expected
    assert conv_out_length(torch.tensor([length]), kernel, stride, dilation, padding).tolist() == [expected]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_masks_and_lengths_are_two_spellings(lengths):
    tensor = torch.tensor(lengths)
    mask = lengths_to_mask(tensor)
    assert mask.shape == (len(lengths), max(lengths))
    assert mask_to_lengths(mask).tolist() == lengths
    assert check_lengths(mask, len(lengths), max(lengths)).tolist() == lengths


@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    stages=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)), max_size=4),
)
def test_padding_follows_a_stack_of_convolutions(lengths, stages):
    longest = max(lengths)
    padding = Padding(torch.tensor(lengths), longest)
    alone = list(lengths)
    for kernel, stride, dilation in stages:
        pad = dilation * (kernel - 1) // 2
        padding = padding.conv(kernel, stride, dilation, pad)
        alone = [conv_out_length(n, kernel, stride, dilation, pad) for n in alone]
        longest = conv_out_length(longest, kernel, stride, dilation, pad)
    assert padding.lengths.tolist() == alone
    assert padding.max_length == longest


def test_padding_is_none_when_nothing_is_padded():
    assert Padding.from_lengths(None, 2, 5) is None
    assert Padding.from_lengths(torch.tensor([5, 5]), 2, 5) is None
    assert Padding.from_lengths(torch.tensor([5, 4]), 2, 5) is not None


def test_fill_erases_nan_and_its_gradient():
    x = torch.tensor([[1.0, float("nan")], [2.0, 3.0]], requires_grad=True)
    padding = Padding.from_lengths(torch.tensor([1, 2]), 2, 2)
    filled = padding.fill(x)
    assert filled.tolist() == [[1.0, 0.0], [2.0, 3.0]]
    filled.sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 2], "must be a tensor"),
        (torch.tensor([0.5, 1.0]), "relative lengths"),
        (torch.tensor([3]), r"shape \(2,\)"),
        (torch.tensor([[3], [2]]), r"shape \(2,\)"),
        (torch.tensor([3, 6]), r"x_lengths\[1\] = 6 is larger than the padded length 5"),
        (torch.tensor([0, 5]), r"x_lengths\[0\] = 0"),
        (torch.tensor([-1, 5]), r"x_lengths\[0\] = -1"),
        (torch.ones(2, 4, dtype=torch.bool), r"shape \(2, 5\)"),
        (torch.tensor([[1, 0, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool), "vad_samples"),
        (torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool), "right-padding"),
    ],
)
def test_wrong_lengths_are_refused(lengths, message):
    with pytest.raises(LengthsError, match=message):
        check_lengths(lengths, 2, 5)


def test_lengths_on_another_device_raise_the_error_of_torch():
    with pytest.raises(RuntimeError, match="same device"):
        Padding.from_lengths(torch.tensor([1, 2]), 2, 2, device=torch.device("meta"))


def test_minimum_length_names_item_length_and_minimum():
    with pytest.raises(TooShortError, match="item 1 of the batch has 3 frames, the minimum is 4") as caught:
        check_minimum_length(torch.tensor([5, 3, 2]), 4, "frames")
    assert (caught.value.index, caught.value.length, caught.value.minimum) == (1, 3, 4)
    assert isinstance(caught.value, ValueError)
