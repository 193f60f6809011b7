"""Counter-based randomness: what is drawn for an item depends on the item, never on who draws it or when.

There is no random state to save, restore or hand to a worker. Whoever needs random numbers names what they are for, and gets a fresh
generator; the same name gives the same numbers in every process.
"""

from __future__ import annotations

import hashlib

import numpy as np

_MASK = (1 << 64) - 1


def item_key(seed: int, epoch: int, item_id: str, occurrence: int = 0, stream: str = "") -> int:
    """128-bit integer that identifies one draw; equal arguments give equal keys on every machine and Python version.

    Args:
        seed: of the experiment; any integer.
        epoch: pass over the data.
        item_id: segment (or other) id.
        occurrence: how often the item came before in the same epoch.
        stream: what the numbers are for ("noise", "plan"), so that two purposes never share numbers.
    """
    head = f"{int(seed)},{int(epoch)},{int(occurrence)},{len(stream)}:"
    # The length of the stream name is part of the text: ("ab", "c") and ("a", "bc") are different draws.
    text = head + stream + item_id
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"hyperion-lite")
    return int.from_bytes(digest.digest(), "little")


def item_rng(seed: int, epoch: int, item_id: str, occurrence: int = 0, stream: str = "") -> np.random.Generator:
    """A generator whose numbers are a function of the arguments alone (Philox keyed with :func:`item_key`).

    Args:
        seed: of the experiment; any integer.
        epoch: pass over the data.
        item_id: segment (or other) id.
        occurrence: how often the item came before in the same epoch.
        stream: what the numbers are for.
    """
    key = item_key(seed, epoch, item_id, occurrence, stream)
    return np.random.Generator(np.random.Philox(key=np.array([key & _MASK, key >> 64], dtype=np.uint64)))


def item_uniform(seed: int, epoch: int, item_id: str, occurrence: int = 0, stream: str = "") -> float:
    """One number in [0, 1) for the arguments; cheaper than a generator where a single draw is enough."""
    return (item_key(seed, epoch, item_id, occurrence, stream) >> 75) * 2.0**-53
