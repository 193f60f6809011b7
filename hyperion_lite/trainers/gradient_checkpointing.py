"""Less memory for more time: the activations of a network's blocks are computed again in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.layer_stack import repeated_blocks


def enable_gradient_checkpointing(model: nn.Module) -> int:
    """Make every repeated block of ``model`` forget its activations in training.

    The result is that of the plain network: random numbers are drawn again from the same state, and buffers (batch statistics) are
    moved once only.

    Returns:
        The number of blocks.

    Raises:
        ConfigError: the model has no repeated blocks.
    """
    blocks = repeated_blocks(model)
    if not blocks:
        raise ConfigError(
            f"gradient_checkpointing: {type(model).__name__} has no repeated blocks (entries of a ModuleList)"
        )
    for block in blocks:
        block.forward = functools.partial(_checkpointed, block, block.forward)  # type: ignore[method-assign]
    return len(blocks)


def _checkpointed(block: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _unmoved_buffers(block)

    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


@contextmanager
def _unmoved_buffers(block: nn.Module) -> Iterator[None]:
    buffers = [b for b in block.buffers() if b.numel()]
    copies = [b.detach().clone() for b in buffers]
    try:
        yield
    finally:
        for buffer, copy in zip(buffers, copies, strict=True):
            # through .data: the graph has saved these tensors, and their values are as they were
            buffer.data.copy_(copy)
