"""The error classes that users of the package meet.

Every class is also the built-in exception a caller would expect, so that ``except ValueError`` keeps working.
"""

from __future__ import annotations


class HyperionLiteError(Exception):
    """Base class of the errors raised on purpose by this package."""


class ConfigError(HyperionLiteError, ValueError):
    """A configuration has an unknown, missing or ill-typed key."""


class UnknownClassError(HyperionLiteError, KeyError):
    """A configuration or file names a class that nobody registered."""

    def __str__(self) -> str:
        # KeyError shows the representation of its argument, with quotes and escapes
        return str(self.args[0]) if self.args else ""


class ModelFileError(HyperionLiteError, ValueError):
    """A model file or directory cannot be used: wrong content, wrong class, wrong tensors."""


class LengthsError(HyperionLiteError, ValueError):
    """Lengths or a mask do not fit the batch they describe."""


class TooShortError(LengthsError):
    """An item of a batch is below the minimum length of a model.

    Attributes:
        index: index of the item in the batch.
        length: its length.
        minimum: the smallest accepted length, in the same unit.
    """

    def __init__(self, message: str, index: int, length: int, minimum: int) -> None:
        super().__init__(message)
        self.index = index
        self.length = length
        self.minimum = minimum


class AudioFileError(HyperionLiteError, ValueError):
    """An audio file cannot be read or does not hold what its manifest says."""


class ManifestError(HyperionLiteError, ValueError):
    """A manifest (recordings, segments, classes, trials) is inconsistent or malformed."""


class MissingDependencyError(HyperionLiteError, ImportError):
    """An optional dependency is missing or broken; the message holds the install line."""
