"""Verification during training: embeddings of the validation segments, scored on a list of trials."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hyperion_lite.core.config import nearest
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.manifests import TrialKey
from hyperion_lite.metrics import equal_error_rate, min_dcf

logger = logging.getLogger(__name__)

ALL_PAIRS = "all"
_MOST_TRIALS = 2_000_000


def load_trial_key(trials: str | os.PathLike[str] | TrialKey) -> TrialKey:
    """A trial list with labels, from a file or as it is.

    Raises:
        FileNotFoundError: no such file.
        ManifestError: malformed, or without labels.
    """
    return trials if isinstance(trials, TrialKey) else TrialKey.from_file(trials)


def all_pairs(ids: Sequence[str], labels: Sequence[Any], most: int = _MOST_TRIALS, seed: int = 0) -> TrialKey:
    """Every pair of two different segments as a trial; a target where the labels are equal.

    Args:
        ids: of the segments.
        labels: their speakers.
        most: with more pairs than this, all targets and a random part of the others, the same for the same ``seed``.
        seed: of that choice.
    """
    codes = np.unique([str(label) for label in labels], return_inverse=True)[1]
    first, second = np.triu_indices(len(ids), 1)
    target = codes[first] == codes[second]
    if len(first) > most:
        others = np.flatnonzero(~target)
        count = max(1, most - int(target.sum()))
        chosen = np.random.default_rng(seed).choice(others, size=min(count, len(others)), replace=False)
        kept = np.sort(np.concatenate([np.flatnonzero(target), chosen]))
        logger.info("%d of %d pairs of validation segments are scored", len(kept), len(first))
        first, second, target = first[kept], second[kept], target[kept]
    return TrialKey(ids, ids, first, second, target, check=False)


class VerificationScorer:
    """Collects embeddings of segments over the ranks and scores trials with cosines.

    A segment that comes several times, as chunks or as a repetition that fills up ranks, counts with the average of its embeddings, each
    of length 1.

    Args:
        trials: the trial list; ``None``: every pair of segments, by label.
    """

    def __init__(self, trials: TrialKey | None = None) -> None:
        self.trials = trials
        self._ids: list[str] = []
        self._labels: list[int] = []
        self._vectors: list[torch.Tensor] = []

    def add(self, ids: Sequence[str], embeddings: torch.Tensor, labels: torch.Tensor | None = None) -> None:
        """Take the embeddings of a batch.

        Args:
            ids: of its segments.
            embeddings: (batch, embed_dim) floating point, any device.
            labels: (batch,) integer speakers, needed without a trial list.
        """
        if self.trials is None and labels is None:
            raise ConfigError("trials of all pairs need the speaker of each validation segment; give a trial list")
        self._ids += [str(i) for i in ids]
        self._labels += [-1] * len(ids) if labels is None else [int(v) for v in labels.tolist()]
        self._vectors.append(embeddings.detach().to("cpu", torch.float32))

    def part(self) -> tuple[list[str], list[int], np.ndarray]:
        """What this process has collected: ids, labels and (n, embed_dim) vectors."""
        vectors = torch.cat(self._vectors).numpy() if self._vectors else np.zeros((0, 0), np.float32)
        return self._ids, self._labels, vectors

    def metrics(self, parts: Sequence[tuple[list[str], list[int], np.ndarray]]) -> dict[str, float]:
        """``eer`` and ``min_dcf`` (prior 0.01) over the collected embeddings of all ranks.

        Args:
            parts: what :meth:`part` gave on each rank, in rank order.

        Returns:
            Empty where there are no trials of both kinds.

        Raises:
            ConfigError: a trial names a segment that validation does not have.
        """
        ids, labels, vectors = _averaged(parts)
        if not ids:
            return {}
        trials = all_pairs(ids, labels) if self.trials is None else self.trials
        scores = _scores(trials, ids, vectors)
        target, nontarget = scores[trials.target], scores[~trials.target]
        if not len(target) or not len(nontarget) or not np.isfinite(scores).all():
            logger.warning(
                "no error rates: %d target and %d non-target trials, %d scores that are not finite",
                len(target),
                len(nontarget),
                int((~np.isfinite(scores)).sum()),
            )
            return {}
        return {"eer": equal_error_rate(target, nontarget), "min_dcf": min_dcf(target, nontarget)}


def _averaged(parts: Sequence[tuple[list[str], list[int], np.ndarray]]) -> tuple[list[str], list[int], np.ndarray]:
    ids = [i for part in parts for i in part[0]]
    if not ids:
        return [], [], np.zeros((0, 0))
    labels = [v for part in parts for v in part[1]]
    vectors = _unit(np.concatenate([part[2] for part in parts if len(part[0])]).astype(np.float64))
    # in the order of the ids: which rank had a segment does not matter then
    unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    sums = np.zeros((len(unique), vectors.shape[1]))
    np.add.at(sums, inverse, vectors)
    return [str(i) for i in unique], [labels[i] for i in first], _unit(sums)


def _scores(trials: TrialKey, ids: Sequence[str], vectors: np.ndarray, block: int = 262144) -> np.ndarray:
    rows = {id: row for row, id in enumerate(ids)}
    for name in (*trials.model_ids, *trials.segment_ids):
        if name not in rows:
            raise ConfigError(
                f"{trials.file or 'the trial list'} names {name!r}, which is no validation segment{nearest(name, rows)}"
            )
    left = np.array([rows[name] for name in trials.model_ids])[trials.model_rows]
    right = np.array([rows[name] for name in trials.segment_ids])[trials.segment_rows]
    scores = np.empty(len(trials))
    for start in range(0, len(trials), block):
        part = slice(start, start + block)
        scores[part] = np.einsum("nd,nd->n", vectors[left[part]], vectors[right[part]])
    return scores


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)
