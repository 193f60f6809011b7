"""The command-line parser of the package: jsonargparse plus near misses, dashes for underscores, and no abbreviation."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import jsonargparse

from hyperion_lite.core.config import nearest

_QUOTED = re.compile(r"(?:[Kk]ey|[Oo]ption|[Aa]rgument)[s]?:? ['\"]([\w.]+)['\"]|--([\w.-]+)")


class ArgumentParser(jsonargparse.ArgumentParser):
    """``jsonargparse.ArgumentParser`` whose mistakes are easy to mend.

    ``--frame-shift`` and ``--frame_shift`` are the same option; an option is never completed from a prefix; an unknown option or
    configuration key is reported with the nearest known one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def option_names(self) -> list[str]:
        """Names of all options, without dashes."""
        return [action.dest for action in self._actions if action.option_strings]

    def _normalise(self, args: Sequence[str]) -> list[str]:
        known = set(self._option_string_actions)
        normalised: list[str] = []
        for index, token in enumerate(args):
            if token == "--":
                return normalised + list(args[index:])
            name, equals, value = token.partition("=")
            if token.startswith("--") and name not in known:
                candidate = "--" + name[2:].replace("-", "_")
                # a dotted key of a mapping is an option of its first known parent
                parents = [candidate.rsplit(".", n)[0] for n in range(candidate.count(".") + 1)]
                if any(parent in known for parent in parents):
                    name = candidate
            normalised.append(name + equals + value)
        return normalised

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> jsonargparse.Namespace:  # type: ignore[override]
        """As in ``jsonargparse``, after dashes in option names have become underscores."""
        return super().parse_args(self._normalise(sys.argv[1:] if args is None else args), *rest, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> Any:  # type: ignore[override]
        """Report ``message`` with the nearest known option where it names an unknown one."""
        names = self.option_names()
        for match in _QUOTED.finditer(message):
            name = (match.group(1) or match.group(2)).replace("-", "_")
            if name not in names:
                hint = nearest(name, names)
                if hint:
                    message = f"{message}{hint}"
                    break
        return super().error(message, ex)
