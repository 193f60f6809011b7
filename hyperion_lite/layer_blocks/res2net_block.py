"""Res2Net blocks (Gao et al., 2019): groups of channels convolved one after the other, each with the result of the one before."""

from __future__ import annotations

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.layer_blocks.conv import apply_conv, conv_norm_act, make_conv
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.res_block import BlockSpec, ResBlock, strided_downsample
from hyperion_lite.layer_blocks.resample import AvgPool, apply_layer


class UnusedWeight(nn.Module):
    """A tensor that model files hold and no computation uses.

    It is a buffer: a parameter without gradient would make distributed training fail.

    Args:
        shape: shape of the tensor.
    """

    # files may lack what nothing reads
    optional_state_keys = ("weight",)

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(*shape))


class _Res2Block(ResBlock):
    """What both Res2Net blocks share: the chain of group convolutions, called ``conv<n>s`` and ``bn<n>s`` by the subclasses."""

    def __init__(self, spec: BlockSpec) -> None:
        if spec.scale < 1:
            raise ValueError(f"res2net_scale must be at least 1, got {spec.scale}")
        super().__init__(spec, strided_downsample(spec) if ResBlock.needs_downsample(spec) else None)
        self.scale = spec.scale
        self.num_convs = max(1, spec.scale - 1)

    @staticmethod
    def group_width(channels: float, scale: int, what: str) -> int:
        """Channels of a group.

        Raises:
            ValueError: none are left.
        """
        width = int(channels) // scale
        if width < 1:
            raise ValueError(f"res2net_scale = {scale} leaves no channel in a group of {int(channels)} {what}")
        return width

    def chain(
        self,
        groups: list[torch.Tensor],
        convs: nn.ModuleList,
        norms: nn.ModuleList,
        act: nn.Module,
        padding: Padding | None,
    ) -> tuple[list[torch.Tensor], Padding | None]:
        """Convolve the groups; at stride 1 each one gets the result of the one before added to its input."""
        outputs: list[torch.Tensor] = []
        out_padding = padding
        for index, (conv, norm) in enumerate(zip(convs, norms, strict=True)):
            u = groups[index]
            if index > 0 and self.stride == 1:
                u = self.to_group_input(outputs[-1], index) + u
            y, out_padding = conv_norm_act(conv, norm, act, self.norm_after, u, padding)
            outputs.append(y)
        return outputs, out_padding

    def to_group_input(self, y: torch.Tensor, index: int) -> torch.Tensor:
        """Result of group ``index - 1`` as part of the input of group ``index``."""
        return y

    def chain_field(self, convs: nn.ModuleList) -> ReceptiveField:
        """Receptive field of the chain."""
        field = ReceptiveField.of(convs[0])
        if self.stride == 1:
            for conv in convs[1:]:
                field = field.then(ReceptiveField.of(conv))
        return field

    def _chain_pairs(self, name: str) -> list[tuple[str, str]]:
        return [(f"conv{name}s.{i}", f"bn{name}s.{i}") for i in range(self.num_convs)]


