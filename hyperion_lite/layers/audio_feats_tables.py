"""Analysis windows, and the cosine transform and lifter of cepstral coefficients: the fixed tables of the acoustic features."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

WindowType = Literal["povey", "hamming", "hanning", "blackman", "rectangular"]


def make_window(window_type: WindowType, length: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A periodic analysis window: sample ``n`` is a function of ``2 pi n / length``.

    Args:
        window_type: ``povey`` is the Hann window to the power of 0.85; ``blackman`` has the coefficients 0.42, 0.5, 0.08.
        length: samples.
        dtype: of the result and of its computation, default: the default dtype. float32 gives the windows that model files hold to the
            last bit almost everywhere; at the nulls of a spectrum the last bit is visible in the logarithm.

    Returns:
        (length,).

    Raises:
        ValueError: unknown type.
    """
    dtype = dtype or torch.get_default_dtype()
    phase = 2 * math.pi / length * torch.arange(length, dtype=dtype)
    if window_type == "rectangular":
        window = torch.ones(length, dtype=dtype)
    elif window_type == "hamming":
        window = 0.54 - 0.46 * phase.cos()
    elif window_type == "hanning":
        window = 0.5 - 0.5 * phase.cos()
    elif window_type == "povey":
        window = (0.5 - 0.5 * phase.cos()) ** 0.85
    elif window_type == "blackman":
        window = 0.42 - 0.5 * phase.cos() + 0.08 * (2 * phase).cos()
    else:
        raise ValueError(f"unknown window_type {window_type!r}, known: {', '.join(get_args(WindowType))}")
    return window


def make_dct(num_filters: int, num_ceps: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Orthonormal cosine transform (type II) that turns log filter-bank energies into cepstral coefficients.

    Returns:
        (num_filters, num_ceps); features are ``log_energies @ dct``.

    Raises:
        ValueError: more coefficients than filters.
    """
    if not 1 <= num_ceps <= num_filters:
        raise ValueError(f"num_ceps = {num_ceps} must be between 1 and num_filters = {num_filters}")
    n = torch.arange(num_filters, dtype=torch.float64)[:, None]
    k = torch.arange(num_ceps, dtype=torch.float64)[None, :]
    dct = torch.cos(math.pi / num_filters * (n + 0.5) * k) * math.sqrt(2 / num_filters)
    dct[:, 0] *= math.sqrt(0.5)
    return dct.to(dtype or torch.get_default_dtype())


def make_lifter(num_ceps: int, cepstral_lifter: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Weights ``1 + Q/2 sin(pi k / Q)`` of cepstral coefficient ``k``, ``Q = cepstral_lifter > 0``.

    Returns:
        (num_ceps,).
    """
    k = torch.arange(num_ceps, dtype=torch.float64)
    lifter = 1 + 0.5 * cepstral_lifter * torch.sin(math.pi / cepstral_lifter * k)
    return lifter.to(dtype or torch.get_default_dtype())
