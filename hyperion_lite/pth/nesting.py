"""Keeps chains of containers short that Python frees recursively, on the C stack.

Lists, tuples, dictionaries and instances of Python classes are freed by a queue, however deep they are nested.
Deques, default dictionaries and slices are not: a chain of some 100,000, each inside the one before, ends the process when
it is freed, no matter whether the file is refused. Contents arrive in any order, so depth is not known while a pickle
runs; but every container in the middle of a chain both holds such a container and is held by one, and those are counted.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

from hyperion_lite.pth.errors import PthLimitError

_MAX_LINKS = 200
_FREED_RECURSIVELY = (deque, defaultdict, slice)


def _is_risky(value: Any) -> bool:
    kind = type(value)
    return kind in _FREED_RECURSIVELY or (kind.__module__ == "numpy" and kind.__name__ == "ndarray")


class NestingGuard:
    """Counts the middle links of chains of containers that are freed recursively."""

    __slots__ = ("_holders", "_inner", "_links")

    def __init__(self) -> None:
        self._inner: set[int] = set()
        self._holders: set[int] = set()
        self._links: set[int] = set()

    def add(self, container: Any, values: Iterable[Any]) -> None:
        """Note that `container`, which is freed recursively, receives `values`.

        Raises:
            PthLimitError: too many links.
        """
        for value in values:
            if _is_risky(value):
                self._inner.add(id(value))
                self._holders.add(id(container))
                for key in (id(value), id(container)):
                    if key in self._inner and key in self._holders:
                        self._links.add(key)
                if len(self._links) > _MAX_LINKS:
                    raise PthLimitError(
                        f"more than {_MAX_LINKS} deques, default dictionaries or slices inside each other"
                    )
