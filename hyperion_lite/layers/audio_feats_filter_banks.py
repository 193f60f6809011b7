"""Triangular filter banks: five definitions of "mel" and a linear one, as matrices of (FFT bins, filters)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Literal, get_args

import torch

logger = logging.getLogger(__name__)

FilterBankType = Literal["mel_kaldi", "mel_etsi", "mel_librosa", "mel_librosa_htk", "linear"]
FrontEndRules = Literal["legacy", "modern"]

_Scale = Callable[[torch.Tensor], torch.Tensor]
_SLANEY_KNEE_HZ = 1000.0
_SLANEY_KNEE_MEL = 15.0
_SLANEY_LOG_STEP = math.log(6.4) / 27.0


def resolve_high_freq(high_freq: float, sample_frequency: float) -> float:
    """Upper edge of the bank in Hz; a value <= 0 counts down from half the sample frequency."""
    return high_freq if high_freq > 0 else sample_frequency / 2 + high_freq


def make_filter_bank(
    fb_type: FilterBankType,
    num_filters: int,
    fft_length: int,
    sample_frequency: float,
    low_freq: float = 20.0,
    high_freq: float = 0.0,
    norm_filters: bool = False,
    rules: FrontEndRules = "modern",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Weights that turn a spectrum of ``fft_length // 2 + 1`` bins into ``num_filters`` bands.

    Args:
        fb_type: ``mel_kaldi`` (triangles over mel), ``mel_etsi`` and ``linear`` (triangles over bin numbers), ``mel_librosa`` and
            ``mel_librosa_htk`` (triangles over Hz, Slaney's or HTK's mel scale).
        num_filters: number of bands.
        fft_length: points of the FFT.
        sample_frequency: Hz.
        low_freq: lower edge, Hz.
        high_freq: upper edge, Hz; a value <= 0 is an offset from half the sample frequency.
        norm_filters: equal area: columns that sum to 1, for the ``librosa`` types a factor of 2 / bandwidth.
        rules: ``legacy`` places the bins of ``mel_kaldi`` at ``j fs/(N-1)`` and leaves the last one out, ``modern`` at ``j fs/N``.
        dtype: of the result, default: the default dtype. Values are computed in float64, but for the modern ``mel_kaldi``: that one is
            computed in ``dtype``, as Kaldi and torchaudio do. A filter with one small weight shows the difference in its logarithm.

    Returns:
        (fft_length // 2 + 1, num_filters); a filter narrower than the distance of two bins can be empty, which is logged.

    Raises:
        ValueError: impossible frequencies or number of filters.
    """
    high = _check_bank(fb_type, num_filters, fft_length, sample_frequency, low_freq, high_freq)
    dtype = dtype or torch.get_default_dtype()
    bank = (num_filters, fft_length, sample_frequency, low_freq, high)
    if fb_type == "mel_kaldi":
        weights = _kaldi_bank(*bank, legacy=True) if rules == "legacy" else _kaldi_bank(*bank, dtype=dtype)
    elif fb_type == "mel_etsi":
        weights = _bin_bank(*bank, _mel, _mel_to_hz)
    elif fb_type == "linear":
        weights = _bin_bank(*bank, _same, _same)
    elif fb_type == "mel_librosa":
        weights = _hz_bank(*bank, _slaney, _slaney_to_hz, norm_filters)
    else:
        weights = _hz_bank(*bank, _htk, _htk_to_hz, norm_filters)
    total = weights.sum(dim=0)
    empty = torch.nonzero(total == 0).flatten().tolist()
    if empty:
        logger.warning(
            "filters %s of the %s bank are narrower than an FFT bin and stay empty: use fewer than %d filters, a larger fft_length "
            "or a wider band",
            empty,
            fb_type,
            num_filters,
        )
    if norm_filters and not fb_type.startswith("mel_librosa"):
        weights = weights / torch.where(total > 0, total, 1.0)
    return weights.to(dtype)


