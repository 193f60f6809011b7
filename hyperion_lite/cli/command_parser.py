"""The parser of commands with a fixed list of options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hyperion_lite.core.config import nearest


class CommandParser(argparse.ArgumentParser):
    """``argparse.ArgumentParser`` whose mistakes are easy to mend.

    ``--model-name`` and ``--model_name`` are the same option; an option is never completed from a prefix; an unknown one is reported
    with the nearest known one, before anything that is missing because of it. Parsers of subcommands are of this class too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """As in ``argparse``, after options have got the spelling in which they were defined."""
        if args is not None and self._subparsers is None:
            args = self._in_own_spelling(args)
        return super().parse_known_args(args, namespace)

    def _in_own_spelling(self, args: Sequence[str]) -> list[str]:
        known = {name.replace("_", "-"): name for name in self._option_string_actions}
        spelt: list[str] = []
        for index, token in enumerate(args):
            if token == "--":
                return [*spelt, *args[index:]]
            name, equals, value = token.partition("=")
            if name.startswith("--"):
                found = known.get(name.replace("_", "-"))
                if found is None:
                    self.error(f"unknown option {name}{nearest(name, self._option_string_actions)}")
                name = found
            spelt.append(name + equals + value)
        return spelt
