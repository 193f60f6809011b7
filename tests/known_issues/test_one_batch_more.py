"""One rank had one batch more than the others, and waited for them for ever.

Right: all ranks have the same number of batches by construction, and the account of the epoch says what was dropped or repeated
for it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from tests.contracts.sampler_tester import fake_dataset
from tests.known_issues.test_position_of_the_sampler import OPTIONS


@pytest.mark.parametrize("sampler_type", SegSamplerFactory.sampler_types)
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_equal_counts_with_an_account(sampler_type: Any, num_replicas: int) -> None:
    options = {**OPTIONS, "max_batch_size": 12, "min_batch_size": 2 * num_replicas}
    for num_segments in range(37, 37 + 2 * num_replicas):
        dataset = fake_dataset(num_segments)
        ranks = [
            SegSamplerFactory.create(dataset, sampler_type, rank=rank, num_replicas=num_replicas, **options)
            for rank in range(num_replicas)
        ]
        batches = [list(sampler) for sampler in ranks]
        assert {len(one) for one in batches} == {len(ranks[0])}
        keys = [key for one in batches for batch in one for key in batch]
        account = ranks[0].account()
        assert account.repeated == sum(key.repeat for key in keys)
        if sampler_type in ("seg_sampler", "bucketing_seg_sampler"):
            once = Counter(str(key) for key in keys if not key.repeat)
            assert set(once.values()) == {1}
            assert len(once) + sum(account.dropped.values()) == num_segments
