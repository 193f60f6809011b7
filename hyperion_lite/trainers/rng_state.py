"""The random states that training draws from, per rank, as tensors on the CPU.

The random numbers of the data do not depend on these: they are drawn by item. These are for dropout, dither and SpecAugment.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

logger = logging.getLogger(__name__)


def seed_generators(seed: int) -> None:
    """Seed the generators of this process: torch's, Python's and numpy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def collect_rng_state(device: torch.device) -> dict[str, Any]:
    """State of the generators of this process: torch's CPU one, the device's, Python's and numpy's. Loads with ``weights_only``."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # type: ignore[misc]
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, torch.tensor(internal, dtype=torch.int64), gauss],
        "numpy": [
            name,
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def apply_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Continue from :func:`collect_rng_state`. Generators without a stored state are left alone."""
    torch.set_rng_state(state["torch"].to("cpu", torch.uint8))
    if "python" in state:
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(int(v) for v in internal.tolist()), gauss))
    if "numpy" in state:
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    if device.type == "cuda":
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"].to("cpu", torch.uint8), device)
        else:
            # saved without a GPU: a stream that differs from rank to rank as the CPU's do
            with torch.cuda.device(device):
                torch.cuda.manual_seed(_draw_seed(state["torch"]))


@contextmanager
def kept_rng_state(device: torch.device) -> Iterator[None]:
    """What is drawn inside does not change what is drawn afterwards."""
    state = collect_rng_state(device)
    try:
        yield
    finally:
        apply_rng_state(state, device)


def pack_rng_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The document of ``rng_state.pth``: the states of all ranks, in rank order."""
    return {"format": 1, "ranks": [dict(state) for state in states]}


def state_of_rank(document: Any, rank: int) -> dict[str, Any]:
    """The state of one rank out of ``rng_state.pth``.

    Args:
        document: what the file holds; the original toolkit stores one tensor, torch's CPU state.
        rank: a rank that the file does not know gets a stream of its own, derived from that of rank 0.

    Raises:
        ValueError: neither form.
    """
    if isinstance(document, torch.Tensor):
        states: list[dict[str, Any]] = [{"torch": document}]
    elif isinstance(document, Mapping) and isinstance(document.get("ranks"), list) and document["ranks"]:
        states = document["ranks"]
    else:
        raise ValueError(f"random states must be a tensor or states by rank, this is a {type(document).__name__}")
    if rank < len(states):
        return states[rank]
    logger.info("there is no stored random state of rank %d; it gets one derived from that of rank 0", rank)
    seed = _draw_seed(states[0]["torch"], rank)
    return {"torch": torch.Generator().manual_seed(seed).get_state()}


def _draw_seed(state: torch.Tensor, number: int = 0) -> int:
    """Seed number ``number`` out of a stored CPU state, which is not changed."""
    base = torch.Generator()
    base.set_state(state.to("cpu", torch.uint8))
    return int(torch.randint(2**62, (number + 1,), generator=base)[-1])
