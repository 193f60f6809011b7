"""The memory of the workers grew with every epoch: each look into a list of Python objects copied another page of it.

Right: manifests are arrays, mapped from a file where they are large. Reading them makes no private copies, and epochs leave nothing
behind.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hyperion_lite.data.loader import make_loader
from hyperion_lite.data.manifests import SegmentSet
from hyperion_lite.data.seg_sampler import SegSampler
from tests.data.manifests.test_arrow_cache import private_and_resident

ROWS = 60_000


class Lookups:
    """A batch is the process that looked its segments up, and what its private memory has grown by since its first, in MiB."""

    def __init__(self, segments: Any) -> None:
        self.segments = segments
        self.begin: float | None = None

    def __getitems__(self, keys: list[Any]) -> list[tuple[int, float]]:
        if self.begin is None:
            assert self.segments[str(keys[0])]
            self.begin = private_and_resident()[0]
        assert all(self.segments[str(key)]["speaker"] == "spk" + str(key)[-2:] for key in keys)
        return [(os.getpid(), private_and_resident()[0] - self.begin)]

    @staticmethod
    def collate(items: list[Any]) -> Any:
        return items[0]


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_it_is_flat_over_epochs(tmp_path: Path) -> None:
    ids = [f"segment-of-a-long-name-{i:08d}" for i in range(ROWS)]
    table = pd.DataFrame({"id": ids, "duration": np.full(ROWS, 2.0), "speaker": ["spk" + i[-2:] for i in ids]})
    SegmentSet.from_pandas(table).save(tmp_path / "segments.parquet")
    segments = SegmentSet.from_file(tmp_path / "segments.parquet")
    sampler = SegSampler(segments, max_batch_size=1000, shuffle=True, max_batches_per_epoch=6)
    growth = growth_of(segments, sampler)
    assert len(growth) == 2
    assert max(growth.values()) < 5, growth
    rows = {row["id"]: row for row in table.to_dict("records")}
    assert max(growth_of(rows, sampler).values()) > 5, "a dictionary of rows grows: the reason for the test"


def growth_of(segments: Any, sampler: SegSampler) -> dict[int, float]:
    """Of each of two workers, over three epochs."""
    loader = make_loader(Lookups(segments), sampler, num_workers=2)
    largest: dict[int, float] = {}
    for epoch in range(3):
        loader.set_epoch(epoch)
        for pid, grown in loader:
            largest[pid] = max(largest.get(pid, 0.0), grown)
    return largest
