"""Reads stretches of audio files: exact in samples, bounded in work, clear in its errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.audio_errors import AudioContentError, AudioRangeError, AudioRangeTooShortError
from hyperion_lite.data.audio_file import Allocate, AudioFile, AudioInfo, TruncatedPolicy
from hyperion_lite.data.resample import resample_part, resampled_length, source_range


class AudioData(NamedTuple):
    """Audio and its rate.

    Attributes:
        audio: (num_samples,) float32, full scale 1 times the reader's ``wav_scale``.
        sample_freq: in Hz.
    """

    audio: np.ndarray
    sample_freq: int


class AudioReader(Configurable):
    """Reads whole files and ranges of files: WAV, FLAC, Ogg, Opus, MP3, AIFF, SPHERE and Kaldi archives.

    Args:
        target_sample_freq: rate to convert to, in Hz; the file's own by default.
        channel_policy: for files of several channels: ``error``, ``mean``, or the index of the channel to take (from 0).
        wav_scale: factor on the samples, which are in -1 to 1.
        end_tolerance: seconds that a range may reach past the end of the recording; such a range is cut at the end.
        allow_pipes: run storage paths that are shell commands (``... |``).
        truncated: for a file whose header promises more samples than there are: ``error``, or ``accept`` what is there.
    """

    def __init__(
        self,
        target_sample_freq: int | None = None,
        channel_policy: Literal["error", "mean"] | int = "error",
        wav_scale: float = 1.0,
        end_tolerance: float = 0.02,
        allow_pipes: bool = False,
        truncated: TruncatedPolicy = "error",
    ) -> None:
        if target_sample_freq is not None and not (_is_number(target_sample_freq, Integral) and target_sample_freq > 0):
            raise ConfigError(f"target_sample_freq must be a positive whole number of Hz, found {target_sample_freq!r}")
        if not (channel_policy in ("error", "mean") or (type(channel_policy) is int and channel_policy >= 0)):
            raise ConfigError(f"channel_policy must be 'error', 'mean' or a channel index, found {channel_policy!r}")
        if not (_is_number(end_tolerance, Real) and end_tolerance >= 0):
            raise ConfigError(f"end_tolerance must be a number of seconds from 0 on, found {end_tolerance!r}")
        if not _is_number(wav_scale, Real):
            raise ConfigError(f"wav_scale must be a number, found {wav_scale!r}")
        if truncated not in ("error", "accept"):
            raise ConfigError(f"truncated must be 'error' or 'accept', found {truncated!r}")
        self.target_sample_freq = None if target_sample_freq is None else int(target_sample_freq)
        self.channel_policy = channel_policy
        self.wav_scale = float(wav_scale)
        self.end_tolerance = float(end_tolerance)
        self.allow_pipes = allow_pipes
        self.truncated: TruncatedPolicy = truncated

    def info(self, source: str | os.PathLike[str] | Mapping[str, Any], id: str | None = None) -> AudioInfo:
        """Rate, length, channels and format of a file, from its header where the format has the length there.

        Raises:
            AudioReadError: not readable as audio.
        """
        path, id, _ = _locate(source, id)
        with AudioFile(path, id, self.allow_pipes, self.truncated) as file:
            return file.info

    def read(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any],
        start: float = 0.0,
        duration: float | None = None,
        id: str | None = None,
        *,
        end: float | None = None,
        allocate: Allocate | None = None,
    ) -> AudioData:
        """Read a range of a file.

        The range starts at sample ``round(start * rate)`` and has ``round(duration * rate)`` samples, at the rate that is returned.
        Where the two roundings together reach one sample past the end, the range starts one sample earlier.

        Args:
            source: a path, or a row of a recording manifest (``storage_path``, and optionally ``id``, ``sample_freq``, ``channel``).
            start: in seconds.
            duration: in seconds; ``None`` or NaN is to the end.
            id: recording or segment, for messages.
            end: instead of ``duration``, in seconds; -1 is the end of the recording.
            allocate: makes the array for a number of samples, where the samples can be read right into it (one channel, not
                resampled); whether the result is that array tells whether they were.

        Returns:
            Audio (num_samples,) float32 and its rate.

        Raises:
            AudioReadError: the file cannot be read; see its subclasses for missing, truncated and piped files.
            AudioRangeError: the range is empty, starts outside, or ends further past the recording than ``end_tolerance``.
            AudioContentError: no samples, NaN or infinity, several channels under the policy ``error``, or a rate other than
                the manifest's where no target rate is set.
        """
        path, id, row = _locate(source, id)
        with AudioFile(path, id, self.allow_pipes, self.truncated) as file:
            self._check_content(file, row)
            rate = self.target_sample_freq or file.sample_freq
            total = resampled_length(file.num_samples, file.sample_freq, rate)
            first, count = self._range(file, rate, total, start, duration, end)
            channel = row.get("channel")
            policy = self.channel_policy if channel is None or channel != channel else int(channel)
            if rate == file.sample_freq:
                audio = _one_channel(file.read(first, count, allocate), file, policy)
            else:
                where = source_range(first, count, file.num_samples, file.sample_freq, rate)
                part = _one_channel(file.read(where.start, where.stop - where.start), file, policy)
                audio = resample_part(part, where, count, file.sample_freq, rate)
        if self.wav_scale != 1.0:
            audio = np.multiply(audio, np.float32(self.wav_scale), out=audio if audio.flags.writeable else None)
        return AudioData(audio, rate)

    def _check_content(self, file: AudioFile, row: Mapping[str, Any]) -> None:
        if file.num_samples == 0:
            raise AudioContentError(
                file.path, f"holds 0 samples: a valid {file.format} file with no audio in it", file.id
            )
        expected = row.get("sample_freq")
        if self.target_sample_freq is None and expected and expected != file.sample_freq:
            raise AudioContentError(
                file.path,
                f"has {file.sample_freq} samples a second, the manifest says {expected}; correct the manifest or set "
                "target_sample_freq",
                file.id,
            )

    def _range(
        self, file: AudioFile, rate: int, total: int, start: float, duration: float | None, end: float | None
    ) -> tuple[int, int]:
        where = f"start {start}, duration {duration}" if end is None else f"start {start}, end {end}"
        whole = f"the recording lasts {total / rate:.6g} s"
        if not 0 <= start < float("inf"):
            raise AudioRangeError(file.path, f"{where}: the start must be a number of seconds from 0 on", file.id)
        if end is not None:
            if duration is not None:
                raise ValueError(f"{file.path}: give duration or end, not both")
            duration = None if end == -1 else end - start
        first = round(start * rate)
        if first >= total:
            raise AudioRangeError(file.path, f"{where}: starts at or past the end, {whole}", file.id)
        if duration is None or duration != duration:
            return first, total - first
        if not 0 < duration < float("inf"):
            raise AudioRangeError(file.path, f"{where}: the range is empty or reversed", file.id)
        count = round(duration * rate)
        if count == 0:
            raise AudioRangeTooShortError(file.path, f"{where}: shorter than one sample at {rate} Hz", file.id)
        excess = first + count - total
        if excess == 1 and first > 0 and start + duration <= total / rate + 0.5 / rate:
            return first - 1, count
        if excess > self.end_tolerance * rate + 1e-6:
            raise AudioRangeError(
                file.path,
                f"{where}: ends {excess / rate:.6g} s past the end, {whole} (tolerance {self.end_tolerance} s)",
                file.id,
            )
        return first, min(count, total - first)


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _locate(
    source: str | os.PathLike[str] | Mapping[str, Any], id: str | None
) -> tuple[str, str | None, Mapping[str, Any]]:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source), id, {}
    row_id = source.get("id")
    return str(source["storage_path"]), id if id is not None or row_id is None else str(row_id), source


def _one_channel(audio: np.ndarray, file: AudioFile, policy: str | int) -> np.ndarray:
    if isinstance(policy, int) and policy >= file.channels:
        raise AudioContentError(
            file.path, f"has {file.channels} channel(s), channel {policy} (from 0) was asked for", file.id
        )
    if audio.ndim == 1:
        return audio
    if file.channels == 1:
        return audio[:, 0]
    if policy == "error":
        raise AudioContentError(
            file.path, f"has {file.channels} channels; set channel_policy to 'mean' or to the index of one", file.id
        )
    if isinstance(policy, int):
        return np.ascontiguousarray(audio[:, policy])
    return np.ascontiguousarray(audio.mean(axis=1, dtype=np.float32))


__all__ = ["AudioData", "AudioInfo", "AudioReader"]