def _check_bank(
    fb_type: str, num_filters: int, fft_length: int, sample_frequency: float, low_freq: float, high_freq: float
) -> float:
    if fb_type not in get_args(FilterBankType):
        raise ValueError(f"unknown fb_type {fb_type!r}, known: {', '.join(get_args(FilterBankType))}")
    bins = fft_length // 2 + 1
    if not 1 <= num_filters <= bins:
        raise ValueError(
            f"num_filters = {num_filters} must be between 1 and the number of FFT bins, {bins} for fft_length = {fft_length}"
        )
    high = resolve_high_freq(high_freq, sample_frequency)
    if not 0 <= low_freq < high <= sample_frequency / 2:
        raise ValueError(
            f"low_freq = {low_freq} and high_freq = {high_freq} (= {high} Hz) must satisfy 0 <= low < high <= "
            f"{sample_frequency / 2} Hz, half of sample_frequency; high_freq <= 0 counts down from there"
        )
    return high


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _mel(hz: torch.Tensor) -> torch.Tensor:
    return 1127.0 * (1.0 + hz / 700.0).log()


def _mel_to_hz(mel: torch.Tensor) -> torch.Tensor:
    return 700.0 * ((mel / 1127.0).exp() - 1.0)


def _htk(hz: torch.Tensor) -> torch.Tensor:
    return 2595.0 * torch.log10(1.0 + hz / 700.0)


def _htk_to_hz(mel: torch.Tensor) -> torch.Tensor:
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


def _slaney(hz: torch.Tensor) -> torch.Tensor:
    above = _SLANEY_KNEE_MEL + torch.log(hz.clamp(min=1e-3) / _SLANEY_KNEE_HZ) / _SLANEY_LOG_STEP
    return torch.where(hz < _SLANEY_KNEE_HZ, hz * 3.0 / 200.0, above)


def _slaney_to_hz(mel: torch.Tensor) -> torch.Tensor:
    above = _SLANEY_KNEE_HZ * torch.exp(_SLANEY_LOG_STEP * (mel - _SLANEY_KNEE_MEL))
    return torch.where(mel < _SLANEY_KNEE_MEL, mel * 200.0 / 3.0, above)


def _points(
    num_filters: int, low: float, high: float, scale: _Scale, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    start, end = scale(torch.tensor([low, high], dtype=torch.float64)).tolist()
    return start + torch.arange(num_filters + 2, dtype=dtype) * ((end - start) / (num_filters + 1))


def _kaldi_bank(
    n: int,
    fft_length: int,
    fs: float,
    low: float,
    high: float,
    legacy: bool = False,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    points = _points(n, low, high, _mel, dtype)
    left, centre, right = points[:-2], points[1:-1], points[2:]
    bin_width = fs / (fft_length - 1 if legacy else fft_length)
    mel = _mel(torch.arange(fft_length // 2 + 1, dtype=dtype) * bin_width)[:, None]
    weights = torch.minimum((mel - left) / (centre - left), (right - mel) / (right - centre)).clamp(min=0)
    if legacy:
        weights[-1] = 0
    return weights


def _bin_bank(
    n: int, fft_length: int, fs: float, low: float, high: float, scale: _Scale, to_hz: _Scale
) -> torch.Tensor:
    edges = torch.round(to_hz(_points(n, low, high, scale)) / fs * fft_length)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    j = torch.arange(fft_length // 2 + 1, dtype=torch.float64)[:, None]
    rising = (j - left + 1) / (centre - left + 1)
    falling = (right - j + 1) / (right - centre + 1)
    weights = torch.where(j <= centre, rising, falling)
    return torch.where((j >= left) & (j <= right), weights, 0.0)


def _hz_bank(
    n: int, fft_length: int, fs: float, low: float, high: float, scale: _Scale, to_hz: _Scale, norm_filters: bool
) -> torch.Tensor:
    points = to_hz(_points(n, low, high, scale))
    left, centre, right = points[:-2], points[1:-1], points[2:]
    hz = torch.arange(fft_length // 2 + 1, dtype=torch.float64)[:, None] * fs / fft_length
    weights = torch.minimum((hz - left) / (centre - left), (right - hz) / (right - centre)).clamp(min=0)
    return weights * (2.0 / (right - left)) if norm_filters else weights
