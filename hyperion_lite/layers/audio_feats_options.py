"""The settings of an acoustic front end as one checked, immutable record."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal, get_args

from hyperion_lite.layers.audio_feats_filter_banks import FilterBankType, FrontEndRules
from hyperion_lite.layers.audio_feats_framing import FrameGeometry
from hyperion_lite.layers.audio_feats_tables import WindowType

logger = logging.getLogger(__name__)

FeatureType = Literal["fft", "spec", "log_spec", "logfb", "mfcc", "kanbayashi_logfb"]

MODERN_FLOOR = 2.0**-14
"""Floor of every logarithm under the ``modern`` release rules."""


@dataclass(frozen=True)
class AudioFeatsOptions:
    """Settings of a feature extractor; :meth:`AudioFeatsFactory.create` explains each.

    Raises:
        ValueError: a value is out of range; names the key.
    """

    sample_frequency: float
    frame_length: float
    frame_shift: float
    fft_length: int
    remove_dc_offset: bool
    preemphasis_coeff: float
    window_type: WindowType
    use_fft_mag: bool
    dither: float
    fb_type: FilterBankType
    low_freq: float
    high_freq: float
    num_filters: int
    norm_filters: bool
    num_ceps: int
    snip_edges: bool
    center: bool
    cepstral_lifter: float
    energy_floor: float
    raw_energy: bool
    use_energy: bool
    rules: FrontEndRules = "modern"

    def __post_init__(self) -> None:
        if self.rules not in get_args(FrontEndRules):
            raise ValueError(f"frontend_rules must be 'legacy' or 'modern', got {self.rules!r}")
        if not self.sample_frequency > 0:
            raise ValueError(f"sample_frequency must be positive (Hz), got {self.sample_frequency}")
        for key in ("frame_length", "frame_shift"):
            if _to_samples(getattr(self, key), self.sample_frequency) < 1:
                raise ValueError(
                    f"{key} = {getattr(self, key)} ms is less than one sample at {self.sample_frequency} Hz; it is given in milliseconds"
                )
        if self.fft_length < 1:
            raise ValueError(f"fft_length must be positive, got {self.fft_length}")
        if not 0 <= self.preemphasis_coeff <= 1:
            raise ValueError(f"preemphasis_coeff must be between 0 and 1, got {self.preemphasis_coeff}")
        for key in ("dither", "energy_floor", "cepstral_lifter"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key} must not be negative, got {getattr(self, key)}")
        if self.energy_floor > 0 and self.rules == "legacy":
            logger.warning("energy_floor = %g has no effect under the legacy front-end rules", self.energy_floor)

    @property
    def geometry(self) -> FrameGeometry:
        """Frame positions in samples."""
        return FrameGeometry(
            _to_samples(self.frame_length, self.sample_frequency),
            _to_samples(self.frame_shift, self.sample_frequency),
            self.snip_edges,
            self.center,
        )

    @property
    def num_fft_points(self) -> int:
        """``fft_length``, or the next power of two that holds a frame."""
        frame = self.geometry.frame_length
        return self.fft_length if self.fft_length >= frame else 1 << (frame - 1).bit_length()

    @property
    def num_bins(self) -> int:
        """Bins of the one-sided spectrum."""
        return self.num_fft_points // 2 + 1


def _to_samples(milliseconds: float, sample_frequency: float) -> int:
    # whole samples; the small term keeps a product such as 160.99999999999997 from losing a sample
    return math.floor(milliseconds * sample_frequency / 1000 + 1e-6)
