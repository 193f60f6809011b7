from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.narchs.chunking import ChunkPlan


@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 30),
    st.integers(1, 400),
)
def test_windows_cover_every_frame_once_with_its_context(left, right, log_stride, log_period, extra, num_frames):
    stride = 2**log_stride
    plan = ChunkPlan(ReceptiveField(left, right, stride), stride * 2**log_period)
    chunk_length = plan.min_chunk_length + extra
    position = 0
    windows = list(plan.windows(num_frames, chunk_length))
    for window in windows:
        assert window.keep_from == position
        assert window.stop - window.start <= chunk_length
        assert window.start % plan.alignment == 0
        # the first kept output sees its whole left context or the start of the item
        assert window.start == 0 or window.start <= window.keep_from - left
        if window is not windows[-1]:
            assert window.keep_to > window.keep_from
            assert (window.keep_to - stride) + right < window.stop
        position = window.keep_to
    assert windows[-1].stop == num_frames


def test_the_error_states_the_minimum():
    plan = ChunkPlan(ReceptiveField(5, 3, 2), 4)
    assert plan.min_chunk_length == 8 + 2 + 4
    with pytest.raises(ValueError, match="at least 14 frames"):
        next(plan.windows(100, 13))
