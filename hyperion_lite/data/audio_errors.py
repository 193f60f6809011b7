"""What can be wrong with an audio file, by kind. All are :class:`~hyperion_lite.core.errors.AudioFileError`."""

from __future__ import annotations

from hyperion_lite.core.errors import AudioFileError


class AudioReadError(AudioFileError):
    """An audio file cannot be read; base of the errors below.

    Attributes:
        file: the file as the caller named it.
        id: the recording or segment that asked for it, or ``None``.
        reason: what is wrong, without the file's name; empty where ``file`` is a whole message, as when torch's loader rebuilds an
            error of a worker process.
    """

    def __init__(self, file: object, reason: str = "", id: str | None = None) -> None:
        self.file = str(file)
        self.id = None if id is None else str(id)
        self.reason = reason
        who = f"{self.id!r}: " if self.id is not None else ""
        super().__init__(f"{who}{self.file}: {reason}" if reason else f"{who}{self.file}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str | None]]:
        # the arguments of the constructor are not those of Exception: errors cross process borders in data loaders
        return type(self), (self.file, self.reason, self.id)


class AudioMissingError(AudioReadError, FileNotFoundError):
    """The file does not exist."""

    def __str__(self) -> str:
        return str(self.args[0])


class AudioRangeError(AudioReadError):
    """The requested range is not inside the recording."""


class AudioRangeTooShortError(AudioRangeError):
    """The requested range is shorter than one sample."""


class AudioTruncatedError(AudioReadError):
    """The header promises more samples than the file holds."""


class AudioContentError(AudioReadError):
    """The samples cannot be used: none at all, NaN or infinity, more channels than the policy accepts, another sample rate."""


class PipeRefusedError(AudioReadError):
    """The storage path is a shell command, which is run only where that was allowed."""
