"""Every sampler against the whole contract."""

from __future__ import annotations

import pytest

from hyperion_lite.data.bucketing_seg_sampler import BucketingSegSampler
from hyperion_lite.data.class_weighted_random_seg_chunk_sampler import ClassWeightedRandomSegChunkSampler
from hyperion_lite.data.random_seg_chunk_sampler import RandomSegChunkSampler
from hyperion_lite.data.seg_chunk_sampler import SegChunkSampler
from hyperion_lite.data.seg_sampler import SegSampler
from tests.contracts.sampler_tester import SamplerCase, SamplerTester

DIVIDING = (1, 2, 4, 8)
SOME_WORKERS = ((0, None), (2, 4))
ALL_WORKERS = ((0, None), (2, 1), (2, 4), (4, 1), (4, 4))
CHUNKS = {"min_chunk_length": 2.0, "max_chunk_length": 4.0}
CLASSES = {"class_name": "speaker", **CHUNKS}

CASES = {
    "seg-fixed": SamplerCase(
        SegSampler,
        {"max_batch_size": 16, "shuffle": True},
        covers=True,
        world_sizes=DIVIDING,
        workers=SOME_WORKERS,
    ),
    "seg-in-order": SamplerCase(SegSampler, {"max_batch_size": 8}, covers=True, world_sizes=DIVIDING, training=False),
    "seg-length": SamplerCase(
        SegSampler, {"max_batch_length": 170.0, "shuffle": True}, covers=True, padded_budget=170.0
    ),
    "seg-length-unsorted": SamplerCase(
        SegSampler,
        {"max_batch_length": 200.0, "max_batch_size": 24, "sort_by_length": False},
        covers=True,
        world_sizes=DIVIDING,
        padded_budget=200.0,
        training=False,
    ),
    "bucketing": SamplerCase(
        BucketingSegSampler,
        {"max_batch_length": 180.0, "num_buckets": 3},
        covers=True,
        padded_budget=180.0,
        workers=SOME_WORKERS,
    ),
    "bucketing-fixed": SamplerCase(BucketingSegSampler, {"max_batch_size": 16}, covers=True, world_sizes=DIVIDING),
    "random-chunks": SamplerCase(
        RandomSegChunkSampler, {"max_batch_length": 100.0, **CHUNKS}, padded_budget=100.0, workers=SOME_WORKERS
    ),
    "random-chunks-fixed": SamplerCase(
        RandomSegChunkSampler,
        {"max_batch_size": 24, "num_chunks_per_seg_epoch": 2.5, "min_chunk_length": 3.0},
        world_sizes=DIVIDING,
    ),
    "random-chunks-same-each-epoch": SamplerCase(
        RandomSegChunkSampler, {"max_batch_length": 130.0, "shuffle": False, **CHUNKS}, padded_budget=130.0
    ),
    "class-weighted": SamplerCase(
        ClassWeightedRandomSegChunkSampler,
        {"max_batch_length": 120.0, "num_segs_per_class": 2, "num_chunks_per_seg": 2, **CLASSES},
        padded_budget=120.0,
        workers=ALL_WORKERS,
    ),
    "class-weighted-fixed": SamplerCase(
        ClassWeightedRandomSegChunkSampler,
        {"max_batch_size": 32, "weight_mode": "data-prior", "seg_weight_mode": "data-prior", **CLASSES},
        world_sizes=DIVIDING,
    ),
    "seg-chunks": SamplerCase(
        SegChunkSampler, {"max_batch_length": 90.0, "shuffle": True, **CHUNKS}, padded_budget=90.0, workers=SOME_WORKERS
    ),
    "seg-chunks-in-buckets": SamplerCase(
        SegChunkSampler,
        {"max_batch_length": 90.0, "shuffle": True, "base_sampler": "bucketing_seg_sampler", **CHUNKS},
        padded_budget=90.0,
    ),
    "seg-chunks-in-order": SamplerCase(
        SegChunkSampler,
        {"max_batch_size": 24, "min_chunk_length": 5.0, "short_policy": "whole"},
        world_sizes=DIVIDING,
        training=False,
    ),
}


@pytest.fixture(params=list(CASES), name="case")
def _case(request: pytest.FixtureRequest) -> SamplerCase:
    return CASES[request.param]


class TestSamplers(SamplerTester):
    """Runs every clause on every case."""
