from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hyperion_lite.pth.quantize import channel_ranges, conv1d_to_channels_last, dequantize_int8, quantize_int8


def _along(scales: np.ndarray, ndim: int, axis: int) -> np.ndarray:
    return scales.astype(np.float64).reshape([-1 if other == axis % ndim else 1 for other in range(ndim)])


def test_ranges_are_those_of_every_channel_on_either_axis():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 5
    low, high = channel_ranges(array)
    assert low.tolist() == [-5, 7] and high.tolist() == [6, 18]
    low, high = channel_ranges(array, axis=-2)
    assert low.tolist() == [-5, -1, 3] and high.tolist() == [10, 14, 18]
    assert low.dtype == np.float32


def test_ranges_of_one_axis_are_the_values():
    low, high = channel_ranges(np.array([3, -1], dtype=np.int16))
    assert low.tolist() == high.tolist() == [3, -1]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([np.float16, np.float32, np.float64]))
def test_error_is_at_most_half_a_scale(data, dtype):
    shape = data.draw(array_shapes(min_dims=1, max_dims=4, max_side=6))
    width = np.finfo(dtype).bits
    elements = st.floats(allow_nan=False, allow_infinity=False, width=width)
    if dtype is np.float64:
        elements = st.floats(-3.4e38, 3.4e38)
    array = data.draw(arrays(dtype, shape, elements=elements))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    values, scales = quantize_int8(array, axis)
    assert values.dtype == np.int8 and scales.dtype == np.float32 and values.shape == shape
    assert scales.shape == (shape[axis],) and (scales > 0).all() and values.min(initial=0) >= -127
    step = _along(scales, len(shape), axis)
    assert (np.abs(array.astype(np.float64) - values * step) <= step / 2 * (1 + 1e-6)).all()
    restored = dequantize_int8(values, scales, axis)
    assert restored.dtype == np.float32
    assert (np.abs(restored - values * step) <= np.abs(values * step) * 2.0**-24 + 2.0**-149).all()


def test_the_largest_magnitude_uses_the_last_level():
    values, scales = quantize_int8(np.array([[1.0, -4.0, 0.5], [0.25, 0.0, 0.1]], dtype=np.float32))
    assert values[0, 1] == -127 and values[1, 0] == 127
    np.testing.assert_allclose(scales, [4 / 127, 0.25 / 127], rtol=1e-7)


def test_a_channel_of_zeros_and_one_of_denormals_survive():
    array = np.array([[0.0, -0.0], [1e-45, 0.0]], dtype=np.float32)
    values, scales = quantize_int8(array)
    assert values.tolist() == [[0, 0], [0, 0]] and scales[0] == 1 and scales[1] > 0


def test_large_tensors_are_quantised_in_blocks_with_the_same_result():
    array = np.random.default_rng(0).standard_normal((3, 700, 400)).astype(np.float32)
    whole = quantize_int8(array, axis=1)
    for channel in (0, 350, 699):
        alone = quantize_int8(np.ascontiguousarray(array[:, channel : channel + 1]), axis=1)
        assert (whole.values[:, channel : channel + 1] == alone.values).all() and whole.scales[channel] == alone.scales[
            0
        ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_ml_dtypes_are_quantised_too(dtype):
    array = np.linspace(-3, 3, 20, dtype=np.float32).reshape(4, 5).astype(getattr(ml_dtypes, dtype))
    values, scales = quantize_int8(array)
    assert (np.abs(values * scales[:, None] - array.astype(np.float32)) <= scales[:, None] * 0.5001).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_its_channel(bad):
    array = np.ones((3, 2), dtype=np.float32)
    array[1, 1] = bad
    with pytest.raises(ValueError, match="channel 1 holds NaN or infinity"):
        quantize_int8(array)


@pytest.mark.parametrize(
    ("array", "axis", "message"),
    [
        (np.ones((2, 2), np.int32), 0, "floating-point"),
        (np.ones((2, 2), np.complex64), 0, "floating-point"),
        (np.ones((2, 2), np.float32), 2, "no axis 2"),
        (np.float32(1.0), 0, "no axis 0"),
        (np.ones((2, 0), np.float32), 0, "no elements"),
        (np.full((2, 2), 1e39), 0, "beyond float32"),
    ],
)
def test_what_cannot_be_quantised_is_said(array, axis, message):
    with pytest.raises(ValueError, match=message):
        quantize_int8(array, axis)


def test_the_largest_float32_is_restored_finite():
    largest = np.array([[np.finfo(np.float32).max, 1.0]], dtype=np.float32)
    assert np.isfinite(dequantize_int8(*quantize_int8(largest))).all()


def test_no_channels_give_no_scales():
    values, scales = quantize_int8(np.ones((0, 4), np.float32))
    assert values.shape == (0, 4) and scales.shape == (0,)


def test_wrong_number_of_scales_is_said():
    with pytest.raises(ValueError, match="expected 3 scales"):
        dequantize_int8(np.zeros((3, 2), np.int8), np.ones(2, np.float32))


def test_channels_last_moves_every_element_to_its_place():
    weight = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    last = conv1d_to_channels_last(weight)
    assert last.shape == (1, 4, 3, 2) and last.flags.c_contiguous
    assert all(last[0, k, i, o] == weight[o, i, k] for o in range(2) for i in range(3) for k in range(4))
    with pytest.raises(ValueError, match="expected a 1-D convolution"):
        conv1d_to_channels_last(weight[0])
