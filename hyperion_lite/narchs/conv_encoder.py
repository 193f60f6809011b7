"""What the convolutional encoders share: lengths in and out, stage outputs, chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from hyperion_lite.core.config import nearest
from hyperion_lite.core.padding import Padding, check_minimum_length
from hyperion_lite.layer_blocks.receptive_field import ReceptiveField
from hyperion_lite.layer_blocks.squeeze_excitation import ChannelAndFreqSE, SqueezeExcitation
from hyperion_lite.layers.grn import GlobalResponseNorm
from hyperion_lite.layers.norm import GroupNorm
from hyperion_lite.narchs.chunking import ChunkPlan, encode_in_chunks
from hyperion_lite.narchs.net_arch import NetArch, Shape, smallest_length

_GLOBAL_LAYERS = (SqueezeExcitation, ChannelAndFreqSE, GroupNorm, GlobalResponseNorm)


@dataclass
class StageOutputs:
    """Outputs inside an encoder.

    Attributes:
        feats: stage (as it was asked for) -> frames, (batch, channels, [freq,] time).
        lengths: stage -> (batch,) valid frames, ``None`` if the encoder was called without lengths.
        output: output of the encoder.
        output_lengths: its lengths, or ``None``.
    """

    feats: dict[int | str, torch.Tensor]
    lengths: dict[int | str, torch.Tensor | None]
    output: torch.Tensor
    output_lengths: torch.Tensor | None


@dataclass
class Taps:
    """Collects the outputs of the named stages while the encoder runs."""

    names: frozenset[str]
    seen: dict[str, tuple[torch.Tensor, Padding | None]] = field(default_factory=dict)

    def record(self, name: str, x: torch.Tensor, padding: Padding | None) -> None:
        """Keep ``x`` if the stage was asked for."""
        if name in self.names:
            self.seen[name] = (x, padding)


class ConvEncoder(NetArch):
    """Base of the encoders that are made of convolutions along time.

    A subclass sets ``in_feats``, ``in_channels``, ``alignment``, ``stage_names`` and ``layer_names`` and implements
    :meth:`_encode`, :meth:`receptive_field`, :meth:`out_lengths` and :attr:`frame_shape`.

    Attributes:
        in_feats: features per input frame.
        in_channels: channels of the input; with one, the input has no channel axis.
        alignment: number of input frames after which every resolution inside the encoder repeats.
        stage_names: names of the inner stages in order.
        layer_names: stages that integers mean: 0 is the first convolution, ``i`` the ``i``-th layer.
    """

    in_feats: int
    in_channels: int = 1
    alignment: int
    stage_names: tuple[str, ...]
    layer_names: tuple[str, ...]

    def _encode(
        self, x: torch.Tensor, padding: Padding | None, taps: Taps, item_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        """Run the encoder.

        Args:
            x: input without padding's influence (zeros there).
            padding: its valid positions.
            taps: records stages.
            item_lengths: (batch,) lengths of the whole items when ``x`` is a window of them, else ``None``.
        """
        raise NotImplementedError

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of an output frame: (channels,) or (channels, freq)."""
        raise NotImplementedError

    @property
    def receptive_field(self) -> ReceptiveField:
        """What an output sees along time, squeeze-excitation and norms with global statistics left aside."""
        raise NotImplementedError

    @property
    def out_feats(self) -> int:
        """Features per output frame after :meth:`flatten`."""
        return math.prod(self.frame_shape)

    def in_shape(self) -> Shape:
        if self.in_channels == 1:
            return None, self.in_feats, None
        return None, self.in_channels, self.in_feats, None

    def out_shape(self, in_shape: Shape | None = None) -> Shape:
        in_shape = self.in_shape() if in_shape is None else in_shape
        frames = in_shape[-1]
        if frames is not None:
            frames = int(self.out_lengths(torch.tensor([frames]))[0])
        return in_shape[0], *self.frame_shape, frames

    def in_context(self) -> tuple[int, int]:
        return self.receptive_field.left, self.receptive_field.right

    @property
    def total_stride(self) -> int:
        return self.receptive_field.stride

    @property
    def is_convolutional(self) -> bool:
        return not any(isinstance(module, _GLOBAL_LAYERS) for module in self.modules())

    @cached_property
    def min_length(self) -> int:  # type: ignore[override]
        return smallest_length(self.out_lengths)

    @property
    def min_chunk_length(self) -> int:
        """Smallest ``chunk_length`` of :meth:`forward_chunked`, in frames."""
        return ChunkPlan(self.receptive_field, self.alignment).min_chunk_length

    def flatten(self, h: torch.Tensor) -> torch.Tensor:
        """Join the axes of a frame: (batch, channels, freq, time) -> (batch, channels * freq, time), index ``channel * freqs + freq``."""
        return h.flatten(1, -2)

    def forward(
        self, x: torch.Tensor, x_lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Encode a batch of feature sequences.

        Args:
            x: (batch, in_feats, time) floating point; (batch, in_channels, in_feats, time) with several channels.
            x_lengths: (batch,) integers, valid frames before right padding, or (batch, time) bool mask, True = valid. What the padding
                holds has no influence on the valid outputs. ``None``: all frames are valid.

        Returns:
            Frames (batch, *frame_shape, time'), zeros at padded positions, and their lengths (batch,), ``None`` if none were given.

        In ``train()`` batch norm uses the statistics of the valid positions of the batch and updates its running ones, and dropout and
        drop-connect act; in ``eval()`` an item's result is the one it has alone. No other state changes.

        Raises:
            ValueError: shapes or lengths that do not fit, an item shorter than :attr:`min_length`.
        """
        output = self.forward_hid_feats(x, x_lengths, ())
        return output.output, output.output_lengths

    def forward_hid_feats(
        self, x: torch.Tensor, x_lengths: torch.Tensor | None = None, layers: Sequence[int | str] | None = None
    ) -> StageOutputs:
        """Encode, and return the outputs of inner stages too.

        Args:
            x: as in :meth:`forward`.
            x_lengths: as in :meth:`forward`.
            layers: stages, as integers (0 is the first convolution, ``i`` the ``i``-th layer) or names out of ``stage_names``.
                ``None``: all of ``stage_names``.

        Returns:
            The frames, keyed as asked for; zeros at padded positions.

        Raises:
            ValueError: unknown stage, an item of which a stage has nothing; otherwise as in :meth:`forward`.
        """
        asked: dict[int | str, str] = {
            layer: self._stage_name(layer) for layer in (self.stage_names if layers is None else layers)
        }
        taps = Taps(frozenset(asked.values()))
        padding = self._check_input(x, x_lengths, self._min_length_of(taps.names))
        h, out_padding = self._encode(x if padding is None else padding.fill(x), padding, taps, None)
        outputs = StageOutputs({}, {}, *self._finish(h, out_padding, x_lengths))
        for layer, name in asked.items():
            outputs.feats[layer], outputs.lengths[layer] = self._finish(*taps.seen[name], x_lengths)
        return outputs

    def forward_chunked(
        self, x: torch.Tensor, x_lengths: torch.Tensor | None = None, chunk_length: int = 0, detach: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Encode in windows of ``chunk_length`` frames, so that the memory for activations does not grow with the input.

        The windows overlap by the receptive field, so in ``eval()`` the result is that of :meth:`forward` up to rounding if
        :attr:`is_convolutional`. Squeeze-excitation and norms with statistics over time (global response norm too) see the window only
        and make it an approximation. An item that is not longer than a window is computed in one piece.

        Args:
            x: as in :meth:`forward`.
            x_lengths: as in :meth:`forward`.
            chunk_length: frames of a window, context included; 0 for one piece.
            detach: keep no graph; otherwise gradients flow through all windows.

        Returns:
            As :meth:`forward`.

        Raises:
            ValueError: ``chunk_length`` negative, or smaller than :attr:`min_chunk_length` although an item is longer than it.
        """
        if chunk_length < 0:
            raise ValueError(f"chunk_length must be a number of frames or 0, got {chunk_length}")
        with torch.set_grad_enabled(torch.is_grad_enabled() and not detach):
            padding = self._check_input(x, x_lengths, self.min_length)
            if padding is None:
                lengths = torch.full((x.size(0),), x.size(-1), dtype=torch.int64, device=x.device)
            else:
                lengths = padding.lengths
            if chunk_length == 0 or chunk_length >= int(lengths.max()):
                return self.forward(x, x_lengths)
            out_lengths = self.out_lengths(lengths)
            plan = ChunkPlan(self.receptive_field, self.alignment)
            h = encode_in_chunks(self._encode_window, x, lengths, out_lengths, plan, chunk_length)
            missing = int(self.out_lengths(torch.tensor([x.size(-1)]))[0]) - h.size(-1)
            if missing > 0:
                h = torch.nn.functional.pad(h, (0, missing))
            return h, None if x_lengths is None else out_lengths

    def _encode_window(
        self, x: torch.Tensor, padding: Padding | None, item_lengths: torch.Tensor, start: int
    ) -> torch.Tensor:
        """Outputs of a window that starts at frame ``start`` of its items; where it lies matters to no convolution."""
        return self._encode(x if padding is None else padding.fill(x), padding, Taps(frozenset()), item_lengths)[0]

    def _finish(
        self, h: torch.Tensor, padding: Padding | None, x_lengths: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if padding is not None:
            return padding.fill(h), padding.lengths
        if x_lengths is None:
            return h, None
        return h, torch.full((h.size(0),), h.size(-1), dtype=torch.int64, device=h.device)

    def _stage_name(self, layer: int | str) -> str:
        names = self.layer_names if isinstance(layer, int) else self.stage_names
        if isinstance(layer, int) and 0 <= layer < len(names):
            return names[layer]
        if isinstance(layer, str) and layer in names:
            return layer
        hint = nearest(layer, names) if isinstance(layer, str) else ""
        raise ValueError(
            f"{type(self).__name__} has no stage {layer!r}{hint} (stages: 0 to {len(self.layer_names) - 1}, "
            f"{', '.join(self.stage_names)})"
        )

    def _input_shapes(self) -> list[Shape]:
        """Shapes that :meth:`forward` accepts."""
        return [self.in_shape()]

    def _min_length_of(self, stages: frozenset[str]) -> int:
        """Smallest input length that gives at least one position of the output and of ``stages``."""
        return self.min_length

    def _check_input(self, x: torch.Tensor, x_lengths: torch.Tensor | None, minimum: int) -> Padding | None:
        """The padding of ``x``, after checks of its shape and lengths, which are at least ``minimum``."""
        if not any(_fits(tuple(x.shape), shape) for shape in self._input_shapes()):
            wanted = " or ".join(_describe(shape) for shape in self._input_shapes())
            raise ValueError(f"{type(self).__name__} expects x of shape {wanted}, got {tuple(x.shape)}")
        padding = Padding.from_lengths(x_lengths, x.size(0), x.size(-1), device=x.device)
        if padding is not None:
            padding.check_minimum(minimum, "frames")
        elif x.size(-1) < minimum:
            check_minimum_length([x.size(-1)], minimum, "frames")
        return padding


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(w in (None, s) for s, w in zip(shape, wanted, strict=True))


def _describe(shape: Shape) -> str:
    return f"({', '.join(['batch', *(str(size) for size in shape[1:-1]), 'time'])})"
