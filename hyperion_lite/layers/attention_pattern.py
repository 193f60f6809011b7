"""Which frames of an item attend to which, and the tensors that arrange a batch accordingly.

Local and block attention cut an item into blocks whose size follows from the item's length, so the blocks of the items of a batch
differ. Everything here is in positions counted from the first frame of the item, also when a batch holds a window out of the middle of
its items.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from hyperion_lite.core.config import unknown_choice
from hyperion_lite.core.padding import Padding, conv_out_length

ATT_TYPES = ("scaled-dot-prod-v1", "local-scaled-dot-prod-v1", "block-scaled-dot-prod-v1")


@dataclass(frozen=True)
class FramePositions:
    """Where the frames of a batch lie in the items they come from.

    Attributes:
        start: position of the first frame.
        item_lengths: frames of each whole item, also of what lies outside the batch.
    """

    start: int
    item_lengths: tuple[int, ...]

    def conv(self, kernel_size: int, stride: int, padding: int) -> FramePositions:
        """Positions after a convolution; ``start`` is a multiple of its stride."""
        lengths = (conv_out_length(length, kernel_size, stride, 1, padding) for length in self.item_lengths)
        return FramePositions(self.start // stride, tuple(lengths))


@dataclass(frozen=True)
class Blocks:
    """An item cut into ``count`` blocks of ``size`` frames, of which the last may be shorter."""

    size: int
    count: int


class AttentionPattern(ABC):
    """Which pairs of frames attend to each other.

    Attributes:
        reach: largest distance of such a pair in an item that is longer than twice the reach; ``None`` without a limit.
    """

    reach: int | None = None

    @abstractmethod
    def blocks(self, num_frames: int) -> Blocks:
        """The blocks of an item; a single block attends as a whole."""

    def key_span(self, size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For blocks of ``size``: how far before its block a frame may attend to, and over how many frames the keys of a block extend."""
        return torch.zeros_like(size), size

    def allows(self, i: torch.Tensor, j: torch.Tensor, size: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Whether positions ``i`` and ``j`` attend to each other, in items of ``count`` blocks of ``size``. All broadcast."""
        return torch.div(i, size, rounding_mode="floor") == torch.div(j, size, rounding_mode="floor")


class FullPattern(AttentionPattern):
    """All pairs."""

    def blocks(self, num_frames: int) -> Blocks:
        return Blocks(max(num_frames, 1), 1)


class BlockPattern(AttentionPattern):
    """Pairs in the same block: ``num_frames // context`` blocks of equal size.

    Args:
        context: smallest size of a block.
    """

    def __init__(self, context: int) -> None:
        self.context = context
        # with two blocks of an item of 3 * context - 1 frames
        self.reach = -(-(3 * context - 1) // 2) - 1

    def blocks(self, num_frames: int) -> Blocks:
        count = max(num_frames // self.context, 1)
        return Blocks(max(-(-num_frames // count), 1), count)


class LocalPattern(AttentionPattern):
    """Pairs in the same block, or in the same block of a second partition that is shifted by half a block.

    About ``num_frames / context`` blocks of equal size c. The shifted blocks lie at ``s + b c``, s = c // 2, between the first and the
    last block. Of the pairs of a shifted block, those among its first c - s positions and those among its last c - s count only if they
    are in one block of the first partition too: for an odd c, the last frame of a block does not attend to the next block.

    Args:
        context: typical size of a block.
        whole_up_to_two: whether items of up to two contexts attend as a whole; else those of less than one and a half, by rounding.
    """

    def __init__(self, context: int, whole_up_to_two: bool) -> None:
        self.context = context
        self.whole_up_to_two = whole_up_to_two
        # with two blocks of an item of 2.5 contexts
        self.reach = -(-5 * context // 4) - 1

    def blocks(self, num_frames: int) -> Blocks:
        # round() takes halves to the even number
        count = max(round(num_frames / self.context), 1)
        if self.whole_up_to_two and num_frames <= 2 * self.context:
            count = 1
        return Blocks(max(-(-num_frames // count), 1), count)

    def key_span(self, size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return size - size // 2, 2 * size

    def allows(self, i: torch.Tensor, j: torch.Tensor, size: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        shift = size // 2
        block_i, block_j = (torch.div(p - shift, size, rounding_mode="floor") for p in (i, j))
        local_i, local_j = i - shift - block_i * size, j - shift - block_j * size
        head, tail = size - shift, shift
        same_half = ((local_i < head) & (local_j < head)) | ((local_i >= tail) & (local_j >= tail))
        shifted = (block_i == block_j) & (block_i >= 0) & (block_i < count - 1) & ~same_half
        return super().allows(i, j, size, count) | shifted


def make_pattern(att_type: str, context: int, relative: bool) -> AttentionPattern:
    """The pattern of an attention type.

    Args:
        att_type: one of :data:`ATT_TYPES`.
        context: of local and block attention.
        relative: whether attention is by relative positions, which moves the length below which local attention takes an item as a whole.

    Raises:
        ValueError: unknown type; a context without size.
    """
    if att_type not in ATT_TYPES:
        raise ValueError(unknown_choice("att_type", att_type, ATT_TYPES))
    if context < 1:
        raise ValueError(f"att_context must be positive, got {context}")
    if att_type.startswith("local"):
        return LocalPattern(context, whole_up_to_two=not relative)
    return BlockPattern(context) if att_type.startswith("block") else FullPattern()


class AttentionPlan:
    """How a batch of frames is computed under a pattern. One plan serves all layers of a resolution.

    Args:
        pattern: which pairs attend.
        positions: where the frames lie in their items.
        padding: valid frames of the batch.
        num_frames: size of its time axis.
        device: where tensors go.
    """

    def __init__(
        self,
        pattern: AttentionPattern,
        positions: FramePositions,
        padding: Padding | None,
        num_frames: int,
        device: torch.device,
    ) -> None:
        self.num_frames = num_frames
        self.padding = padding
        blocks = [pattern.blocks(length) for length in positions.item_lengths]
        self.is_dense = all(part.count == 1 for part in blocks)
        self._layout = (pattern, blocks, positions, device)

    @cached_property
    def key_mask(self) -> torch.Tensor | None:
        """(batch, 1, 1, time) bool, True = a frame to attend to; ``None`` when all are. For the dense case."""
        return None if self.padding is None else self.padding.mask[:, None, None, :]

    @cached_property
    def blocks(self) -> BlockLayout:
        """The arrangement in blocks."""
        pattern, blocks, positions, device = self._layout
        # known here without waiting for the device: an item ends where it ends, or with the window
        valid = [min(length - positions.start, self.num_frames) for length in positions.item_lengths]
        return BlockLayout(pattern, blocks, valid, positions.start, self.num_frames, device)


class BlockLayout:
    """Indices that cut a batch into blocks of queries with their keys, and back. N is the batch size, or 1 if all items are alike.

    Args:
        pattern: which pairs attend.
        blocks: of each item.
        valid: valid frames of each item in the batch.
        start: position of the first frame.
        num_frames: size of the time axis.
        device: where tensors go.

    Attributes:
        queries: (N, blocks, C) frames of each block.
        keys: (N, blocks, W) the frames it attends to.
        mask: (N, blocks, C, W) bool, True = the pair attends. Rows that are not frames attend to everything, so that they stay finite.
        lead: (N,) how many frames before its block the keys of a block begin.
        inverse: (N, num_frames) place of each frame in the flattened (blocks, C).
    """

    def __init__(
        self,
        pattern: AttentionPattern,
        blocks: Sequence[Blocks],
        valid: Sequence[int],
        start: int,
        num_frames: int,
        device: torch.device,
    ) -> None:
        if len({*zip(blocks, valid, strict=True)}) == 1:
            blocks, valid = blocks[:1], valid[:1]
        first = [start // part.size for part in blocks]
        most = max((start + n - 1) // part.size + 1 - f for part, n, f in zip(blocks, valid, first, strict=True))

        sizes = torch.tensor([part.size for part in blocks])
        leads, widths = pattern.key_span(sizes)
        # sizes of axes come from the host, so that it does not wait for the device
        row = torch.arange(int(sizes.max()), device=device).view(1, 1, -1)
        place = torch.arange(int(widths.max()), device=device).view(1, 1, -1)

        def column(values: Sequence[int] | torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(values).to(device).view(-1, 1, 1)

        size, lead, width = column(sizes), column(leads), column(widths)
        count, end = column([part.count for part in blocks]), column(valid) + start
        begin = (column(first) + torch.arange(most, device=device).view(1, -1, 1)) * size
        i, j = begin + row, begin - lead + place
        is_query = (row < size) & (i >= start) & (i < end)
        is_key = (place < width) & (j >= start) & (j < end)
        allowed = pattern.allows(i.unsqueeze(-1), j.unsqueeze(-2), size.unsqueeze(-1), count.unsqueeze(-1))
        self.mask = (allowed & is_key.unsqueeze(-2)) | ~is_query.unsqueeze(-1)
        self.queries = (i - start).clamp(0, num_frames - 1)
        self.keys = (j - start).clamp(0, num_frames - 1)
        self.lead = lead.flatten()
        position = torch.arange(start, start + num_frames, device=device).view(1, -1)
        size, first_block = size[..., 0], column(first)[..., 0]
        flat = (torch.div(position, size, rounding_mode="floor") - first_block) * row.numel() + position % size
        self.inverse = flat.clamp(max=most * row.numel() - 1)