class Res2BottleneckBlock(_Res2Block):
    """1x1 convolution, the chain over equal groups of channels, 1x1 convolution.

    The last group is passed on as it is, or average-pooled in a block with stride.

    Args:
        spec: the block.
    """

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__(spec)
        self.width = self.group_width(
            spec.width_factor * spec.channels, spec.scale, "channels (width factor x channels)"
        )
        total = self.width * spec.scale
        self.conv1 = spec.conv(spec.in_channels, total)
        self.bn1 = spec.norm(total)
        self.act1 = spec.act()
        self.conv2s = nn.ModuleList(spec.main_conv(self.width, self.width) for _ in range(self.num_convs))
        self.bn2s = nn.ModuleList(spec.norm(self.width) for _ in range(self.num_convs))
        self.act2 = spec.act()
        self.pool = AvgPool(spec.ndim, 3, spec.stride) if spec.stride > 1 and spec.scale > 1 else None
        self.conv3 = spec.conv(total, spec.out_channels)
        self.bn3 = spec.norm(spec.out_channels)
        self.act3 = spec.act()

    def norm_pairs(self) -> list[tuple[str, str]]:
        """(convolution, norm) names where the norm directly follows."""
        return [] if self.norm_after else [("conv1", "bn1"), *self._chain_pairs("2"), ("conv3", "bn3")]

    @property
    def last_norm(self) -> nn.Module:
        return self.bn3

    def branch_field(self) -> ReceptiveField:
        field = self.chain_field(self.conv2s)
        return field if self.pool is None else field.beside(self.pool.receptive_field)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, in_channels, [freq,] time) -> (batch, out_channels, [freq',] time'), and the new padding."""
        residual = self.residual(x, padding)
        h, padding = conv_norm_act(self.conv1, self.bn1, self.act1, self.norm_after, self.branch_input(x), padding)
        groups = list(h.split(self.width, dim=1))
        outputs, out_padding = self.chain(groups, self.conv2s, self.bn2s, self.act2, padding)
        if self.scale > 1:
            outputs.append(groups[-1] if self.pool is None else self.pool(groups[-1], padding)[0])
        h, out_padding = apply_conv(self.conv3, torch.cat(outputs, dim=1), out_padding)
        return self.finish(h, residual, self.bn3, self.act3, out_padding), out_padding


class Res2BasicBlock(_Res2Block):
    """The chain over groups of the input channels, then a main convolution. The last group goes through a 1x1 convolution.

    Args:
        spec: the block.
    """

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__(spec)
        in_width = self.group_width(spec.in_channels, spec.scale, "input channels")
        out_width = self.group_width(
            spec.width_factor * spec.channels, spec.scale, "channels (width factor x channels)"
        )
        last_width = spec.in_channels - in_width * (spec.scale - 1)
        self.group_sizes = [in_width] * (spec.scale - 1) + [last_width]
        first_width = self.group_sizes[0]
        self.conv1s = nn.ModuleList(
            spec.main_conv(first_width if i == 0 else in_width, out_width) for i in range(self.num_convs)
        )
        self.bn1s = nn.ModuleList(spec.norm(out_width) for _ in range(self.num_convs))
        self.act1 = spec.act()
        self.proj1s = self._projections(spec, in_width, out_width)
        # the same convolution has two names in files
        self._last_name = "conv1" if spec.ndim == 1 else "conv1x1"
        if spec.scale > 1:
            self.add_module(self._last_name, spec.conv(last_width, out_width, stride=spec.stride))
        self.conv2 = spec.main_conv(out_width * spec.scale, spec.out_channels, first=False)
        self.bn2 = spec.norm(spec.out_channels)
        self.act2 = spec.act()

    def _projections(self, spec: BlockSpec, in_width: int, out_width: int) -> nn.ModuleList | None:
        """1x1 convolutions from group outputs to group inputs; 1-D files hold them even where the stride makes them useless."""
        if in_width == out_width or (spec.stride > 1 and spec.ndim == 2):
            return None
        if spec.stride > 1:
            return nn.ModuleList(UnusedWeight(in_width, out_width, 1) for _ in range(self.num_convs - 1))
        return nn.ModuleList(make_conv(spec.ndim, out_width, in_width, bias=False) for _ in range(self.num_convs - 1))

    def norm_pairs(self) -> list[tuple[str, str]]:
        """(convolution, norm) names where the norm directly follows."""
        return [] if self.norm_after else [*self._chain_pairs("1"), ("conv2", "bn2")]

    @property
    def last_norm(self) -> nn.Module:
        return self.bn2

    def branch_field(self) -> ReceptiveField:
        return self.chain_field(self.conv1s).then(ReceptiveField.of(self.conv2))

    def to_group_input(self, y: torch.Tensor, index: int) -> torch.Tensor:
        return y if self.proj1s is None else self.proj1s[index - 1](y)

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, in_channels, [freq,] time) -> (batch, out_channels, [freq',] time'), and the new padding."""
        residual = self.residual(x, padding)
        groups = list(self.branch_input(x).split(self.group_sizes, dim=1))
        outputs, out_padding = self.chain(groups, self.conv1s, self.bn1s, self.act1, padding)
        if self.scale > 1:
            outputs.append(apply_layer(self.get_submodule(self._last_name), groups[-1], padding)[0])
        h, out_padding = apply_conv(self.conv2, torch.cat(outputs, dim=1), out_padding)
        return self.finish(h, residual, self.bn2, self.act2, out_padding), out_padding
