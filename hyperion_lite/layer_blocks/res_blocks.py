"""The residual blocks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.layer_blocks.res2net_block import Res2BasicBlock, Res2BottleneckBlock
from hyperion_lite.layer_blocks.res_block import BasicBlock, BlockSpec, BottleneckBlock, ResBlock


@dataclass(frozen=True)
class BlockKind:
    """A name of a block.

    Attributes:
        block_class: builds the block.
        se: whether the name means a block with squeeze-excitation.
        bottleneck: whether 2-D blocks have four times their width as output channels.
    """

    block_class: Callable[[BlockSpec], ResBlock]
    se: bool
    bottleneck: bool


_BLOCKS: Mapping[str, tuple[Callable[[BlockSpec], ResBlock], bool]] = {
    "basic": (BasicBlock, False),
    "bn": (BottleneckBlock, True),
    "res2basic": (Res2BasicBlock, False),
    "res2bn": (Res2BottleneckBlock, True),
}

BLOCK_KINDS: Mapping[str, BlockKind] = {
    f"{'se' if se else ''}{name}": BlockKind(block_class, se, bottleneck)
    for name, (block_class, bottleneck) in _BLOCKS.items()
    for se in (False, True)
}
"""``basic``, ``bn``, ``res2basic``, ``res2bn`` and the same with ``se`` in front."""


def block_kind(name: str) -> BlockKind:
    """The kind called ``name``.

    Raises:
        ValueError: unknown; lists the known names.
    """
    if name not in BLOCK_KINDS:
        raise ValueError(unknown_choice("residual block", name, BLOCK_KINDS))
    return BLOCK_KINDS[name]


def make_block(name: str, spec: BlockSpec) -> ResBlock:
    """A block by name. ``spec.se_type`` is used for names with ``se`` only; there ``None`` means ``cw-se``.

    Raises:
        ValueError: unknown name, or a specification that cannot be built.
    """
    kind = block_kind(name)
    return kind.block_class(replace(spec, se_type=(spec.se_type or "cw-se") if kind.se else None))
