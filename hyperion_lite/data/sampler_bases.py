"""Which samplers can be the base of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MODULES = {
    "seg_sampler": "SegSampler",
    "bucketing_seg_sampler": "BucketingSegSampler",
    "seg_chunk_sampler": "SegChunkSampler",
    "random_seg_chunk_sampler": "RandomSegChunkSampler",
    "class_weighted_random_seg_chunk_sampler": "ClassWeightedRandomSegChunkSampler",
}


def check_base(base: Any, allowed: Sequence[str], owner: str) -> str:
    """The type name of a base sampler, given by name or as a class.

    Raises:
        ValueError: ``owner`` cannot be built over it; names those it can.
    """
    by_class = {class_name: name for name, class_name in _MODULES.items()}
    name = by_class.get(base.__name__, base.__name__) if isinstance(base, type) else base
    if name not in allowed:
        known = "it is no known sampler" if name not in _MODULES else "it forms its batches in another way"
        raise ValueError(
            f"{owner} cannot have {name!r} as its base sampler ({known}); use {' or '.join(map(repr, allowed))}"
        )
    return str(name)
