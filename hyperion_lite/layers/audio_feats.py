"""Acoustic features computed from waveforms, one class a feature type.

The steps are: dither (``train()`` only), removal of the mean, pre-emphasis, framing with reflected ends, window, FFT, and what the type
adds. Every step uses an item's own samples only, so its features are the same alone and in any padded batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.padding import Padding, check_minimum_length
from hyperion_lite.layers.audio_feats_filter_banks import make_filter_bank
from hyperion_lite.layers.audio_feats_framing import lay_out
from hyperion_lite.layers.audio_feats_options import MODERN_FLOOR, AudioFeatsOptions
from hyperion_lite.layers.audio_feats_tables import make_dct, make_lifter, make_window
from hyperion_lite.layers.item_by_item import is_item_by_item, map_items
from hyperion_lite.layers.precision import autocast_disabled

_Module = TypeVar("_Module", bound=nn.Module)

# Frames are processed in blocks of about this many samples: a block stays in the cache, and hours of audio need little memory.
_CPU_BLOCK = 1 << 17
_DEVICE_BLOCK = 1 << 26


class _TableModule(nn.Module):
    """Keeps its buffers in float32 when a model is cast to half precision: features are always computed in float32 or better."""

    def _apply(self: _Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> _Module:
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[misc]
        for name, table in self.named_buffers(recurse=False):
            if table.is_floating_point() and table.element_size() < 4:
                setattr(self, name, before[name].to(table.device))
        return self


class Wav2Win(_TableModule):
    """Waveform to the signal that frames are cut from: dither, mean removal, pre-emphasis, reflected ends. Holds the window.

    Args:
        options: settings of the front end.
    """

    # a file without the table gets the computed one
    optional_state_keys = ("_window",)
    _window: torch.Tensor

    def __init__(self, options: AudioFeatsOptions) -> None:
        super().__init__()
        self.options = options
        self.geometry = options.geometry
        self.register_buffer("_window", make_window(options.window_type, self.geometry.frame_length))

    def padded_window(self, dtype: torch.dtype) -> torch.Tensor:
        """The window followed by zeros up to the FFT length: one product both weights and zero-pads a frame."""
        return F.pad(self._window.to(dtype), (0, self.options.num_fft_points - self.geometry.frame_length))

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(batch, samples) -> the signal to cut frames from, and the same before pre-emphasis if the energy needs it.

        Frame ``t`` of either is ``[:, t * frame_shift : t * frame_shift + fft_length]``; see :func:`lay_out`.
        """
        options = self.options
        if self.training and options.dither > 0:
            x = x + options.dither * torch.randn_like(x)
        if padding is not None:
            x = padding.fill(x)
        if options.remove_dc_offset:
            x = x - _item_means(x, padding)
        raw = None
        if options.use_energy and options.raw_energy:
            raw = lay_out(x, padding, self.geometry, options.num_fft_points)
        c = options.preemphasis_coeff
        if c > 0:
            # product and difference are rounded one after the other, as in the original; a fused operation shows at spectral nulls
            x = torch.cat([x[:, :1] - c * x[:, :1], x[:, 1:] - c * x[:, :-1]], dim=1)
        return lay_out(x, padding, self.geometry, options.num_fft_points), raw


