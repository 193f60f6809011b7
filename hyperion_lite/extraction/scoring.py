"""Cosine scores of embeddings."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from hyperion_lite.core.config import nearest
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.extraction.embedding_files import Embeddings

logger = logging.getLogger(__name__)


def check_comparable(first: Embeddings, second: Embeddings) -> None:
    """Raise :class:`ConfigError` if the two were made under different policies, or have different sizes."""
    if (first.policy is None) != (second.policy is None):
        logger.warning("only one of the two files of embeddings records how they were made; they may not be comparable")
    if first.policy is not None and second.policy is not None:
        differences = first.policy.differences(second.policy)
        if differences:
            raise ConfigError(
                f"these embeddings are not comparable, they were made differently: {'; '.join(differences)}"
            )
    if len(first.ids) and len(second.ids) and first.vectors.shape[1] != second.vectors.shape[1]:
        raise ConfigError(
            f"these embeddings are not comparable: their sizes are {first.vectors.shape[1]} and {second.vectors.shape[1]}"
        )


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # a zero vector scores 0 against everything
    return vectors / np.where(norms > 0, norms, 1.0)


def _rows(embeddings: Embeddings, ids: Sequence[str]) -> np.ndarray:
    index = {i: row for row, i in enumerate(embeddings.ids)}
    missing = [i for i in ids if i not in index]
    if missing:
        raise KeyError(
            f"no embedding for {missing[0]!r}{nearest(missing[0], index)} ({len(missing)} ids of the list are missing)"
        )
    return np.fromiter((index[i] for i in ids), np.int64, len(ids))


def cosine_scores(
    enrolment: Embeddings, test: Embeddings, pairs: Sequence[tuple[str, str]], block: int = 65536
) -> np.ndarray:
    """Cosine similarity of each pair (enrolment id, test id); (len(pairs),) float64 in [-1, 1].

    Raises:
        ConfigError: the embeddings are not comparable.
        KeyError: an id has no embedding.
    """
    check_comparable(enrolment, test)
    left = _rows(enrolment, [a for a, _ in pairs])
    right = _rows(test, [b for _, b in pairs])
    first, second = _unit(enrolment.vectors), _unit(test.vectors)
    scores = np.empty(len(pairs))
    for start in range(0, len(pairs), block):
        part = slice(start, start + block)
        scores[part] = np.einsum("nd,nd->n", first[left[part]], second[right[part]])
    return scores
