"""One open audio file: what it is, how long it is, and bounded reads of it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
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
from hyperion_lite.data.audio_headers import DataExtent, PcmLayout, data_extent, read_head
from hyperion_lite.data.audio_kind import describe_bytes
from hyperion_lite.data.decoder import Decoder
from hyperion_lite.data.kaldi_io import FilePart, archive_position, audio_start, is_pipe, read_archive_item
from hyperion_lite.data.ogg_tail import exact_seek_limit

TruncatedPolicy = Literal["error", "accept"]
Allocate = Callable[[int], np.ndarray]
"""Gives an array for a number of samples (num_samples,), float32, contiguous."""

# libsndfile gives the largest integer where a stream does not say its length
_UNKNOWN_FRAMES = 1 << 60
_SCAN_BLOCK = 1 << 18
_LOWEST_RATE, _HIGHEST_RATE = 100, 10_000_000
# FLAC holds some thousands of samples of digital silence in a byte; more is a damaged length, and memory must not be taken for it
_SAMPLES_PER_BYTE = 10_000
# by these first bytes the decoder knows a file whatever its name is, and can take over the handle
_KNOWN_BY_CONTENT = (b"fLaC", b"OggS")
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
        self._start = 0
        self._seek_limit: int | None = None
        self._pcm: PcmLayout | None = None
        if is_pipe(path):
            self._open_pipe(allow_pipes)
        else:
            try:
                self._open()
            except BaseException:
                self.close()
                raise
        self._describe()

    def _describe(self) -> None:
        if self._sound is not None:
            self.sample_freq, self.channels = int(self._sound.samplerate), int(self._sound.channels)
            self.format = f"{self._sound.format}/{self._sound.subtype}"
            self.num_samples = self._count_frames()
        size = os.fstat(self._handle.fileno()).st_size if self._handle is not None else None
        reason = None
        if not _LOWEST_RATE <= self.sample_freq <= _HIGHEST_RATE:
            reason = f"says that it has {self.sample_freq} samples a second, which no audio has"
        elif size is not None and self.num_samples > size * _SAMPLES_PER_BYTE + _SCAN_BLOCK:
            reason = f"says that it has {self.num_samples} samples, more than its {size} bytes can hold"
        if reason is not None:
            self.close()
            raise AudioReadError(self.path, f"damaged header: the {self.format} file {reason}", self.id)

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

    def read(self, start: int, count: int, allocate: Allocate | None = None) -> np.ndarray:
        """Samples ``start ... start + count`` of all channels.

        Args:
            start: first sample.
            count: number of samples.
            allocate: makes the array of a file of one channel; by default it is a new one.

        Returns:
            (count,) for one channel, (count, channels) for several; float32, full scale 1.

        Raises:
            AudioTruncatedError: fewer samples could be decoded than the file promises.
            AudioContentError: NaN or infinity.
        """
        if self._pcm is not None:
            audio = self._read_pcm(self._pcm, start, count, allocate)
        elif self._array is not None:
            audio = self._array[start : start + count]
        else:
            try:
                self._go_to(start)
                out = allocate(count) if allocate is not None and self.channels == 1 else None
                audio = self._sound.read(count, dtype="float32", out=out)
                self._position = start + len(audio)
            except (soundfile.SoundFileError, RuntimeError) as error:
                raise self._undecodable(start, error) from error
        if len(audio) < count and self.truncated == "error":
            raise AudioTruncatedError(
                self.path,
                f"truncated or damaged: expected {self.num_samples} samples, found {start + len(audio)} ({self.format})",
                self.id,
            )
        if self.format.rpartition("/")[2] not in _CANNOT_HOLD_NAN:
            self._check_finite(audio, start)
        return audio

    def _go_to(self, start: int) -> None:
        if start == self._position:
            return
        if self._sound.seekable():
            reachable = min(start, self._exact_seek_limit()) if self.format.endswith("/VORBIS") else start
            if not reachable <= self._position <= start:
                self._position = self._sound.seek(reachable)
        # what cannot be reached by seeking (GSM 6.10, the end of Vorbis files) is reached by decoding what lies before
        while self._position < start:
            block = len(self._sound.read(min(_SCAN_BLOCK, start - self._position), dtype="float32"))
            if block == 0:
                return
            self._position += block

    def _exact_seek_limit(self) -> int:
        if self._handle is None:
            # the output of a command: short enough to decode from its start
            return 0
        if self._seek_limit is None:
            with open(self._handle.name, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._seek_limit = exact_seek_limit(file, size, self.num_samples, self._start)
        return self._seek_limit

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
        name = self.path if position is None else position.path
        with self._file_errors(name):
            self._handle = open(name, "rb", buffering=0, opener=_open_at_once)  # noqa: SIM115 - see close()
        status = os.fstat(self._handle.fileno())
        if stat.S_ISFIFO(status.st_mode):
            raise AudioReadError(self.path, "is a named pipe, not a file", self.id)
        if position is not None:
            if position.offset >= status.st_size:
                raise AudioReadError(self.path, "the offset is at or past the end of the archive", self.id)
            self._start = position.offset
            self._handle.seek(self._start)
            inside = audio_start(self._handle.read(6))
            if inside is None:
                self._array_from(*read_archive_item(position, self.id))
                return
            self._start += inside
        # before the decoder opens the file: in an archive both use one handle
        head = read_head(self._handle, self._start)
        extent = data_extent(self._handle, head, status.st_size, self._start)
        if extent is not None and extent.truncated and self.truncated == "error":
            raise self._truncated(extent)
        if extent is not None and extent.pcm is not None and extent.promised > 0:
            self._use_pcm(extent, extent.pcm)
            return
        # in an archive an unknown length has no end to be told by
        patch = extent.patch if extent is not None and position is None else None
        source = self.path if position is None and patch is None else FilePart(self._handle, self._start, patch)
        if source is self.path and head[:4] in _KNOWN_BY_CONTENT:
            self._handle.seek(0)
            source = self._handle.fileno()
        try:
            self._sound = Decoder(source, closefd=False)
        except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
            raise self._not_audio(error) from error

    def _use_pcm(self, extent: DataExtent, pcm: PcmLayout) -> None:
        # such samples need no decoder: reading them here gives the same numbers in half the time
        self._pcm = pcm
        self.sample_freq, self.channels = pcm.sample_freq, pcm.channels
        self.num_samples = min(extent.promised, extent.available) // extent.frame
        self.format = "WAV/PCM_16" if pcm.dtype == "<i2" else "WAV/FLOAT"

    def _read_pcm(self, pcm: PcmLayout, start: int, count: int, allocate: Allocate | None) -> np.ndarray:
        count = min(count, self.num_samples - start)
        raw = np.empty(count * pcm.channels, pcm.dtype)
        frame = raw.itemsize * pcm.channels
        self._handle.seek(self._start + pcm.offset + start * frame)
        view, filled = raw.view(np.uint8).data, 0
        while filled < len(view) and (got := self._handle.readinto(view[filled:])):
            filled += got
        samples = raw[: filled // frame * pcm.channels]
        if allocate is not None and pcm.channels == 1 and len(samples) == count:
            audio = allocate(count)
            audio[:] = samples
        else:
            audio = samples.astype(np.float32, copy=False)
        if pcm.dtype == "<i2":
            audio *= np.float32(1 / 32768)
        return audio if pcm.channels == 1 else audio.reshape(-1, pcm.channels)

    def _file_errors(self, path: str) -> _FileErrors:
        return _FileErrors(path, self)

    def _not_audio(self, error: Exception) -> AudioReadError:
        if isinstance(error, TypeError):
            return AudioReadError(self.path, "is headerless (raw) audio by its name; convert it to WAV first", self.id)
        size = os.fstat(self._handle.fileno()).st_size
        self._handle.seek(self._start)
        kind = describe_bytes(self._handle.read(4096), size - self._start)
        return AudioReadError(self.path, f"cannot be read as audio: it is {kind} ({_short(error)})", self.id)

    def _truncated(self, extent: DataExtent) -> AudioTruncatedError:
        return AudioTruncatedError(
            self.path,
            f"truncated: the header promises {extent.promised} bytes of samples ({extent.promised // max(1, extent.frame)} "
            f"blocks), the file holds {extent.available} ({extent.available // max(1, extent.frame)})",
            self.id,
        )

    def _undecodable(self, start: int, error: Exception) -> AudioReadError:
        # where the damage begins tells a cut file from a bad spot
        found = 0
        if self._handle is None:
            return AudioReadError(self.path, f"the output of the command cannot be decoded: {_short(error)}", self.id)
        try:
            with open(self._handle.name, "rb") as file, soundfile.SoundFile(FilePart(file, self._start)) as sound:
                while block := len(sound.read(4096, dtype="float32")):
                    found += block
        except (soundfile.SoundFileError, RuntimeError):
            return AudioTruncatedError(
                self.path,
                f"truncated or damaged: expected {self.num_samples} samples, found about {found} ({self.format}, {_short(error)})",
                self.id,
            )
        return AudioReadError(self.path, f"decoding failed at sample {start}: {_short(error)}", self.id)

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
            self._sound = Decoder(io.BytesIO(done.stdout))
        except (soundfile.SoundFileError, RuntimeError) as error:
            kind = describe_bytes(done.stdout[:4096], len(done.stdout))
            raise AudioReadError(self.path, f"the output of the command is not audio but {kind}", self.id) from error


def _open_at_once(path: str, flags: int) -> int:
    # without this flag, where there is one, opening a named pipe waits for a writer, perhaps for ever
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


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
        if isinstance(error, ValueError) and not isinstance(error, AudioReadError):
            # a NUL, or characters that this system's names cannot hold
            raise AudioReadError(repr(self.owner.path), f"is no name of a file: {error}", self.owner.id) from error


def _short(error: Exception) -> str:
    text = str(error).strip()
    return text.rsplit(": ", 1)[-1] if text else type(error).__name__
