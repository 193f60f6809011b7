"""Training of x-vector models on features that a separate front end computes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.models.wav2xvectors.wav2xvector import Wav2XVector
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN
from hyperion_lite.trainers.xvector_trainer import XVectorTrainer


class XVectorTrainerFromWav(XVectorTrainer):
    """Trains an x-vector on features (:class:`~hyperion_lite.models.xvectors.xvector.XVector`) from waveform batches.

    Batches and metrics are those of :class:`~hyperion_lite.trainers.xvector_trainer.XVectorTrainer`. The front end has nothing to learn; it
    computes in single precision, and distorts features (dither, SpecAugment) in training only. Checkpoints hold the x-vector alone:
    :meth:`waveform_model` joins both, so that features are part of what is delivered.

    Args:
        model: the x-vector; input (batch, in_feats, frames).
        feat_extractor: the front end, or its configuration, see :class:`~hyperion_lite.narchs.audio_feats_mvn.AudioFeatsMVN`.
        options: those of ``XVectorTrainer``.

    Raises:
        ConfigError: the front end and the model disagree on the number of features.
    """

    config_exclude: ClassVar[Collection[str]] = ("model", "trials")

    def __init__(self, model: Any, feat_extractor: dict[str, Any] | AudioFeatsMVN, **options: Any) -> None:
        super().__init__(model, **options)
        if not isinstance(feat_extractor, AudioFeatsMVN):
            feat_extractor = AudioFeatsMVN.from_config({**feat_extractor, "trans": True})
        if feat_extractor.num_feats != model.in_feats:
            raise ConfigError(
                f"the front end gives {feat_extractor.num_feats} features a frame, the model takes {model.in_feats}"
            )
        self.feat_extractor = feat_extractor.to(self.device)
        self._update_config(feat_extractor=feat_extractor)

    @property
    def sample_frequency(self) -> float | None:
        """Rate of the waveforms that the front end takes, in Hz."""
        return self.feat_extractor.sample_frequency

    @torch.no_grad()
    def model_inputs(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Features (batch, in_feats, frames) float32 and their numbers of frames."""
        x, lengths = super().model_inputs(batch)
        self.feat_extractor.train(self.module.training)
        with torch.autocast(self.device.type, enabled=False):
            feats, feat_lengths = self.feat_extractor(x.float(), lengths)
        return (feats if self.feat_extractor.trans else feats.transpose(1, 2)), feat_lengths

    def waveform_model(self) -> Wav2XVector:
        """Front end and a copy of the x-vector as one model on waveforms, in ``eval()``, with the class table."""
        feats = AudioFeatsMVN.from_config({**self._front_end_config(), "trans": True})
        model = Wav2XVector(feats, self.module.copy())  # type: ignore[operator]
        model.class_names = self._class_names()
        return model.eval()

    def save_waveform_model(self, path: str | Path) -> None:
        """Save :meth:`waveform_model`; a ``.pth`` file or a model directory. Rank 0 writes.

        Raises:
            ConfigError: the parameters are split over ranks.
        """
        if self.distribution.is_sharded:
            raise ConfigError("the parameters are split over ranks: load the checkpoint in one process and save there")
        if self.is_main:
            self.waveform_model().save(path)

    def _front_end_config(self) -> dict[str, Any]:
        config = self.feat_extractor.get_config()
        config.pop("class_name", None)
        return config
