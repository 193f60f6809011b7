"""Run a model over many utterances; one bad file does not stop it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hyperion_lite.core.errors import HyperionLiteError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.extraction.batching import BatchLimits, group_by_length, padded_share
from hyperion_lite.extraction.store import EmbeddingStore

logger = logging.getLogger(__name__)

_BATCHES_AHEAD = 3


@dataclass(frozen=True)
class Utterance:
    """A stretch of a recording to embed.

    Attributes:
        id: name in the output.
        source: a path, or a row of a recording manifest.
        start: seconds.
        duration: seconds, ``None`` to the end.
    """

    id: str
    source: str | Mapping[str, Any]
    start: float = 0.0
    duration: float | None = None


@dataclass
class Summary:
    """What an extraction did.

    Attributes:
        written: embeddings computed now.
        skipped: utterances that an earlier job had done.
        failures: (id, reason) of those that failed.
        silent: ids of those that hold no signal; they are embedded, but it means nothing.
        audio_seconds: seconds of audio embedded now.
        wall_seconds: duration of the job.
        padded_share: share of padding in the batches.
    """

    written: int = 0
    skipped: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    audio_seconds: float = 0.0
    wall_seconds: float = 0.0
    padded_share: float = 0.0

    @property
    def times_real_time(self) -> float:
        """Seconds of audio a second of wall time."""
        return self.audio_seconds / self.wall_seconds if self.wall_seconds > 0 else 0.0


_FAILURES = (HyperionLiteError, ValueError, OSError, KeyError)
"""What a bad file raises. Anything else (a bug, no memory) stops the job; what was written stays."""


class EmbeddingExtractor:
    """Reads, batches and embeds utterances.

    Args:
        model: a :class:`~hyperion_lite.models.wav2xvectors.waveform_xvector.WaveformXVector` in ``eval()``, on its device.
        reader: reads at the model's sampling rate.
        limits: size of a batch.
        chunk_length, embed_layer: as in ``extract_embed``.
        num_readers: threads that read and resample files.
    """

    def __init__(
        self,
        model: Any,
        reader: AudioReader,
        limits: BatchLimits | None = None,
        chunk_length: float = 0.0,
        embed_layer: int | None = None,
        num_readers: int = 2,
    ) -> None:
        self.model = model
        self.reader = reader
        self.limits = limits or BatchLimits()
        self.chunk_length = chunk_length
        self.embed_layer = embed_layer
        self.num_readers = max(1, num_readers)

    def run(
        self,
        utterances: Sequence[Utterance],
        store: EmbeddingStore,
        on_progress: Callable[[int, float], None] | None = None,
    ) -> Summary:
        """Embed ``utterances`` into ``store``.

        Args:
            utterances: distinct ids.
            store: knows what is done already; the caller finishes it.
            on_progress: called with the number of utterances and the seconds of audio since the last call.

        Raises:
            ValueError: two utterances have one id.
        """
        _check_distinct(utterances)
        started = time.perf_counter()
        done = store.done()
        todo = [u for u in utterances if u.id not in done]
        summary = Summary(skipped=len(utterances) - len(todo))
        report = on_progress or (lambda count, seconds: None)
        report(summary.skipped, 0.0)
        with ThreadPoolExecutor(self.num_readers) as pool:
            todo, durations = self._durations(pool, todo, summary, report)
            batches = group_by_length(durations, self.limits)
            summary.padded_share = padded_share(durations, batches)
            for batch, waves in self._read_ahead(pool, todo, batches):
                self._embed_batch(batch, waves, store, summary, report)
        store.flush()
        summary.wall_seconds = time.perf_counter() - started
        return summary

    def _durations(
        self, pool: ThreadPoolExecutor, todo: list[Utterance], summary: Summary, report: Callable[[int, float], None]
    ) -> tuple[list[Utterance], list[float]]:
        kept, durations = [], []
        for utterance, result in zip(todo, pool.map(self._duration, todo), strict=True):
            if isinstance(result, str):
                summary.failures.append((utterance.id, result))
                report(1, 0.0)
            else:
                kept.append(utterance)
                durations.append(result)
        return kept, durations

    def _duration(self, utterance: Utterance) -> float | str:
        if utterance.duration is not None and utterance.duration > 0:
            return float(utterance.duration)
        try:
            info = self.reader.info(utterance.source, id=utterance.id)
        except _FAILURES as error:
            return _reason(error, utterance.id)
        return max(0.0, info.num_samples / info.sample_freq - utterance.start)

    def _read_ahead(
        self, pool: ThreadPoolExecutor, utterances: Sequence[Utterance], batches: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[Utterance], list[np.ndarray | str]]]:
        """Yield batches with their audio (or the reason why there is none), reading a few batches ahead."""
        waiting: deque[tuple[list[Utterance], list[Future[np.ndarray | str]]]] = deque()
        for batch in batches:
            items = [utterances[i] for i in batch]
            waiting.append((items, [pool.submit(self._read, item) for item in items]))
            if len(waiting) > _BATCHES_AHEAD:
                ready, futures = waiting.popleft()
                yield ready, [future.result() for future in futures]
        for ready, futures in waiting:
            yield ready, [future.result() for future in futures]

    def _read(self, utterance: Utterance) -> np.ndarray | str:
        try:
            return self.reader.read(utterance.source, utterance.start, utterance.duration, utterance.id).audio
        except _FAILURES as error:
            return _reason(error, utterance.id)

    def _embed_batch(
        self,
        batch: Sequence[Utterance],
        waves: Sequence[np.ndarray | str],
        store: EmbeddingStore,
        summary: Summary,
        report: Callable[[int, float], None],
    ) -> None:
        good = []
        for utterance, wave in zip(batch, waves, strict=True):
            if isinstance(wave, str):
                summary.failures.append((utterance.id, wave))
            elif len(wave) < self.model.min_samples:
                summary.failures.append((utterance.id, self._too_short(wave)))
            else:
                good.append((utterance, wave))
        if good:
            self._embed(good, store, summary)
        report(len(batch), sum(len(w) for _, w in good) / self.model.sample_frequency)

    def _too_short(self, wave: np.ndarray) -> str:
        rate, least = self.model.sample_frequency, self.model.min_samples
        return f"too short: {len(wave)} samples at {rate:g} Hz, the model needs {least}"

    def _embed(self, good: list[tuple[Utterance, np.ndarray]], store: EmbeddingStore, summary: Summary) -> None:
        try:
            vectors = self._forward([wave for _, wave in good])
        except (ValueError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not _is_out_of_memory(error):
                raise
            if len(good) == 1:
                summary.failures.append((good[0][0].id, _reason(error, good[0][0].id)))
            else:
                # one item spoils the batch: find out which
                for item in good:
                    self._embed([item], store, summary)
            return
        finite = np.isfinite(vectors).all(axis=1)
        for (utterance, wave), ok in zip(good, finite, strict=True):
            if not ok:
                summary.failures.append((utterance.id, "the embedding is not finite"))
            else:
                if not wave.any():
                    summary.silent.append(utterance.id)
                summary.written += 1
                summary.audio_seconds += len(wave) / self.model.sample_frequency
        store.add([u.id for (u, _), ok in zip(good, finite, strict=True) if ok], vectors[finite])

    @torch.inference_mode()
    def _forward(self, waves: list[np.ndarray]) -> np.ndarray:
        device = self.model.device
        tensors = [torch.from_numpy(wave) for wave in waves]
        lengths = torch.tensor([len(wave) for wave in waves])
        x = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
        embeddings = self.model.extract_embed(
            x.to(device), x_lengths=lengths.to(device), chunk_length=self.chunk_length, embed_layer=self.embed_layer
        )
        return embeddings.float().cpu().numpy()


def _is_out_of_memory(error: RuntimeError) -> bool:
    # the CPU's allocator has no error class of its own
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _reason(error: BaseException, id: str) -> str:
    if isinstance(error, RuntimeError) and _is_out_of_memory(error):
        return "not enough memory for it in one piece; use a chunk length (--chunk-length 60)"
    text = " ".join(str(error).split()) or type(error).__name__
    # the report has the id in front already
    return text.removeprefix(f"{id!r}: ")


def _check_distinct(utterances: Sequence[Utterance]) -> None:
    seen: set[str] = set()
    for utterance in utterances:
        if utterance.id in seen:
            raise ValueError(f"the id {utterance.id!r} occurs twice in the input; ids must be distinct")
        seen.add(utterance.id)
