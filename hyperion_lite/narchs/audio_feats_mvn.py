"""The front end of the models: acoustic features, augmentation and normalisation as one architecture."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from hyperion_lite.core.config import check_config
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.audio_feats import check_waveform
from hyperion_lite.layers.audio_feats_factory import AudioFeatsFactory
from hyperion_lite.layers.audio_feats_filter_banks import FrontEndRules
from hyperion_lite.layers.mean_var_norm import MeanVarianceNorm, canonical_mvn_config
from hyperion_lite.layers.spec_augment import SpecAugment
from hyperion_lite.narchs.feats_mvn import FeatsMVN
from hyperion_lite.narchs.net_arch import NetArch, Shape


class AudioFeatsMVN(NetArch, FeatsMVN):
    """Waveform to normalised acoustic features.

    Features, then SpecAugment, then mean and variance normalisation (``aug_after_mvn`` swaps the last two). The tables of the features
    (``audio_feats.wav2win._window``, ``audio_feats._fb``, ``audio_feats._dct``, ``audio_feats._lifter``) are buffers: they are computed
    from the configuration and replaced by those of a model file.

    Args:
        audio_feats: configuration of the features, see ``AudioFeatsFactory``.
        mvn: configuration of the normalisation, see ``MeanVarianceNorm``. There is one only if the configuration itself contains a true
            ``norm_mean`` or ``norm_var``: contexts alone normalise nothing, as in the original toolkit.
        spec_augment: configuration of the augmentation, see ``SpecAugment``.
        trans: return (batch, features, frames) instead of (batch, frames, features).
        aug_after_mvn: augment after the normalisation.
        frontend_rules: arithmetic of the original toolkit's 2024 ("legacy") or 2026 ("modern") release: floors of the logarithms, bins of
            the mel_kaldi filters, window of the sliding normalisation.

    Raises:
        ConfigError: unknown or ill-typed keys.
        ValueError: a value is out of range.

    Example:
        >>> front_end = AudioFeatsMVN({"audio_feat": "logfb", "use_energy": False}, mvn={"norm_mean": True}, trans=True).eval()
        >>> feats, lengths = front_end(torch.randn(2, 16000), torch.tensor([16000, 8000]))
        >>> feats.shape, lengths.tolist()
        (torch.Size([2, 23, 98]), [98, 48])
    """

    nested_configs: ClassVar = {"audio_feats": AudioFeatsFactory, "mvn": MeanVarianceNorm, "spec_augment": SpecAugment}
    own_config_keys: ClassVar = ("frontend_rules",)

    def __init__(
        self,
        audio_feats: dict[str, Any],
        mvn: dict[str, Any] | None = None,
        spec_augment: dict[str, Any] | None = None,
        trans: bool = False,
        aug_after_mvn: bool = False,
        frontend_rules: FrontEndRules = "modern",
    ) -> None:
        super().__init__()
        checked = check_config(AudioFeatsFactory, audio_feats, where="audio_feats")
        self.audio_feats = AudioFeatsFactory.create(**checked, frontend_rules=frontend_rules)
        self._make_processing(mvn, spec_augment, trans, aug_after_mvn, frontend_rules)
        if mvn is not None:
            self._update_config(mvn=canonical_mvn_config(mvn))

    @property
    def sample_frequency(self) -> float:
        """Hz."""
        return self.audio_feats.options.sample_frequency

    @property
    def num_feats(self) -> int:
        """Features per frame."""
        return self.audio_feats.num_feats

    @property
    def frame_length_samples(self) -> int:
        """Samples of a frame."""
        return self.audio_feats.geometry.frame_length

    @property
    def frame_shift_samples(self) -> int:
        """Samples from one frame to the next."""
        return self.audio_feats.geometry.frame_shift

    @property
    def total_stride(self) -> int:
        """Samples per frame."""
        return self.frame_shift_samples

    @property
    def min_length(self) -> int:
        """Smallest accepted number of samples: at least one frame, and long enough to be reflected at both ends."""
        return self.audio_feats.min_length

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Exact number of frames of signals of ``lengths`` samples."""
        return self.audio_feats.out_lengths(lengths)

    def in_shape(self) -> Shape:
        """(batch, samples)."""
        return (None, None)

    def out_shape(self, in_shape: Shape | None = None) -> Shape:
        """(batch, features, frames) if ``trans``, else (batch, frames, features)."""
        samples = None if in_shape is None else in_shape[-1]
        batch = None if in_shape is None else in_shape[0]
        frames = None if samples is None else self.audio_feats.geometry.num_frames(samples)
        return (batch, self.num_feats, frames) if self.trans else (batch, frames, self.num_feats)

    def in_context(self) -> tuple[int, int]:
        """Samples that frame ``t`` sees before and after sample ``t * frame_shift``, the sliding normalisation included."""
        geometry = self.audio_feats.geometry
        left = geometry.left_pad + int(self.audio_feats.options.preemphasis_coeff > 0)
        right = geometry.frame_length - 1 - geometry.left_pad
        if self.mvn is not None:
            left += self.mvn.left_context * geometry.frame_shift
            right += self.mvn.right_context * geometry.frame_shift
        return max(left, 0), max(right, 0)

    def forward(
        self, x: torch.Tensor, x_lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute normalised features of waveforms.

        In ``train()`` dither and SpecAugment are random (torch's generators); ``eval()`` is deterministic, bit for bit. Gradients reach
        ``x`` in both whenever it requires them. No state changes. Autocast is off inside: features are computed in float32 or better.

        Args:
            x: (batch, samples) or (batch, 1, samples), floating point in [-1, 1]; anything, NaN included, at padded positions.
            x_lengths: (batch,) integer valid samples before right padding, or a (batch, samples) bool mask, True = valid. None: all.

        Returns:
            Frames: (batch, frames, features), or (batch, features, frames) if ``trans``; 0 at padded frames; float32, float64 if ``x`` or
            the tables are, the dtype of ``x`` if that is a half precision. Lengths: (batch,) int64 valid frames, None if ``x_lengths`` is.

        Raises:
            TooShortError: an item has fewer than ``min_length`` samples.
            LengthsError: lengths do not fit ``x``.
            ValueError: integer samples, or several channels.
        """
        x = check_waveform(x)
        feats, padding = self.audio_feats.compute(
            x, Padding.from_lengths(x_lengths, x.size(0), x.size(1), device=x.device)
        )
        feats = self._process(feats, padding)
        if x.element_size() < 4:
            feats = feats.to(x.dtype)
        return self._output(feats, padding, x_lengths is not None)
