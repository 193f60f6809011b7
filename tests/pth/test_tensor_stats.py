from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hyperion_lite.pth import tensor_stats as module
from hyperion_lite.pth.tensor_stats import tensor_difference, tensor_stats


@settings(max_examples=60, deadline=None)
@given(
    array=arrays(
        np.float32,
        st.integers(0, 40),
        elements=st.floats(-1e6, 1e6, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]),
    ),
    block=st.integers(1, 9),
)
def test_stats_in_blocks_are_those_of_the_finite_elements(array, block):
    before, module._BLOCK_ELEMENTS = module._BLOCK_ELEMENTS, block
    try:
        stats = tensor_stats(array)
    finally:
        module._BLOCK_ELEMENTS = before
    finite = array[np.isfinite(array)].astype(np.float64)
    assert (stats.count, stats.nan, stats.inf) == (array.size, np.isnan(array).sum(), np.isinf(array).sum())
    assert stats.zeros == (array == 0).sum()
    if finite.size == 0:
        assert stats.minimum is stats.maximum is stats.mean is stats.std is None
        return
    assert (stats.minimum, stats.maximum) == (finite.min(), finite.max())
    scale = 1 + np.abs(finite).max()
    assert stats.mean == pytest.approx(finite.mean(), abs=1e-12 * scale)
    assert stats.std == pytest.approx(finite.std(), abs=1e-9 * scale)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([2**63 - 1, -(2**63)], np.int64), (-(2**63), 2**63 - 1)),
        (np.array([0, 2**64 - 1], np.uint64), (0, 2**64 - 1)),
        (np.array([True, False]), (0, 1)),
        (np.array([3 + 4j, 0], np.complex64), (0.0, 5.0)),
        (np.array([1.5, -2], ml_dtypes.bfloat16), (-2.0, 1.5)),
        (np.array([1.5, -2], ml_dtypes.float8_e4m3fn), (-2.0, 1.5)),
        (np.float32(7), (7.0, 7.0)),
    ],
)
def test_every_kind_of_number_has_exact_extremes(array, expected):
    stats = tensor_stats(np.asarray(array))
    assert (stats.minimum, stats.maximum) == expected


def test_a_complex_number_with_nan_beside_infinity_counts_as_nan():
    stats = tensor_stats(np.array([complex(math.nan, math.inf), complex(math.inf, 0)]))
    assert (stats.nan, stats.inf, stats.mean) == (1, 1, None)


def test_a_large_offset_does_not_spoil_the_standard_deviation():
    array = 1e9 + np.tile([0.0, 1.0], 400_000)
    assert tensor_stats(array).std == pytest.approx(0.5, rel=1e-6)


def test_equal_tensors_do_not_differ_even_where_they_are_not_numbers():
    array = np.array([1.0, np.nan, np.inf, -np.inf, 0.0], np.float32)
    difference = tensor_difference(array, array.copy())
    assert (difference.differing, difference.max_abs, difference.max_rel, difference.mean_abs) == (0, 0, 0, 0)


def test_difference_counts_and_measures():
    a, b = np.array([1.0, 2.0, 3.0, 5.0]), np.array([1.0, 2.5, 3.0, 4.0])
    difference = tensor_difference(a, b)
    assert (difference.count, difference.differing, difference.max_abs) == (4, 2, 1.0)
    assert difference.max_rel == pytest.approx(0.25) and difference.mean_abs == pytest.approx(1.5 / 4)
    assert tensor_difference(a, b, atol=0.5).differing == 1
    assert tensor_difference(a, b, rtol=0.25).differing == 0


def test_not_a_number_against_a_number_is_an_infinite_difference():
    difference = tensor_difference(np.array([np.nan, 1.0]), np.array([0.0, 1.0]), atol=1e9)
    assert difference.differing == 1 and difference.max_abs == math.inf and difference.mean_abs == 0


def test_infinity_against_a_number_exceeds_any_relative_tolerance():
    assert tensor_difference(np.array([1.0]), np.array([np.inf]), rtol=0.5).differing == 1


def test_large_integers_one_apart_differ():
    difference = tensor_difference(np.array([2**62], np.int64), np.array([2**62 + 1], np.int64))
    assert difference.differing == 1


def test_dtypes_may_differ_and_shapes_may_not():
    half = np.array([0.1], np.float16)
    assert tensor_difference(half, half.astype(np.float32)).differing == 0
    assert tensor_difference(np.array([1], ml_dtypes.bfloat16), np.array([True])).differing == 0
    with pytest.raises(ValueError, match="shapes"):
        tensor_difference(np.zeros(2), np.zeros((2, 1)))
