"""Tensors chosen by name: globs, a dotted prefix, and what is left of groups of names."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

Patterns = str | Iterable[str] | None


def glob_list(patterns: Patterns) -> list[str] | None:
    """One glob or several as a list; None stays None."""
    if patterns is None:
        return None
    return [patterns] if isinstance(patterns, str) else list(patterns)


def matches(name: str, globs: Iterable[str] | None) -> bool:
    """Whether ``name`` matches one of ``globs``; upper and lower case differ, ``*`` matches dots too."""
    return any(fnmatchcase(name, glob) for glob in globs or ())


def select_names(
    names: Iterable[str], include: Patterns = None, exclude: Patterns = None, prefix: str = ""
) -> list[str]:
    """Return the names below ``prefix`` that match a glob of ``include`` (None: all) and none of ``exclude``, in order.

    Raises:
        ValueError: nothing is left, or a glob of ``include`` matches no name.
    """
    known = [name for name in names if not prefix or name.startswith(f"{prefix}.")]
    if prefix and not known:
        raise ValueError(f"no tensor name begins with {prefix + '.'!r}; `hyperion-lite pth list` shows the names")
    wanted, unwanted = glob_list(include), glob_list(exclude)
    for glob in wanted or ():
        if not any(fnmatchcase(name, glob) for name in known):
            raise ValueError(f"no tensor name matches {glob!r}; `hyperion-lite pth list` shows the names")
    selected = [name for name in known if (wanted is None or matches(name, wanted)) and not matches(name, unwanted)]
    if not selected:
        raise ValueError("no tensor is selected" if known else "the file holds no tensor")
    return selected


def groups_within(groups: Iterable[list[str]], names: Iterable[str]) -> list[list[str]]:
    """``groups`` reduced to ``names``; those that keep fewer than two are left out."""
    chosen = set(names)
    reduced = ([name for name in group if name in chosen] for group in groups)
    return [group for group in reduced if len(group) > 1]
