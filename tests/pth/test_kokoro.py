from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from hyperion_lite.pth import PthFile, open_pth
from hyperion_lite.pth.quantize import channel_ranges, conv1d_to_channels_last, quantize_int8
from hyperion_lite.pth.weight_norm import find_weight_norm_pairs, fuse_weight_norm
from tests.helpers import shared_path
from tests.pth.builders import build_kokoro, kokoro_layout

PARTS = {"bert": 25, "bert_encoder": 2, "predictor": 122, "decoder": 375, "text_encoder": 24}


@pytest.fixture(scope="module")
def kokoro(tmp_path_factory):
    shapes = shared_path("fixtures/kokoro_shape.json")
    path = tmp_path_factory.mktemp("kokoro") / "kokoro.pth"
    saved = build_kokoro(path, shapes)
    with open_pth(path, verify="all") as file:
        yield file, saved
    path.unlink()


def _values(file: PthFile, part: str) -> dict[str, np.ndarray]:
    return file.state_dict(part)


def test_names_shapes_and_counts(kokoro):
    file, _ = kokoro
    assert Counter(name.partition(".")[0] for name in file.tensors) == PARTS
    assert len(file.tensors) == 548
    assert sum(ref.numel for ref in file.tensors.values()) == file.metadata["num_parameters"] == 81_763_410
    expected = {
        f"{part}.{name}": shape for part, name, shape, _, _ in kokoro_layout(shared_path("fixtures/kokoro_shape.json"))
    }
    assert {name: ref.shape for name, ref in file.tensors.items()} == expected
    assert list(file.tensors) == list(expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("predictor.module.F0.1.conv1.weight_v", (256, 512, 3)),
        ("predictor.module.F0.1.conv1.weight_g", (256, 1, 1)),
        ("predictor.module.F0.1.pool.weight_v", (512, 1, 3)),
        ("predictor.module.F0.1.conv1x1.weight_v", (256, 512, 1)),
    ],
)
def test_the_four_shapes_of_the_notes(kokoro, name, shape):
    file, _ = kokoro
    assert file.tensors[name].shape == file.read_tensor(name).shape == shape


def test_recurrent_weights_share_flat_storages(kokoro):
    file, saved = kokoro
    assert sorted(map(len, file.tensors.shared.values())) == [8] * 6 and file.tensors.duplicates == []
    assert file.metadata["num_storages"] == 506 and file.metadata["unreferenced_bytes"] == 0
    name = "module.lstm.weight_hh_l0_reverse"
    np.testing.assert_array_equal(file.read_tensor(f"text_encoder.{name}"), saved["text_encoder"][name].numpy())


def test_values_are_those_that_were_saved(kokoro):
    file, saved = kokoro
    for part in ("bert_encoder", "predictor"):
        values = _values(file, part)
        assert all(np.array_equal(values[name], tensor.numpy()) for name, tensor in saved[part].items())


@pytest.mark.parametrize(("part", "count"), [("predictor", 16), ("decoder", None), ("text_encoder", 3)])
def test_fused_weights_are_those_of_torch(kokoro, part, count):
    file, saved = kokoro
    values = _values(file, part)
    fused = fuse_weight_norm(values)
    pairs = find_weight_norm_pairs(values)
    halves = [name for name in values if name.endswith(("weight_g", "weight_v"))]
    assert len(pairs) == len(halves) // 2 > 0 and len(fused) == PARTS[part] - len(pairs)
    assert count is None or len(pairs) == count
    for weight, pair in pairs.items():
        reference = torch._weight_norm(saved[part][pair.v], saved[part][pair.g], 0).numpy()
        np.testing.assert_allclose(fused[weight], reference, rtol=0, atol=1e-6)


def test_ranges_and_int8_of_every_output_channel(kokoro):
    file, _ = kokoro
    weight = fuse_weight_norm({name: file.read_tensor(f"predictor.{name}") for name in _conv_halves()})[
        "module.F0.1.conv1.weight"
    ]
    low, high = channel_ranges(weight)
    assert low.shape == high.shape == (256,)
    np.testing.assert_array_equal(high, weight.reshape(256, -1).max(axis=1))
    np.testing.assert_array_equal(low, weight.reshape(256, -1).min(axis=1))
    values, scales = quantize_int8(weight)
    np.testing.assert_allclose(scales, np.maximum(-low, high) / 127, rtol=1e-6)
    assert np.abs(values * scales[:, None, None] - weight).max() <= scales.max() / 2 * 1.001


def test_channels_last_has_the_elements_of_the_reference_bundle(kokoro):
    file, _ = kokoro
    weight = file.read_tensor("predictor.module.F0.1.conv1.weight_v")
    last = conv1d_to_channels_last(weight)
    assert last.shape == (1, 3, 512, 256) and last.size == 393_216
    np.testing.assert_array_equal(last[0, 2, :, 7], weight[7, :, 2])


def _conv_halves() -> list[str]:
    return ["module.F0.1.conv1.weight_g", "module.F0.1.conv1.weight_v"]
