"""States of schedules: do they fit, and what do they change."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

logger = logging.getLogger(__name__)


def check_state_keys(what: str, state: Mapping[str, Any], expected: Collection[str]) -> str | None:
    """``None`` when ``state`` has exactly the ``expected`` keys, else a sentence that names the difference."""
    missing, unknown = sorted(set(expected) - set(state)), sorted(set(state) - set(expected))
    if not missing and not unknown:
        return None
    parts = [f"lacks {', '.join(missing)}"] if missing else []
    parts += [f"has {', '.join(unknown)}, which {what} does not know"] if unknown else []
    return f"the state of a schedule does not fit {what}: it {' and '.join(parts)}."


def report_changes(schedule: object, state: Mapping[str, Any], keys: Collection[str]) -> None:
    """Log which options of ``schedule`` a saved ``state`` replaces by other values."""
    changed = [key for key in keys if getattr(schedule, key) != state[key]]
    if changed:
        logger.warning(
            "%s goes on with the saved options instead of the configured ones: %s",
            type(schedule).__name__,
            ", ".join(f"{key} {state[key]!r} (configured {getattr(schedule, key)!r})" for key in changed),
        )
