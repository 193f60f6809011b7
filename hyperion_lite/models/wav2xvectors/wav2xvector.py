"""``Wav2XVector``: acoustic features and an x-vector network as one model on waveforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.layer_stack import LayerStack
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.audio_feats import Wav2FFT
from hyperion_lite.models.wav2xvectors.wave_input import Waveforms
from hyperion_lite.models.wav2xvectors.waveform_xvector import WaveformXVector
from hyperion_lite.models.xvectors.xvector import XVector, XVectorOutput
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN

_XVECTOR_MODES = {"full-feats-grad": "full"}
"""Train modes that the x-vector knows by another name."""


class Wav2XVector(WaveformXVector):
    """A front end that computes features, and an x-vector network on them.

    Train modes (:meth:`set_train_mode`):
        full: the x-vector learns; the front end has nothing to learn.
        full-feats-grad: the same; gradients reach the waveform in every mode, whenever it requires them.
        frozen: nothing learns, everything is in evaluation mode.
        ft-embed-affine: the head from the embedding layer on learns; encoder, projection and pooling are frozen.

    Args:
        feats: configuration of :class:`~hyperion_lite.narchs.audio_feats_mvn.AudioFeatsMVN`.
        xvector: configuration of the x-vector, with ``class_name`` unless the subclass fixes it.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"feats": AudioFeatsMVN}
    valid_train_modes: ClassVar[Sequence[str]] = ("full", "full-feats-grad", "frozen", "ft-embed-affine")

    def __init__(
        self,
        feats: dict[str, Any] | AudioFeatsMVN,
        xvector: dict[str, Any] | XVector,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__(channel_policy)
        self.feats = feats if isinstance(feats, AudioFeatsMVN) else AudioFeatsMVN.from_config({**feats, "trans": True})
        self.xvector = xvector if isinstance(xvector, XVector) else self._build_xvector(xvector)
        self._check_parts()
        self._update_config(feats=self.feats, xvector=self.xvector)

    def _check_parts(self) -> None:
        """The front end gives what the encoder takes."""
        if not self.feats.trans:
            raise ConfigError("feats: a waveform model needs a front end with trans: true, (batch, features, frames)")
        if isinstance(self.feats.audio_feats, Wav2FFT):
            raise ConfigError(
                "feats.audio_feats.audio_feat: fft is complex, which no encoder takes; use spec, log_spec or logfb"
            )
        self._check_in_feats(self.feats.num_feats, "feats")

    # what the model is

    @property
    def sample_frequency(self) -> float:
        """Sampling rate that waveforms must have, in Hz."""
        return self.feats.sample_frequency

    @property
    def frame_shift_samples(self) -> int:
        """Samples from one frame to the next."""
        return self.feats.frame_shift_samples

    def feat_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Exact number of frames of waveforms of ``lengths`` (batch,) samples."""
        return self.feats.out_lengths(lengths)

    @property
    def _min_frontend_samples(self) -> int:
        return self.feats.min_length

    # computing

    def _features(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None,
        vad_samples: torch.Tensor | None,
        vad_feats: torch.Tensor | None,
        warn_silent: bool,
    ) -> tuple[torch.Tensor, Padding | None]:
        x, padding = self._waves(x, x_lengths, vad_samples, warn_silent)
        feats, feat_lengths = self.feats(x, None if padding is None else padding.lengths)
        return self._select_frames(feats, feat_lengths, vad_feats)

    def forward(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        vad_samples: torch.Tensor | None = None,
        vad_feats: torch.Tensor | None = None,
        enc_layers: Sequence[int] | None = None,
        classif_layers: Sequence[int] | None = None,
        return_output: bool = True,
    ) -> torch.Tensor | XVectorOutput:
        """Classify.

        Args:
            x: (batch, num_samples) floating point in [-1, 1] at :attr:`sample_frequency`; also (batch, channels, num_samples) under the
                channel policy, or a list of 1-D tensors.
            x_lengths: (batch,) integer, valid samples before right padding; or (batch, num_samples) bool mask, True = valid.
            y: (batch,) integer target classes; in ``train()`` they get the margin.
            vad_samples: (batch, num_samples) bool, True = keep; applied to the waveform before the front end.
            vad_feats: (batch, num_frames) bool, True = keep; applied to the frames of the front end.
            enc_layers: encoder layers to return, or ``None``.
            classif_layers: head layers to return, or ``None``.
            return_output: whether the structured output has logits too.

        Returns:
            Logits (batch, num_classes); or, when layers are asked for, an
            :class:`~hyperion_lite.models.xvectors.xvector.XVectorOutput` with the asked fields.

        ``train()`` adds dither, SpecAugment, dropout and batch statistics; ``eval()`` is deterministic and never mutates state. Neither
        disables gradients, which reach ``x`` whenever it requires them. State: running statistics, in ``train()``.

        Raises:
            ValueError: input that is described wrongly or too short; the message names the item.
            RuntimeError: tensors on different devices.
        """
        feats, padding = self._features(x, x_lengths, vad_samples, vad_feats, warn_silent=False)
        return self.xvector(
            self._to_network_dtype(feats),
            x_lengths=None if padding is None else padding.lengths,
            y=y,
            enc_layers=enc_layers,
            classif_layers=classif_layers,
            return_output=return_output,
        )

    def extract_embed(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None = None,
        vad_samples: torch.Tensor | None = None,
        vad_feats: torch.Tensor | None = None,
        chunk_length: float = 0,
        embed_layer: int | None = None,
        detach_chunks: bool = False,
    ) -> torch.Tensor:
        """Speaker embeddings. Call ``eval()`` first, and use ``torch.inference_mode()`` unless gradients are wanted.

        Args:
            x, x_lengths, vad_samples, vad_feats: as in :meth:`forward`. An item without enough voiced positions is used whole, and a
                warning names it; so is silent audio named.
            chunk_length: seconds of features that the encoder sees at a time, 0 for all. Chunks carry the receptive field of the encoder
                as context, so a convolutional encoder gives the same embedding; one with global parts (squeeze-excitation) does not: use
                one policy for all embeddings that are compared.
            embed_layer: layer of the head to take; the model's by default.
            detach_chunks: keep no graph of the chunks, so that memory is bounded by the chunk also when gradients are enabled.

        Returns:
            (batch, embed_dim) embeddings, not length-normalised.

        Raises:
            ValueError: as in :meth:`forward`; a chunk that is shorter than the context; an ``embed_layer`` that does not exist.
        """
        self._check_seconds("chunk_length", chunk_length)
        feats, padding = self._features(x, x_lengths, vad_samples, vad_feats, warn_silent=True)
        return self.xvector.extract_embed(
            self._to_network_dtype(feats),
            x_lengths=None if padding is None else padding.lengths,
            chunk_length=self._chunk_frames(chunk_length, feats.size(-1)),
            embed_layer=embed_layer,
            detach_chunks=detach_chunks,
        )

    # train modes

    def layer_stack(self) -> LayerStack | None:
        """The encoder of the x-vector and its layers."""
        return self.xvector.layer_stack()

    def frozen_modules(self, mode: str) -> list[nn.Module]:
        """The parts that ``mode`` freezes."""
        return [self] if mode == "frozen" else self.xvector.frozen_modules(_XVECTOR_MODES.get(mode, mode))

    def set_train_mode(self, mode: str) -> None:
        """See the class; also :meth:`HyperTorchModel.set_train_mode`."""
        super().set_train_mode(mode)
        self.xvector.set_train_mode(_XVECTOR_MODES.get(mode, mode))
