"""Filter banks and windows of the acoustic features that some encoders take."""

from __future__ import annotations

import torch

from hyperion_lite.tpm.hf.transformers_import import import_transformers


def slaney_filters(num_fft: int, num_mels: int, sample_frequency: int) -> torch.Tensor:
    """(num_fft / 2 + 1, num_mels) float32, up to 8 kHz, each filter of unit area: what Whisper takes."""
    make = import_transformers("audio_utils").mel_filter_bank
    table = make(1 + num_fft // 2, num_mels, 0.0, 8000.0, sample_frequency, norm="slaney", mel_scale="slaney")
    return torch.from_numpy(table).float()


def kaldi_filters(num_fft: int, num_mels: int, sample_frequency: int) -> torch.Tensor:
    """(num_fft / 2 + 1, num_mels) float32, from 20 Hz to half the sampling frequency, triangles over mel: what w2v-BERT takes.

    Made here, because releases of transformers differ in what their function takes for the width of a frequency bin.
    """
    bins = _mel(torch.arange(1 + num_fft // 2, dtype=torch.float64) * (sample_frequency / num_fft))
    first, last = _mel(torch.tensor([20.0, sample_frequency // 2], dtype=torch.float64)).tolist()
    corners = torch.linspace(first, last, num_mels + 2, dtype=torch.float64)
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    up = (bins[:, None] - left) / (centre - left)
    down = (right - bins[:, None]) / (right - centre)
    return torch.minimum(up, down).clamp(min=0.0).float()


def _mel(frequency: torch.Tensor) -> torch.Tensor:
    return 1127.0 * torch.log(1.0 + frequency / 700.0)


def povey_window(length: int) -> torch.Tensor:
    """(length,) float32: a Hann window to the power 0.85, as in Kaldi."""
    return torch.hann_window(length, periodic=False, dtype=torch.float64).pow(0.85).float()
