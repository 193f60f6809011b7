"""Filter banks and windows of the acoustic features that some encoders take."""

from __future__ import annotations

import torch

from hyperion_lite.tpm.hf.transformers_import import import_transformers


def slaney_filters(num_fft: int, num_mels: int, sample_frequency: int) -> torch.Tensor:
    """(num_fft / 2 + 1, num_mels) float32, up to 8 kHz, each filter of unit area: what Whisper takes."""
    return _filters(num_fft, num_mels, sample_frequency, 0.0, 8000.0, norm="slaney", mel_scale="slaney")


def kaldi_filters(num_fft: int, num_mels: int, sample_frequency: int) -> torch.Tensor:
    """(num_fft / 2 + 1, num_mels) float32, from 20 Hz to half the sampling frequency, triangles in mel: what w2v-BERT takes."""
    highest = sample_frequency // 2
    return _filters(
        num_fft, num_mels, sample_frequency, 20, highest, norm=None, mel_scale="kaldi", triangularize_in_mel_space=True
    )


def _filters(
    num_fft: int, num_mels: int, sample_frequency: int, lowest: float, highest: float, **options: object
) -> torch.Tensor:
    make = import_transformers("audio_utils").mel_filter_bank
    return torch.from_numpy(make(1 + num_fft // 2, num_mels, lowest, highest, sample_frequency, **options)).float()


def povey_window(length: int) -> torch.Tensor:
    """(length,) float32: a Hann window to the power 0.85, as in Kaldi."""
    return torch.hann_window(length, periodic=False, dtype=torch.float64).pow(0.85).float()
