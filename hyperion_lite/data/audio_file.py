"""One open audio file: what it is, how long it is, and bounded reads of it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import soundfile

from hyperion_lite.data.audio_errors import (
    AudioContentError,
    AudioMissingError,
    AudioReadError,
    AudioTruncatedError,
    PipeRefusedError,
)
from hyperion_lite.data.audio_headers import data_extent
from hyperion_lite.data.audio_kind import describe_bytes, describe_file
from hyperion_lite.data.kaldi_io import ArchiveAudio, archive_position, is_pipe, read_archive_item, starts_like_audio

TruncatedPolicy = Literal["error", "accept"]

# libsndfile gives the largest integer where a stream does not say its length
_UNKNOWN_FRAMES = 1 << 60
_SCAN_BLOCK = 1 << 18
_HEADER_CHECKED = frozenset({"WAV", "WAVEX", "RF64", "AIFF", "AU", "NIST"})
_CANNOT_HOLD_NAN = frozenset({"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "ULAW", "ALAW"})


@dataclass(frozen=True)
class AudioInfo:
    """What a file says about itself.

    Attributes:
        sample_freq: in Hz.
        num_samples: per channel.
        channels: number of channels.
        duration: in seconds.
        format: container and sample type, as ``"WAV/PCM_16"``.
    """

    sample_freq: int
    num_samples: int
    channels: int
    duration: float
    format: str


class AudioFile:
    """An open audio file. Use as a context manager.

    Args:
        path: a file, ``archive.ark:offset``, or a pipe.
        id: recording or segment, for messages.
        allow_pipes: run a path that ends in ``|`` as a shell command.
        truncated: what to do when the header promises more samples than there are.

    Raises:
        AudioReadError: cannot be opened as audio; says what the file really is. Subclasses tell missing files, truncated files and
            refused pipes apart.
    """

    def __init__(
        self, path: str, id: str | None = None, allow_pipes: bool = False, truncated: TruncatedPolicy = "error"
    ) -> None:
        self.path, self.id, self.truncated = path, id, truncated
        self.sample_freq: int = 0
        self.channels: int = 0
        self.num_samples: int = 0
        self.format: str = ""
        self._handle: Any = None
        self._sound: Any = None
        self._array: np.ndarray | None = None
        self._position = 0
        if is_pipe(path):
            self._open_pipe(allow_pipes)
        else:
            try:
                self._open()
            except BaseException:
                self.close()
                raise
        if self._sound is not None:
            self.sample_freq, self.channels = int(self._sound.samplerate), int(self._sound.channels)
            self.format = f"{self._sound.format}/{self._sound.subtype}"
            self.num_samples = self._count_frames()

    def __enter__(self) -> AudioFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        for handle in (self._sound, self._handle):
            if handle is not None:
                handle.close()

    @property
    def info(self) -> AudioInfo:
        """Length, rate and format."""
        return AudioInfo(
            self.sample_freq, self.num_samples, self.channels, self.num_samples / self.sample_freq, self.format
        )

    def read(self, start: int, count: int) -> np.ndarray:
        """Samples ``start ... start + count`` of all channels.

        Returns:
            (count,) for one channel, (count, channels) for several; float32, full scale 1.

        Raises:
            AudioTruncatedError: fewer samples could be decoded than the file promises.
            AudioContentError: NaN or infinity.
        """
        if self._array is not None:
            audio = self._array[start : start + count]
        else:
            try:
                self._go_to(start)
                audio = self._sound.read(count, dtype="float32")
                self._position = start + len(audio)
            except (soundfile.SoundFileError, RuntimeError) as error:
                raise AudioReadError(self.path, f"decoding failed at sample {start}: {error}", self.id) from error
        if len(audio) < count and self.truncated == "error":
            raise AudioTruncatedError(
                self.path,
                f"truncated or damaged: expected {self.num_samples} samples, found {start + len(audio)} ({self.format})",
                self.id,
            )
        if not (self._sound is not None and self._sound.subtype in _CANNOT_HOLD_NAN):
            self._check_finite(audio, start)
        return audio

    def _go_to(self, start: int) -> None:
        if start == self._position:
            return
        if self._sound.seekable():
            self._sound.seek(start)
            return
        # GSM 6.10 and its like cannot seek: decode what lies before
        while self._position < start:
            block = len(self._sound.read(min(_SCAN_BLOCK, start - self._position), dtype="float32"))
            if block == 0:
                return
            self._position += block

    def _check_finite(self, audio: np.ndarray, start: int) -> None:
        # the sum tells without a temporary array; only a suspicious one is looked at sample by sample
        with np.errstate(over="ignore", invalid="ignore"):
            suspicious = not np.isfinite(audio.sum())
        if suspicious and not (finite := np.isfinite(audio)).all():
            first = int(np.argmin(finite.reshape(len(audio), -1).all(axis=1)))
            bad = int(finite.size - finite.sum())
            raise AudioContentError(
                self.path,
                f"holds NaN or infinity: {bad} of the samples read, the first at sample {start + first}",
                self.id,
            )

    def _open(self) -> None:
        position = archive_position(self.path)
        if position is not None:
            with self._file_errors(position.path):
                self._handle = open(position.path, "rb")  # noqa: SIM115 - closed by close()
            self._handle.seek(position.offset)
            if not starts_like_audio(self._handle.read(4)):
                self._array_from(*read_archive_item(position, self.id))
                return
            source: Any = ArchiveAudio(self._handle, position.offset)
            extent_start = position.offset
        else:
            with self._file_errors(self.path):
                self._handle = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
            source, extent_start = self.path, 0
        try:
            self._sound = soundfile.SoundFile(source)
        except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
            raise self._not_audio(extent_start, error) from error
        if self._sound.format in _HEADER_CHECKED and self.truncated == "error":
            self._check_extent(extent_start)

    def _file_errors(self, path: str) -> _FileErrors:
        return _FileErrors(path, self)

    def _not_audio(self, start: int, error: Exception) -> AudioReadError:
        if isinstance(error, TypeError):
            return AudioReadError(self.path, "is headerless (raw) audio by its name; convert it to WAV first", self.id)
        if start == 0:
            kind = describe_file(self.path)
        else:
            self._handle.seek(start)
            kind = describe_bytes(self._handle.read(4096), 1)
        return AudioReadError(self.path, f"cannot be read as audio: it is {kind} ({_short(error)})", self.id)

    def _check_extent(self, start: int) -> None:
        size = os.fstat(self._handle.fileno()).st_size
        extent = data_extent(self._handle, size, start)
        if extent is not None and extent.truncated:
            raise AudioTruncatedError(
                self.path,
                f"truncated: the header promises {extent.promised} bytes of samples ({extent.promised // max(1, extent.frame)} "
                f"blocks), the file holds {extent.available} ({extent.available // max(1, extent.frame)})",
                self.id,
            )

    def _count_frames(self) -> int:
        frames = int(self._sound.frames)
        if 0 <= frames < _UNKNOWN_FRAMES:
            return frames
        count = 0
        while block := len(self._sound.read(_SCAN_BLOCK, dtype="float32")):
            count += block
        self._sound.seek(0)
        return count

    def _array_from(self, sample_freq: int | None, array: np.ndarray) -> None:
        if sample_freq is None:
            raise AudioReadError(
                self.path, f"is an array of shape {array.shape} without a sample rate, not audio", self.id
            )
        if np.issubdtype(array.dtype, np.integer):
            array = array.astype(np.float32) / (np.iinfo(array.dtype).max + 1.0)
        self._array = np.ascontiguousarray(array, np.float32)
        self.sample_freq, self.num_samples = sample_freq, len(array)
        self.channels = 1 if array.ndim == 1 else int(array.shape[1])
        self.format = "ARK/AUDIO"

    def _open_pipe(self, allow_pipes: bool) -> None:
        if not allow_pipes:
            raise PipeRefusedError(
                self.path,
                "is a shell command, and running it was not allowed; write its output to a file, or pass allow_pipes=True if you "
                "trust the manifest",
                self.id,
            )
        import io

        command = self.path.strip().rstrip("|")
        done = subprocess.run(command, shell=True, capture_output=True, check=False)
        if done.returncode != 0:
            message = done.stderr.decode("utf-8", "replace").strip()[-200:]
            raise AudioReadError(self.path, f"the command ended with code {done.returncode}: {message}", self.id)
        try:
            self._sound = soundfile.SoundFile(io.BytesIO(done.stdout))
        except (soundfile.SoundFileError, RuntimeError) as error:
            kind = describe_bytes(done.stdout[:4096], len(done.stdout))
            raise AudioReadError(self.path, f"the output of the command is not audio but {kind}", self.id) from error


class _FileErrors:
    """Turns errors of the operating system into ours."""

    def __init__(self, path: str, owner: AudioFile) -> None:
        self.path, self.owner = path, owner

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise AudioMissingError(self.owner.path, "no such file", self.owner.id) from error
        if isinstance(error, OSError):
            reason = "is a folder" if os.path.isdir(self.path) else f"cannot be opened: {error.strerror or error}"
            raise AudioReadError(self.owner.path, reason, self.owner.id) from error


def _short(error: Exception) -> str:
    text = str(error).strip()
    return text.rsplit(": ", 1)[-1] if text else type(error).__name__
