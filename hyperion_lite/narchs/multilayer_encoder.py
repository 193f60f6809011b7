"""Encoders that are a chain of superblocks, of whose outputs several can be merged into one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.resample import resampled_lengths
from hyperion_lite.narchs.conv_encoder import ConvEncoder, Taps
from hyperion_lite.narchs.endpoint_merge import Endpoint, crop_endpoints
from hyperion_lite.narchs.net_arch import smallest_length
from hyperion_lite.narchs.resnet1d_layout import EndpointLayout, crop_starts

logger = logging.getLogger(__name__)

_MOST_LENGTHS = 1 << 20
"""Item lengths that are tried to find where endpoints are cut. Strides out of a file can multiply to any number."""

MakeEndpoint = Callable[[int, int, int, int], nn.Module]
"""(in_channels, out_channels, in_scale, out_scale) -> a module with a part ``resample`` and ``forward(x, padding)``."""


class MultilayerEncoder(ConvEncoder):
    """A first convolution and superblocks, then optionally endpoints: outputs of superblocks brought to one scale and merged.

    A subclass calls :meth:`_set_endpoints` in its constructor, sets ``layer_names`` (the first convolution, then every superblock), and
    implements :meth:`_parts` and :meth:`_superblock_lengths`. The tensors of endpoints are called ``endpoint_blocks.<number>`` and
    ``concat_endpoint_block``.
    """

    _endpoints: EndpointLayout | None
    multilayer_concat: bool

    def _parts(self) -> list[list[nn.Module]]:
        """What runs one after the other, each called ``part(x, padding)``: the first convolution, then the parts of every superblock."""
        raise NotImplementedError

    def _superblock_lengths(self, lengths: torch.Tensor) -> list[torch.Tensor]:
        """Lengths of the outputs of all superblocks."""
        raise NotImplementedError

    # construction

    def _set_endpoints(
        self,
        layout: EndpointLayout | None,
        channels: Sequence[int],
        out_channels: int,
        concat: bool,
        make_endpoint: MakeEndpoint,
    ) -> None:
        """Add the blocks that bring endpoints to the scale of ``layout`` and merge them.

        Args:
            layout: which superblocks; ``None`` for no endpoints.
            channels: channels of all superblocks.
            out_channels: channels of the merged output.
            concat: concatenate and mix, else take the mean.
            make_endpoint: makes a block.
        """
        self._endpoints = layout
        self._endpoint_numbers: dict[int, int] = {}
        self.multilayer_concat = layout is not None and concat
        if layout is None:
            return
        last = layout.superblocks[-1] + 1
        if last < len(layout.scales):
            logger.warning(
                "endpoint_layers end at %d: the superblocks behind it are without influence on the output", last
            )
        for part in self.parts_without_influence():
            part.requires_grad_(False)
        self.endpoint_blocks = nn.ModuleList()
        for index in layout.superblocks:
            if concat and layout.scales[index] == layout.scale:
                continue
            width = channels[index] if concat else out_channels
            self._endpoint_numbers[index] = len(self.endpoint_blocks)
            self.endpoint_blocks.append(make_endpoint(channels[index], width, layout.scales[index], layout.scale))
        if concat:
            total = sum(channels[index] for index in layout.superblocks)
            self.concat_endpoint_block = make_endpoint(total, out_channels, 1, 1)

    def _endpoint_stages(self) -> list[str]:
        if self._endpoints is None:
            return []
        names = [f"endpoint_blocks_{i}" for i in range(len(self.endpoint_blocks))]
        return names + (["concat_endpoint_block"] if self.multilayer_concat else [])

    def parts_without_influence(self) -> list[nn.Module]:
        """Superblocks behind the last endpoint."""
        if self._endpoints is None:
            return []
        behind = self._parts()[self._endpoints.superblocks[-1] + 2 :]
        return [part for superblock in behind for part in superblock]

    # lengths and receptive field

    @property
    def _ragged(self) -> bool:
        """Whether the endpoints of one item can have different lengths."""
        return self._endpoints is not None and self._endpoints.ragged

    def _endpoint_lengths(self, layout: EndpointLayout, lengths: torch.Tensor) -> list[torch.Tensor]:
        """Lengths of the resampled endpoints of items of ``lengths`` input frames."""
        superblocks = self._superblock_lengths(lengths)
        found = []
        for index in layout.superblocks:
            number = self._endpoint_numbers.get(index)
            block = None if number is None else self.endpoint_blocks[number].get_submodule("resample")
            found.append(superblocks[index] if block is None else resampled_lengths(block, superblocks[index]))
        return found

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        if self._endpoints is None:
            return self._superblock_lengths(lengths)[-1]
        return torch.stack(self._endpoint_lengths(self._endpoints, lengths)).amin(dim=0)

    @cached_property
    def receptive_field(self) -> ReceptiveField:  # type: ignore[override]
        field = ReceptiveField()
        fields = []
        for parts in self._parts():
            for part in parts:
                field = field.then(ReceptiveField.of(part))
            fields.append(field)
        return fields[-1] if self._endpoints is None else self._endpoint_field(self._endpoints, fields[1:])

    def _endpoint_field(self, layout: EndpointLayout, fields: list[ReceptiveField]) -> ReceptiveField:
        # after upsampling by r, output t reads position (t + s) // r, where s is the first position of the centred cut
        count = min(64 * self.alignment, _MOST_LENGTHS)
        lengths = torch.arange(self.min_length, self.min_length + count)
        starts = crop_starts(self._endpoint_lengths(layout, lengths))
        merged: ReceptiveField | None = None
        for superblock, start in zip(layout.superblocks, starts, strict=True):
            field = fields[superblock]
            factor = layout.upsampling(superblock)
            if superblock in self._endpoint_numbers and factor == 1:
                field = field.then(ReceptiveField.of(self.endpoint_blocks[self._endpoint_numbers[superblock]]))
            shift = int(start.max()) * layout.scale
            lag = (factor - 1) * layout.scale
            field = ReceptiveField(field.left + lag, field.right + shift, layout.scale)
            merged = field if merged is None else merged.beside(field)
        assert merged is not None
        return merged

    # computing

    def _encode(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, item_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        wanted = () if self._endpoints is None else self._endpoints.superblocks
        outputs: list[Endpoint] = []
        for index, parts in enumerate(self._parts()[: self._depth(taps.names) + 1], start=-1):
            for part in parts:
                x, padding = part(x, padding)
            taps.record(self.layer_names[index + 1], x, padding)
            if index in wanted:
                outputs.append(self._endpoint(index, x, padding, taps))
        if self._endpoints is not None:
            return self._merge(self._endpoints, outputs, taps, item_lengths)
        return x, padding

    def _depth(self, stages: frozenset[str]) -> int:
        """Number of superblocks to run: those behind the last endpoint have no influence on the output."""
        superblocks = self.layer_names[1:]
        if self._endpoints is None:
            return len(superblocks)
        asked = [index + 1 for index, name in enumerate(superblocks) if name in stages]
        return max([self._endpoints.superblocks[-1] + 1, *asked])

    def _min_length_of(self, stages: frozenset[str]) -> int:
        depth = self._depth(stages)
        if self._endpoints is None or depth == self._endpoints.superblocks[-1] + 1:
            return self.min_length
        # what lies behind the last endpoint can need more frames than the output does
        return max(self.min_length, smallest_length(lambda lengths: self._superblock_lengths(lengths)[depth - 1]))

    def _endpoint(self, superblock: int, x: torch.Tensor, padding: Padding | None, taps: Taps) -> Endpoint:
        number = self._endpoint_numbers.get(superblock)
        if number is None:
            return x, padding
        x, padding = self.endpoint_blocks[number](x, padding)
        taps.record(f"endpoint_blocks_{number}", x, padding)
        return x, padding

    def _merge(
        self, layout: EndpointLayout, outputs: list[Endpoint], taps: Taps, item_lengths: torch.Tensor | None
    ) -> Endpoint:
        tensors, padding = [x for x, _ in outputs], outputs[0][1]
        if self._ragged:
            full_lengths = None if item_lengths is None else self._endpoint_lengths(layout, item_lengths)
            tensors, padding = crop_endpoints(outputs, full_lengths)
        if not self.multilayer_concat:
            return torch.stack(tensors).mean(dim=0), padding
        x, padding = self.concat_endpoint_block(torch.cat(tensors, dim=1), padding)
        taps.record("concat_endpoint_block", x, padding)
        return x, padding
