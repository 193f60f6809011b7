"""Log filter-bank energies, normalised over time and stacked in pairs: the input of w2v-BERT."""

from __future__ import annotations

import torch
from torch import nn

from hyperion_lite.core.padding import Padding, conv_out_length
from hyperion_lite.layers.precision import autocast_disabled
from hyperion_lite.tpm.hf.mel_tables import kaldi_filters, povey_window

_WINDOW, _SHIFT, _FFT = 400, 160, 512
_SCALE = 2.0**15
_PREEMPHASIS = 0.97
_FLOOR = 1.192092955078125e-07
_EPSILON = 1e-7
_PIECE = 30_000
"""Frames whose spectra are in memory at a time."""


class StackedFbank(nn.Module):
    """Waveforms to features as SeamlessM4T's processor makes them: 25 ms windows every 10 ms, without frames beyond the last sample.

    Args:
        num_mels: filters.
        stack: successive frames that become one; a last incomplete one is left out.
        sample_frequency: Hz.

    Reference: Seamless Communication, "SeamlessM4T: massively multilingual and multimodal machine translation", 2023.
    """

    _filters: torch.Tensor
    _window: torch.Tensor

    def __init__(self, num_mels: int, stack: int, sample_frequency: int) -> None:
        super().__init__()
        self.stack = stack
        self.register_buffer("_filters", kaldi_filters(_FFT, num_mels, sample_frequency), persistent=False)
        self.register_buffer("_window", povey_window(_WINDOW), persistent=False)

    @property
    def hop(self) -> int:
        """Samples per output frame."""
        return _SHIFT * self.stack

    @property
    def min_samples(self) -> int:
        """Fewest samples that give an output frame. Two windows at least: the variance over time is an unbiased one."""
        return _WINDOW + _SHIFT * (max(self.stack, 2) - 1)

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Output frames of (batch,) samples."""
        return conv_out_length(lengths, _WINDOW, _SHIFT) // self.stack

    def forward(self, x: torch.Tensor, padding: Padding | None = None) -> tuple[torch.Tensor, Padding | None]:
        """(batch, samples) to (batch, frames, num_mels * stack) float32, with zeros in the padding, and the valid frames."""
        with autocast_disabled(x):
            features = self._normalise(self._log_energies(x), padding)
        batch, frames, mels = features.shape
        kept = frames // self.stack
        stacked = features[:, : kept * self.stack].reshape(batch, kept, mels * self.stack)
        if padding is None:
            return stacked, None
        padding = padding.with_lengths(self.out_lengths(padding.lengths), kept)
        return padding.fill(stacked, dim=1), padding

    def _log_energies(self, x: torch.Tensor) -> torch.Tensor:
        # windows of silence differ by rounding only, which the normalisation over time would blow up: hence double precision
        frames = (x.double() * _SCALE).unfold(-1, _WINDOW, _SHIFT)
        return torch.cat([self._log_energies_of(piece) for piece in frames.split(_PIECE, dim=1)], dim=1)

    def _log_energies_of(self, frames: torch.Tensor) -> torch.Tensor:
        frames = frames - frames.mean(-1, keepdim=True)
        first = frames[..., :1] * (1.0 - _PREEMPHASIS)
        frames = torch.cat([first, frames[..., 1:] - _PREEMPHASIS * frames[..., :-1]], dim=-1) * self._window.double()
        spectrum = torch.fft.rfft(frames, _FFT)
        power = spectrum.real.square() + spectrum.imag.square()
        return (power @ self._filters.double()).clamp(min=_FLOOR).log()

    def _normalise(self, x: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        """Zero mean and unit (unbiased) variance of every filter over the item's windows."""
        if padding is None:
            centred = x - x.mean(1, keepdim=True)
            variance = centred.square().sum(1, keepdim=True) / (x.size(1) - 1)
        else:
            windows = padding.conv(_WINDOW, _SHIFT)
            count = windows.lengths[:, None, None].to(x.dtype)
            centred = windows.fill(x, dim=1)
            centred = windows.fill(centred - centred.sum(1, keepdim=True) / count, dim=1)
            variance = centred.square().sum(1, keepdim=True) / (count - 1)
        return (centred / torch.sqrt(variance + _EPSILON)).float()
