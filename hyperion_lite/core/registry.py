"""Classes by name, for what is built from a ``class_name`` in a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.errors import UnknownClassError

_C = TypeVar("_C", bound=type)


class Registry(Generic[_C]):
    """Maps a class name to one class.

    Args:
        kind: what is registered, for messages ("model", "architecture").
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, _C] = {}

    def register(self, cls: _C, name: str | None = None) -> _C:
        """Add ``cls`` under its name. The same definition may be registered again (a reloaded module).

        Raises:
            ValueError: another class has that name; names both.
        """
        name = name or cls.__name__
        other = self._classes.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"two different {self.kind} classes have the name {name!r}: {other.__module__}.{other.__qualname__} and "
                f"{cls.__module__}.{cls.__qualname__}; rename one of them"
            )
        self._classes[name] = cls
        return cls

    def get(self, name: str) -> _C:
        """The class called ``name``.

        Raises:
            UnknownClassError: a ``KeyError``; lists the known names.
        """
        if name not in self._classes:
            raise UnknownClassError(unknown_choice(f"{self.kind} class", name, sorted(self._classes)))
        return self._classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))
