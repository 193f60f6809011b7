"""Lengths behind convolutions came from a formula that is not theirs.

A stack of time-delay layers: 74 frames, the formula without dilation says 66, the tensor has 60. Two layers of stride 2: the mask of
the shorter item differed between the item alone and the item in a batch, as it was a proportion of the batch's longest. Right: the
arithmetic of the convolution, at every layer; checked here by running the layers.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.narchs.resnet import ResNet
from hyperion_lite.narchs.resnet1d_encoder import ResNet1dEncoder


def test_dilation_counts() -> None:
    x, length = torch.ones(1, 1, 74), 74
    for kernel, dilation in ((5, 1), (3, 2), (3, 3)):
        x = nn.Conv1d(1, 1, kernel, dilation=dilation)(x)
        length = conv_out_length(length, kernel, dilation=dilation)
        assert length == x.size(-1)
    assert length == 60


@pytest.mark.parametrize("padding", [0, 1])
def test_after_each_stride_an_item_is_as_long_as_alone(padding: int) -> None:
    lengths = [161, 160, 81, 80, 79, 33, 10]
    state = Padding.from_lengths(torch.tensor(lengths), len(lengths), lengths[0])
    alone = [torch.ones(1, 1, n) for n in lengths]
    assert state is not None
    for _ in range(2):
        layer = nn.Conv1d(1, 1, 3, stride=2, padding=padding)
        alone = [layer(x) for x in alone]
        state = state.conv(3, stride=2, padding=padding)
        assert state.lengths.tolist() == state.mask.sum(1).tolist() == [x.size(-1) for x in alone]


ENCODERS = {
    "1-D, dilated": lambda: ResNet1dEncoder(4, 8, 5, resb_repeats=[1, 1], resb_channels=[8, 8], resb_dilations=[2, 3]),
    "1-D, strided": lambda: ResNet1dEncoder(
        4, 8, 5, in_stride=2, resb_repeats=[1, 1], resb_channels=[8, 8], resb_strides=[2, 3]
    ),
    "2-D": lambda: ResNet("resnet18", in_channels=1, in_feats=8, conv_channels=4, base_channels=4, in_kernel_size=3),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_say_how_many_frames_they_give(name: str) -> None:
    encoder = ENCODERS[name]().eval()
    lengths = list(range(60, 90))
    front = [] if name.startswith("1-D") else [1]
    size = 4 if name.startswith("1-D") else 8
    with torch.inference_mode():
        _, found = encoder(torch.zeros(len(lengths), *front, size, max(lengths)), torch.tensor(lengths))
        for index in (0, 1, 2, 3, 13, 28):
            out, _ = encoder(torch.zeros(1, *front, size, lengths[index]))
            assert found[index] == out.size(-1) == encoder.out_lengths(torch.tensor(lengths))[index]
