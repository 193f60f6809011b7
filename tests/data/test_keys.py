"""Keys are strings and tuples that carry more."""

from __future__ import annotations

import copy
import pickle

import pytest

from hyperion_lite.data.keys import ChunkKey, SegmentKey


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_segment_key_is_a_string(protocol: int) -> None:
    key = SegmentKey("utt é", 3, 2, True)
    assert key == "utt é" and hash(key) == hash("utt é") and {"utt é": 1}[key] == 1
    assert (key.epoch, key.occurrence, key.repeat) == (3, 2, True)
    assert type(key.segment_id) is str
    for again in (pickle.loads(pickle.dumps(key, protocol)), copy.deepcopy(key)):
        assert type(again) is SegmentKey and again == key
        assert (again.epoch, again.occurrence, again.repeat) == (3, 2, True)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_chunk_key_is_a_tuple(protocol: int) -> None:
    key = ChunkKey("utt", 1, 2.5, 3, 2, True, 4.0)
    assert key == ("utt", 1.0, 2.5) and hash(key) == hash(("utt", 1.0, 2.5))
    id, start, duration = key
    assert (id, start, duration) == (key.segment_id, key.start, key.duration)
    for again in (pickle.loads(pickle.dumps(key, protocol)), copy.deepcopy(key)):
        assert type(again) is ChunkKey and again == key
        assert (again.epoch, again.occurrence, again.repeat, again.pad_to) == (3, 2, True, 4.0)


def test_keys_default_to_the_first_use_in_the_first_epoch() -> None:
    assert (SegmentKey("a").epoch, SegmentKey("a").occurrence, SegmentKey("a").repeat) == (0, 0, False)
    assert ChunkKey("a", 0.0, 1.0).pad_to is None
