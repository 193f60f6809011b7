"""Which segments are kept for validation."""

from __future__ import annotations

import hashlib
import logging

import numpy as np

from hyperion_lite.data.manifests.arrow_tools import codes_of, to_text
from hyperion_lite.data.manifests.id_index import hash_text
from hyperion_lite.data.manifests.segment_set import SegmentSet

logger = logging.getLogger(__name__)


def split_validation(
    segments: SegmentSet,
    fraction: float = 0.05,
    by: str = "speaker",
    seed: int = 0,
    class_name: str = "speaker",
) -> tuple[SegmentSet, SegmentSet]:
    """Split into training and validation segments.

    The choice depends on ids and seed alone, not on the order of the rows.

    Args:
        segments: to split.
        fraction: share of the groups (of the segments for ``by="utterance"``) to validate on, above 0 and below 1.
        by: column whose groups stay together (``"speaker"``: validation speakers are unseen in training, ``"recording"``, ...), or
            ``"utterance"``: single segments, such that each class keeps at least one segment for training.
        seed: another seed gives another choice.
        class_name: the classes that ``by="utterance"`` keeps in training; ignored where the column is missing.

    Returns:
        Training and validation segments, in row order; neither is empty.

    Raises:
        ValueError: the fraction is out of range, or there are too few groups.
        KeyError: no column ``by``.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, found {fraction}")
    if by == "utterance":
        held = _single_segments(segments, fraction, seed, class_name)
    else:
        codes, groups = codes_of(segments.recording_ids()) if by == "recording" else segments.codes(by)
        if len(codes) and codes.min() < 0:
            raise ValueError(
                f"{segments.where}row {int(np.argmin(codes)) + 1} has no {by!r}; validation cannot be split by it"
            )
        if len(groups) < 2:
            raise ValueError(f"{segments.where}{len(groups)} different {by!r}: at least 2 are needed to split by it")
        order = _order(np.array([_hash(group, seed) for group in groups], np.uint64))
        count = min(max(1, round(fraction * len(groups))), len(groups) - 1)
        held = np.isin(codes, order[:count])
    return segments.take(np.flatnonzero(~held)), segments.take(np.flatnonzero(held))


def _hash(text: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}|{text}".encode()).digest()[:8], "big")


def _order(keys: np.ndarray) -> np.ndarray:
    return np.argsort(keys, kind="stable")


def _single_segments(segments: SegmentSet, fraction: float, seed: int, class_name: str) -> np.ndarray:
    if len(segments) < 2:
        raise ValueError(f"{segments.where}{len(segments)} segments: at least 2 are needed for a validation split")
    # mixes the seed into the stored hashes: a keyed choice without a Python loop over millions of ids
    keys = hash_text(to_text(segments.table.column("id"))) ^ np.uint64(_hash("segment", seed))
    keys = (keys ^ (keys >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    keys ^= keys >> np.uint64(29)
    order = _order(keys)
    wanted = min(max(1, round(fraction * len(segments))), len(segments) - 1)
    held = np.zeros(len(segments), bool)
    if not segments.has(class_name):
        held[order[:wanted]] = True
        return held
    codes, classes = segments.codes(class_name)
    # the last segment of each class in the drawn order stays in training
    last = np.full(len(classes) + 1, -1)
    last[codes[order]] = order
    allowed = np.ones(len(segments), bool)
    allowed[last[:-1][last[:-1] >= 0]] = False
    chosen = order[allowed[order]][:wanted]
    if len(chosen) == 0:
        raise ValueError(f"{segments.where}each {class_name!r} has one segment: none can be held back by utterance")
    if len(chosen) < wanted:
        logger.warning(
            "only %d of %d segments are held back: each %s keeps one for training", len(chosen), wanted, class_name
        )
    held[chosen] = True
    return held