def _item_means(x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    # One sum an item over exactly its samples: any other order of additions rounds differently, and at the nulls of a spectrum the
    # logarithm shows the last bit of the mean.
    lengths = [x.size(1)] * x.size(0) if padding is None else padding.host_lengths
    return torch.stack([item[:length].mean() for item, length in zip(x.unbind(0), lengths, strict=True)])[:, None]


class AudioFeats(_TableModule):
    """Base of the feature types: waveform to (batch, frames, features).

    Args:
        options: settings of the front end.
    """

    energy_in_front: ClassVar[bool] = False
    """Whether the log energy is one more feature in front, instead of the first feature's replacement."""

    def __init__(self, options: AudioFeatsOptions) -> None:
        super().__init__()
        self.options = options
        self.geometry = options.geometry
        self.wav2win = Wav2Win(options)

    @property
    def num_feats(self) -> int:
        """Features per frame."""
        return self._num_bands() + int(self.energy_in_front and self.options.use_energy)

    @property
    def min_length(self) -> int:
        """Smallest accepted number of samples."""
        return self.geometry.min_length

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Frames of signals of ``lengths`` samples; exact."""
        return self.geometry.num_frames(lengths)

    @overload
    def forward(self, x: torch.Tensor, x_lengths: None = None) -> torch.Tensor: ...
    @overload
    def forward(self, x: torch.Tensor, x_lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...
    def forward(
        self, x: torch.Tensor, x_lengths: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Compute features. Dither is added in ``train()`` only; nothing else differs, no state changes.

        Args:
            x: (batch, samples) or (batch, 1, samples), floating point, in [-1, 1].
            x_lengths: (batch,) valid samples, or a (batch, samples) mask, True = valid.

        Returns:
            (batch, frames, features), float32, or float64 if input or tables are; complex for type ``fft``. Given lengths: also the
            (batch,) int64 number of frames of each item; frames after them are 0.

        Raises:
            TooShortError: an item has fewer than ``min_length`` samples.
            LengthsError: lengths do not fit ``x``.
            ValueError: integer samples, or several channels.
        """
        x = check_waveform(x)
        padding = Padding.from_lengths(x_lengths, x.size(0), x.size(1), device=x.device)
        feats, padding = self.compute(x, padding)
        if x_lengths is None:
            return feats
        if padding is None:
            return feats, torch.full((x.size(0),), feats.size(1), dtype=torch.int64, device=x.device)
        return feats, padding.lengths

    def compute(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """As :meth:`forward`, between modules: (batch, samples) and its padding in, features and their padding out."""
        if padding is None:
            if x.size(1) < self.min_length:
                check_minimum_length(torch.full((max(x.size(0), 1),), x.size(1)), self.min_length, "samples")
            frame_padding = None
        else:
            padding.check_minimum(self.min_length, "samples")
            frame_padding = padding.with_lengths(
                self.geometry.num_frames(padding.lengths), self.geometry.num_frames(padding.max_length)
            )
        dtype = torch.promote_types(torch.promote_types(x.dtype, torch.float32), self.wav2win._window.dtype)
        with autocast_disabled(x):
            x = x.to(dtype)
            if is_item_by_item(x, padding):
                feats = map_items(self._compute, x, padding, self.geometry.num_frames(x.size(1)))
            else:
                feats = self._compute(x, padding)
                if frame_padding is not None:
                    feats = frame_padding.fill(feats, dim=1)
        return feats, frame_padding

    def _compute(self, x: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
        signal, raw = self.wav2win(x, padding)
        window = self.wav2win.padded_window(signal.dtype)
        frames = signal.unfold(1, window.numel(), self.geometry.frame_shift)
        raw_frames = None
        if raw is not None:
            raw_frames = raw.unfold(1, self.geometry.frame_length, self.geometry.frame_shift)[:, : frames.size(1)]
        budget = _CPU_BLOCK if x.device.type == "cpu" else _DEVICE_BLOCK
        size = max(budget // max(window.numel() * x.size(0), 1), 1)
        blocks = []
        for start in range(0, frames.size(1), size):
            windowed = frames[:, start : start + size] * window
            energy = None
            if self.options.use_energy:
                energy = self._log_energy(windowed if raw_frames is None else raw_frames[:, start : start + size])
            blocks.append(self._with_energy(self._bands(torch.fft.rfft(windowed)), energy))
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)

    def _log_energy(self, frames: torch.Tensor) -> torch.Tensor:
        modern = self.options.rules == "modern"
        energy = torch.log(frames.square().sum(dim=-1, keepdim=True) + (MODERN_FLOOR if modern else 1e-15))
        if modern and self.options.energy_floor > 0:
            energy = energy.clamp(min=math.log(self.options.energy_floor))
        return energy

    def _with_energy(self, bands: torch.Tensor, energy: torch.Tensor | None) -> torch.Tensor:
        if energy is None:
            return bands
        kept = bands if self.energy_in_front else bands[..., 1:]
        return torch.cat([energy.to(bands.dtype), kept], dim=-1)

    def _spectrum(self, fft: torch.Tensor) -> torch.Tensor:
        # abs() and not the root of the power: its gradient at 0 is 0, not NaN
        return fft.abs() if self.options.use_fft_mag else fft.real.square() + fft.imag.square()

    def _log(self, x: torch.Tensor, legacy_floor: float) -> torch.Tensor:
        if self.options.rules == "modern":
            return x.clamp(min=MODERN_FLOOR).log()
        return (x + legacy_floor).log()

    def _num_bands(self) -> int:
        return self.options.num_bins

    def _bands(self, fft: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Settings, for ``print(model)``."""
        return f"{self.options}"


class Wav2FFT(AudioFeats):
    """Complex one-sided spectrum, ``fft_length / 2 + 1`` bins."""

    def _bands(self, fft: torch.Tensor) -> torch.Tensor:
        return fft


class Wav2Spec(AudioFeats):
    """Power spectrum, or magnitude with ``use_fft_mag``."""

    def _bands(self, fft: torch.Tensor) -> torch.Tensor:
        return self._spectrum(fft)


class Wav2LogSpec(AudioFeats):
    """Natural logarithm of the power or magnitude spectrum."""

    def _bands(self, fft: torch.Tensor) -> torch.Tensor:
        return self._log(self._spectrum(fft), 1e-15)


class Wav2LogFilterBank(AudioFeats):
    """Natural logarithm of filter-bank energies; with ``use_energy`` the log energy is an extra first feature."""

    energy_in_front = True
    optional_state_keys: tuple[str, ...] = ("_fb",)
    _fb: torch.Tensor

    def __init__(self, options: AudioFeatsOptions) -> None:
        super().__init__(options)
        bank = make_filter_bank(
            options.fb_type,
            options.num_filters,
            options.num_fft_points,
            options.sample_frequency,
            options.low_freq,
            options.high_freq,
            options.norm_filters,
            options.rules,
        )
        self.register_buffer("_fb", bank)

    def _num_bands(self) -> int:
        return self.options.num_filters

    def _bands(self, fft: torch.Tensor) -> torch.Tensor:
        spectrum = self._spectrum(fft)
        return self._log(spectrum @ self._fb.to(spectrum.dtype), 1e-10)


class Wav2MFCC(Wav2LogFilterBank):
    """Mel-frequency cepstral coefficients: cosine transform of the log filter bank, liftered when ``cepstral_lifter`` > 0."""

    energy_in_front = False
    optional_state_keys = ("_fb", "_dct", "_lifter")
    _dct: torch.Tensor
    _lifter: torch.Tensor

    def __init__(self, options: AudioFeatsOptions) -> None:
        super().__init__(options)
        self.register_buffer("_dct", make_dct(options.num_filters, options.num_ceps))
        if options.cepstral_lifter > 0:
            self.register_buffer("_lifter", make_lifter(options.num_ceps, options.cepstral_lifter))

    def _num_bands(self) -> int:
        return self.options.num_ceps

    def _bands(self, fft: torch.Tensor) -> torch.Tensor:
        bands = super()._bands(fft)
        ceps = bands @ self._dct.to(bands.dtype)
        return ceps * self._lifter.to(bands.dtype) if self.options.cepstral_lifter > 0 else ceps


class Wav2KanBayashiLogFilterBank(Wav2LogFilterBank):
    """Filter bank of Kan-Bayashi's neural vocoders: base-10 logarithm of the magnitude spectrum's normalised Slaney bands.

    :meth:`AudioFeatsFactory.create` fixes the settings that belong to it.
    """

    def _bands(self, fft: torch.Tensor) -> torch.Tensor:
        return super()._bands(fft) * 0.4342944819032518


def check_waveform(x: Any) -> torch.Tensor:
    """(batch, samples) floating-point waveforms; a channel axis of size 1 is removed.

    Raises:
        ValueError: something else; says what to convert.
    """
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"waveforms must be a tensor of shape (batch, samples), got {type(x).__name__}")
    if x.dim() == 3 and x.size(1) == 1:
        x = x[:, 0]
    if x.dim() != 2:
        raise ValueError(
            f"waveforms must have shape (batch, samples), got {tuple(x.shape)}; add a batch axis to a single signal, and select or "
            "average the channels of a multi-channel one"
        )
    if x.size(0) == 0:
        raise ValueError("the batch of waveforms is empty")
    if not x.is_floating_point():
        raise ValueError(
            f"waveforms must be floating point in [-1, 1], got {x.dtype}; convert integer PCM first, for 16 bits: x.float() / 32768"
        )
    return x
