"""Builds a feature extractor from its configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, get_args

from hyperion_lite.core.config import Configurable, unknown_choice
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.layers.audio_feats import (
    AudioFeats,
    Wav2FFT,
    Wav2KanBayashiLogFilterBank,
    Wav2LogFilterBank,
    Wav2LogSpec,
    Wav2MFCC,
    Wav2Spec,
)
from hyperion_lite.layers.audio_feats_filter_banks import FilterBankType, FrontEndRules
from hyperion_lite.layers.audio_feats_options import AudioFeatsOptions, FeatureType
from hyperion_lite.layers.audio_feats_tables import WindowType

_CLASSES: dict[str, type[AudioFeats]] = {
    "fft": Wav2FFT,
    "spec": Wav2Spec,
    "log_spec": Wav2LogSpec,
    "logfb": Wav2LogFilterBank,
    "mfcc": Wav2MFCC,
    "kanbayashi_logfb": Wav2KanBayashiLogFilterBank,
}


class AudioFeatsFactory(Configurable):
    """Builds the feature extractor that a configuration describes.

    Example:
        >>> import torch
        >>> feats = AudioFeatsFactory.create("logfb", num_filters=80, snip_edges=False, use_energy=False)
        >>> feats.eval()(torch.zeros(1, 16000)).shape
        torch.Size([1, 100, 80])
    """

    config_method = "create"
    config_exclude: ClassVar[tuple[str, ...]] = ("frontend_rules",)

    @staticmethod
    def create(
        audio_feat: FeatureType,
        sample_frequency: float = 16000,
        frame_length: float = 25,
        frame_shift: float = 10,
        fft_length: int = 512,
        remove_dc_offset: bool = True,
        preemphasis_coeff: float = 0.97,
        window_type: WindowType = "povey",
        use_fft_mag: bool = False,
        dither: float = 2.0**-15,
        fb_type: FilterBankType = "mel_kaldi",
        low_freq: float = 20,
        high_freq: float = 0,
        num_filters: int = 23,
        norm_filters: bool = False,
        num_ceps: int = 13,
        snip_edges: bool = True,
        center: bool = False,
        cepstral_lifter: float = 22,
        energy_floor: float = 0,
        raw_energy: bool = True,
        use_energy: bool = True,
        blackman_coeff: float = 0.42,
        frontend_rules: FrontEndRules = "modern",
    ) -> AudioFeats:
        """Build a feature extractor.

        Args:
            audio_feat: feature type.
            sample_frequency: Hz.
            frame_length: ms.
            frame_shift: ms.
            fft_length: points of the FFT; raised to the next power of two when shorter than a frame.
            remove_dc_offset: subtract the mean of the whole signal.
            preemphasis_coeff: c of y[n] = x[n] - c x[n-1]; 0 for none.
            window_type: analysis window, periodic.
            use_fft_mag: magnitude instead of power spectrum.
            dither: standard deviation of the noise added in train() to signals in [-1, 1]; 0 for none.
            fb_type: definition of the filter bank.
            low_freq: lower edge of the filter bank, Hz.
            high_freq: upper edge, Hz; a value <= 0 is an offset from half the sample frequency.
            num_filters: filters of the bank.
            norm_filters: filters of equal area.
            num_ceps: cepstral coefficients (mfcc).
            snip_edges: only frames inside the signal; otherwise one frame per shift with reflected ends.
            center: frame t is centred at sample t * frame_shift; wins over snip_edges.
            cepstral_lifter: Q of the lifter (mfcc); 0 for none.
            energy_floor: smallest energy; 0 for none. No effect under the legacy rules.
            raw_energy: energy before pre-emphasis and window, instead of after.
            use_energy: log energy as an extra first feature (logfb), or in place of the first feature (other types).
            blackman_coeff: accepted because model files hold it; without effect, the window has 0.42.
            frontend_rules: arithmetic of the original toolkit's 2024 ("legacy") or 2026 ("modern") release. Not a configuration key.

        Raises:
            ValueError: a value is unknown or out of range.
        """
        if audio_feat not in _CLASSES:
            raise ConfigError(unknown_choice("audio_feat", audio_feat, get_args(FeatureType)))
        options = AudioFeatsOptions(
            sample_frequency=sample_frequency,
            frame_length=frame_length,
            frame_shift=frame_shift,
            fft_length=fft_length,
            remove_dc_offset=remove_dc_offset,
            preemphasis_coeff=preemphasis_coeff,
            window_type=window_type,
            use_fft_mag=use_fft_mag,
            dither=dither,
            fb_type=fb_type,
            low_freq=low_freq,
            high_freq=high_freq,
            num_filters=num_filters,
            norm_filters=norm_filters,
            num_ceps=num_ceps,
            snip_edges=snip_edges,
            center=center,
            cepstral_lifter=cepstral_lifter,
            energy_floor=energy_floor,
            raw_energy=raw_energy,
            use_energy=use_energy,
            rules=frontend_rules,
        )
        return _CLASSES[audio_feat](_kanbayashi(options) if audio_feat == "kanbayashi_logfb" else options)


def _kanbayashi(options: AudioFeatsOptions) -> AudioFeatsOptions:
    return replace(
        options,
        preemphasis_coeff=0.0,
        use_fft_mag=True,
        dither=1e-5,
        fb_type="mel_librosa",
        norm_filters=True,
        use_energy=False,
        center=options.center or options.rules == "legacy",
    )
