"""Windows, filter banks and cepstral tables against their definitions and independent implementations."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from hyperion_lite.layers.audio_feats_filter_banks import make_filter_bank, resolve_high_freq
from hyperion_lite.layers.audio_feats_tables import make_dct, make_lifter, make_window


@pytest.mark.parametrize("name", ["hamming", "hanning", "blackman"])
def test_windows_equal_scipy(name):
    signal = pytest.importorskip("scipy.signal")
    reference = signal.get_window({"hanning": "hann"}.get(name, name), 400, fftbins=True)
    assert make_window(name, 400, torch.float64).numpy() == pytest.approx(reference, abs=1e-12)


def test_povey_window_is_a_power_of_the_hann_window():
    expected = torch.hann_window(400, periodic=True, dtype=torch.float64) ** 0.85
    torch.testing.assert_close(make_window("povey", 400, torch.float64), expected)
    assert make_window("rectangular", 5).tolist() == [1.0] * 5


def test_cosine_transform_is_orthonormal():
    dct = make_dct(24, 24, torch.float64)
    torch.testing.assert_close(dct.T @ dct, torch.eye(24, dtype=torch.float64))


def test_lifter_peaks_in_the_middle():
    lifter = make_lifter(23, 22, torch.float64)
    assert float(lifter[0]) == 1 and float(lifter[11]) == pytest.approx(12) and float(lifter[22]) == pytest.approx(1)


@pytest.mark.parametrize("norm", [None, "slaney"])
@pytest.mark.parametrize(("fb_type", "scale"), [("mel_librosa", "slaney"), ("mel_librosa_htk", "htk")])
def test_librosa_banks_equal_torchaudio(fb_type, scale, norm):
    functional = pytest.importorskip("torchaudio.functional")
    reference = functional.melscale_fbanks(257, 80.0, 7600.0, 40, 16000, norm=norm, mel_scale=scale)
    ours = make_filter_bank(fb_type, 40, 512, 16000, 80, 7600, norm_filters=norm is not None)
    # torchaudio works in float32; a rising edge of 1 / 30 Hz magnifies its rounding
    assert float((ours - reference).abs().max()) <= 1e-4 * float(reference.abs().max())


@pytest.mark.parametrize("sample_frequency", [8000, 16000])
def test_modern_kaldi_bank_equals_torchaudio(sample_frequency):
    kaldi = pytest.importorskip("torchaudio.compliance.kaldi")
    reference, _ = kaldi.get_mel_banks(30, 512, float(sample_frequency), 20.0, 0.0, 100.0, -500.0, 1.0)
    ours = make_filter_bank("mel_kaldi", 30, 512, sample_frequency, 20, 0)
    assert float((ours[:-1].T - reference).abs().max()) <= 1e-6
    exact = make_filter_bank("mel_kaldi", 30, 512, sample_frequency, 20, 0, dtype=torch.float64)
    assert float((ours - exact).abs().max()) <= 2e-5
    assert not ours[-1].any()


def test_legacy_kaldi_bank_leaves_the_last_bin_out_and_stretches_the_rest():
    legacy = make_filter_bank("mel_kaldi", 20, 64, 16000, 20, 0, rules="legacy")
    modern = make_filter_bank("mel_kaldi", 20, 64 - 1, 16000, 20, 0, rules="modern")
    assert not legacy[-1].any()
    torch.testing.assert_close(legacy[:32], modern[:32])


def test_bin_banks_are_triangles_over_bins():
    bank = make_filter_bank("linear", 3, 16, 16000, 0, 8000, dtype=torch.float64)
    third, two = 1 / 3, 2 / 3
    # edges at bins 0, 2, 4, 6, 8
    first = [third, two, 1, two, third, 0, 0, 0, 0]
    expected = torch.tensor([first, [0, 0, *first[:-2]], [0] * 4 + first[:-4]], dtype=torch.float64)
    torch.testing.assert_close(bank.T, expected)


@pytest.mark.parametrize("fb_type", ["mel_kaldi", "mel_etsi", "linear"])
def test_normalised_filters_sum_to_one(fb_type):
    bank = make_filter_bank(fb_type, 20, 512, 16000, norm_filters=True)
    torch.testing.assert_close(bank.sum(0), torch.ones(20))


def test_high_frequency_counts_down_from_half_the_sample_frequency():
    assert resolve_high_freq(0, 16000) == 8000
    assert resolve_high_freq(-500, 16000) == 7500
    assert resolve_high_freq(3700, 8000) == 3700
    negative = make_filter_bank("mel_kaldi", 23, 512, 16000, 20, -500)
    assert torch.equal(negative, make_filter_bank("mel_kaldi", 23, 512, 16000, 20, 7500))


def test_empty_filters_are_reported_and_stay_finite(caplog):
    with caplog.at_level(logging.WARNING):
        bank = make_filter_bank("mel_kaldi", 200, 512, 16000, norm_filters=True)
    assert "stay empty" in caplog.text
    assert bank.isfinite().all() and bool((bank.sum(0) == 0).any())


def test_tables_are_exact_in_double_precision():
    low = math.log1p(20 / 700)
    centre = 700 * math.expm1((low + math.log1p(8000 / 700)) / 2)
    bank = make_filter_bank("mel_kaldi", 1, 512, 16000, dtype=torch.float64)
    peak = int(bank[:, 0].argmax())
    assert abs(peak * 16000 / 512 - centre) <= 16000 / 512
