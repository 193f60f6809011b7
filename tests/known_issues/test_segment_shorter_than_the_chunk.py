"""Drawing the start of a chunk in a segment that is shorter than the chunk: an empty range, and the end of training.

Right: such segments are dropped, padded or taken whole, as the policy says, and the account of the epoch counts them.
"""

from __future__ import annotations

from typing import Any

import pytest

from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from tests.contracts.sampler_tester import fake_dataset

CHUNK_SAMPLERS = [name for name in SegSamplerFactory.sampler_types if "chunk" in name]


@pytest.mark.parametrize("sampler_type", CHUNK_SAMPLERS)
@pytest.mark.parametrize("policy", ["drop", "pad", "whole"])
def test_the_policy_decides_and_the_account_counts(sampler_type: Any, policy: Any) -> None:
    dataset = fake_dataset(40, low=1.0, high=6.0)
    lengths = dict(zip(dataset.segments.ids, dataset.segments.column("duration"), strict=True))
    short = {key for key, length in lengths.items() if length < 3.0}
    sampler = SegSamplerFactory.create(
        dataset,
        sampler_type,
        class_name="speaker",
        min_chunk_length=3.0,
        max_chunk_length=4.0,
        max_batch_size=8,
        min_batch_size=8,
        short_policy=policy,
    )
    sampler.set_epoch(0)
    keys = [key for batch in sampler for key in batch]
    drawn = {key.segment_id for key in keys} & short
    account = sampler.account()
    assert keys and short
    assert all(key.start >= 0 and key.start + key.duration <= lengths[key.segment_id] + 1e-9 for key in keys)
    if policy == "drop":
        assert not drawn
        assert account.dropped["shorter than min_chunk_length"] == len(short)
        return
    assert drawn
    assert account.short > 0
    assert not account.dropped.get("shorter than min_chunk_length")
    whole = [key for key in keys if key.segment_id in short]
    assert all((key.start, key.duration) == (0.0, pytest.approx(lengths[key.segment_id])) for key in whole)
    assert all((key.pad_to is not None and key.pad_to >= 3.0) == (policy == "pad") for key in whole)
