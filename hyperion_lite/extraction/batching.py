"""Group utterances of like length, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchLimits:
    """When a batch is full.

    Attributes:
        max_seconds: seconds of audio in a batch, padding included; a longer utterance makes a batch of its own.
        max_padding: largest share of padding in a batch.
        max_items: most utterances in a batch.
    """

    max_seconds: float = 60.0
    max_padding: float = 0.03
    max_items: int = 256


def group_by_length(durations: Sequence[float], limits: BatchLimits) -> list[list[int]]:
    """Indices of the utterances of each batch, longest utterances first.

    The longest batch comes first, so that a job that does not fit into memory fails at once and not at its end.
    """
    order = sorted(range(len(durations)), key=lambda i: (-durations[i], i))
    batches: list[list[int]] = []
    total = 0.0
    for index in order:
        batch = batches[-1] if batches else []
        longest = durations[batch[0]] if batch else 0.0
        padded = longest * (len(batch) + 1)
        waste = 1.0 - (total + durations[index]) / padded if padded else 0.0
        full = len(batch) >= limits.max_items or padded > limits.max_seconds or waste > limits.max_padding
        if not batch or full:
            batches.append([index])
            total = durations[index]
        else:
            batch.append(index)
            total += durations[index]
    return batches


def padded_share(durations: Sequence[float], batches: Sequence[Sequence[int]]) -> float:
    """Share of padding in all batches together."""
    padded = sum(max(durations[i] for i in batch) * len(batch) for batch in batches)
    return 1.0 - sum(durations[i] for batch in batches for i in batch) / padded if padded else 0.0
