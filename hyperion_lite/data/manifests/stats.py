"""Describes a data set in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperion_lite.data.manifests.hyper_dataset import HyperDataset
from hyperion_lite.data.manifests.segment_set import SegmentSet
from hyperion_lite.data.manifests.trials import TrialKey

PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


def dataset_stats(dataset: HyperDataset) -> dict[str, Any]:
    """Counts, hours, lengths and classes of a data set, as plain types.

    Durations are in seconds; segments whose duration the manifest does not say count as ``unknown_duration``.
    """
    segments = dataset.segments
    stats: dict[str, Any] = {"segments": {"count": len(segments), **_durations(segments.duration)}}
    if dataset.recordings is not None:
        recordings = dataset.recordings
        known = recordings.column("duration") if recordings.has("duration") else np.full(len(recordings), np.nan)
        stats["recordings"] = {"count": len(recordings), **_durations(known)}
        if recordings.has("sample_freq"):
            rates, counts = np.unique(
                recordings.table.column("sample_freq").fill_null(0).to_numpy(), return_counts=True
            )
            stats["recordings"]["sample_freq"] = {int(r): int(c) for r, c in zip(rates, counts, strict=True)}
        used = recordings.find(segments.recording_ids())
        stats["recordings"]["unused"] = len(recordings) - len(np.unique(used[used >= 0]))
    stats["classes"] = {
        name: {"in_table": len(table), **_classes(segments, name)}
        for name, table in dataset.classes.items()
        if segments.has(name)
    }
    for name, enrolment in dataset.enrollments.items():
        stats.setdefault("enrollments", {})[name] = {"models": len(enrolment.model_ids), "segments": len(enrolment)}
    for name, trials in dataset.trials.items():
        entry = {"trials": len(trials), "models": len(trials.model_ids), "segments": len(trials.segment_ids)}
        if isinstance(trials, TrialKey):
            entry.update(target=trials.num_targets, nontarget=trials.num_nontargets)
        stats.setdefault("trials", {})[name] = entry
    return stats


def _durations(duration: np.ndarray) -> dict[str, Any]:
    known = duration[np.isfinite(duration)]
    result: dict[str, Any] = {"hours": float(known.sum() / 3600), "unknown_duration": int(len(duration) - len(known))}
    if len(known):
        values = np.percentile(known, PERCENTILES)
        result["duration_percentiles"] = {str(p): float(v) for p, v in zip(PERCENTILES, values, strict=True)}
    return result


def _classes(segments: SegmentSet, name: str) -> dict[str, Any]:
    codes, values = segments.codes(name)
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    result: dict[str, Any] = {"in_segments": len(values), "segments_without": int((codes < 0).sum())}
    if len(values):
        result["segments_per_class"] = {
            "min": int(counts.min()),
            "median": float(np.median(counts)),
            "max": int(counts.max()),
        }
    return result
