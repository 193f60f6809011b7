"""The saved position of a sampler: what makes two samplers the same, and what to say when they are not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

STATE_VERSION = 1
PLAN_VERSION = 2
"""Raised whenever equal options make another plan than before: a position in the old one means nothing in the new one."""


def config_hash(document: Mapping[str, Any]) -> str:
    """Hash of a document of plain types, independent of the order of its keys."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check_state(state: Mapping[str, Any], document: Mapping[str, Any], what: str) -> None:
    """Refuse a state that is not a sampler's, or that another configuration wrote.

    Args:
        state: what :meth:`HyperSampler.state_dict` returned.
        document: the configuration of the sampler that is to continue.
        what: name of the sampler, for messages.

    Raises:
        ValueError: names what differs.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"this is not the state of a sampler but a {type(state).__name__}")
    missing = [key for key in ("epoch", "batch", "config", "config_hash", "limits", "world_size") if key not in state]
    if missing:
        raise ValueError(
            f"this is not the state of a sampler: {', '.join(missing)} missing (it has {', '.join(map(str, state))})"
        )
    if int(state.get("version", 0)) > STATE_VERSION:
        raise ValueError(
            f"the sampler state has version {state['version']}, this release reads up to {STATE_VERSION}; update it"
        )
    for key in ("config", "limits"):
        if not isinstance(state[key], Mapping):
            raise ValueError(f"this is not the state of a sampler: {key} is {state[key]!r}")
    if state["config_hash"] == config_hash(document):
        return
    raise ValueError(
        f"the saved position belongs to another {what}: {_difference(state['config'], document)}. Resume with the configuration and "
        "manifest of the interrupted run, or start a new epoch without the sampler's state"
    )


def _difference(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    parts = [
        f"{key} was {saved.get(key)!r} and is {current.get(key)!r}"
        for key in sorted({*saved, *current})
        if saved.get(key) != current.get(key)
    ]
    return "; ".join(parts) or "its recorded configuration was altered"
