"""``Wav2XVector``: acoustic features and an x-vector network as one model on waveforms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding, check_minimum_length
from hyperion_lite.layers.audio_feats import Wav2FFT
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.models.wav2xvectors.sliding import SlidingEmbeddings, window_starts, window_times
from hyperion_lite.models.wav2xvectors.vad import select_voiced
from hyperion_lite.models.wav2xvectors.wave_input import Waveforms, prepare_waveforms, warn_about_signal
from hyperion_lite.models.xvectors.xvector import XVector, XVectorOutput
from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN
from hyperion_lite.narchs.classif_head import ClassifHead, check_layer

if TYPE_CHECKING:
    import jsonargparse

_XVECTOR_MODES = {"full-feats-grad": "full"}
"""Train modes that the x-vector knows by another name."""


class Wav2XVector(HyperTorchModel):
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
    own_config_keys: ClassVar[Collection[str]] = ("channel_policy",)
    valid_train_modes: ClassVar[Sequence[str]] = ("full", "full-feats-grad", "frozen", "ft-embed-affine")
    xvector_class: ClassVar[type[XVector] | None] = None

    def __init__(
        self,
        feats: dict[str, Any] | AudioFeatsMVN,
        xvector: dict[str, Any] | XVector,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__()
        if not isinstance(channel_policy, int) and channel_policy not in ("error", "mean"):
            raise ConfigError(f"channel_policy must be 'error', 'mean' or a channel index, got {channel_policy!r}")
        self.channel_policy = channel_policy
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
        given, wanted = self.feats.num_feats, self.xvector.encoder_net.in_shape()[-2]
        if wanted not in (None, given):
            raise ConfigError(f"feats gives {given} features per frame, but the encoder has in_feats = {wanted}")

    @classmethod
    def nested_class(cls, key: str, value: Mapping[str, Any]) -> type[Configurable] | None:
        """As in the base class; an x-vector that no subclass fixes is found by its ``class_name``."""
        if key == "xvector" and cls.xvector_class is None and "class_name" in value:
            return find_model_class(str(value["class_name"]))
        return super().nested_class(key, value)

    def _build_xvector(self, config: Mapping[str, Any]) -> XVector:
        if self.xvector_class is not None:
            return self.xvector_class.from_config(config)
        if "class_name" not in config:
            raise ConfigError(
                "Wav2XVector.xvector: missing key 'class_name', which says what kind of x-vector to build"
            )
        found = find_model_class(config["class_name"])
        if not issubclass(found, XVector):
            raise ConfigError(f"Wav2XVector.xvector: {config['class_name']} is not an x-vector")
        return found.from_config(config)

    # what the model is

    @property
    def sample_frequency(self) -> float:
        """Sampling rate that waveforms must have, in Hz."""
        return self.feats.sample_frequency

    @property
    def embed_dim(self) -> int:
        """Size of an embedding."""
        return self.xvector.embed_dim

    @property
    def num_classes(self) -> int:
        """Number of training classes."""
        return self.xvector.num_classes

    @property
    def class_names(self) -> list[str] | None:
        """Class ids in index order, those of the x-vector; ``None`` without a class table."""
        return self.xvector.class_names

    @class_names.setter
    def class_names(self, ids: Iterable[str] | None) -> None:
        self.xvector.class_names = ids

    @cached_property
    def min_samples(self) -> int:
        """Length of the shortest waveform that the model accepts."""
        frames = self.xvector.min_length
        shift = self.feats.frame_shift_samples
        low = self.feats.min_length
        guess = torch.arange(low, low + (frames + 2) * shift + self.feats.frame_length_samples + 1)
        enough = torch.nonzero(self.feats.out_lengths(guess) >= frames)
        return int(guess[enough[0, 0]])

    @property
    def bias_weight_decay(self) -> float | None:
        """Weight decay of biases and normalisation parameters; ``None`` for the optimizer's own."""
        return self.xvector.bias_weight_decay

    # computing

    def _features(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None,
        vad_samples: torch.Tensor | None,
        vad_feats: torch.Tensor | None,
        warn_silent: bool,
    ) -> tuple[torch.Tensor, Padding | None]:
        x, padding = prepare_waveforms(x, x_lengths, self.channel_policy)
        if warn_silent:
            warn_about_signal(x)
        if vad_samples is not None:
            x, padding = select_voiced(x, padding, vad_samples, self.min_samples, "vad_samples", "samples")
        self._check_minimum(x, padding)
        feats, feat_lengths = self.feats(x, None if padding is None else padding.lengths)
        feat_padding = Padding.from_lengths(feat_lengths, feats.size(0), feats.size(-1), "feature lengths")
        if vad_feats is not None:
            feats, feat_padding = select_voiced(
                feats, feat_padding, vad_feats, self.xvector.min_length, "vad_feats", "frames"
            )
        return feats, feat_padding

    def _check_minimum(self, x: torch.Tensor, padding: Padding | None) -> None:
        lengths = [x.size(1)] if padding is None else padding.host_lengths
        check_minimum_length(lengths, self.min_samples, f"samples at {self.sample_frequency:g} Hz")

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

    def _to_network_dtype(self, feats: torch.Tensor) -> torch.Tensor:
        # a half-precision network takes features that were computed in single precision
        parameter = next(self.xvector.parameters(), None)
        return feats if parameter is None else feats.to(parameter.dtype)

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
        if not 0 <= chunk_length < float("inf"):
            raise ValueError(f"chunk_length must be 0 or a positive number of seconds, got {chunk_length}")
        feats, padding = self._features(x, x_lengths, vad_samples, vad_feats, warn_silent=True)
        return self.xvector.extract_embed(
            self._to_network_dtype(feats),
            x_lengths=None if padding is None else padding.lengths,
            chunk_length=self._chunk_frames(chunk_length, feats.size(-1)),
            embed_layer=embed_layer,
            detach_chunks=detach_chunks,
        )

    def check_extraction(self, chunk_length: float = 0, embed_layer: int | None = None) -> int | None:
        """Check options of :meth:`extract_embed` before there is audio.

        Returns:
            The layer that the embeddings come from, counted from 0; ``None`` for a DINO head, which has no choice.

        Raises:
            ValueError: a layer that does not exist; chunks too short for the encoder's context, which only longer audio would notice.
        """
        if not 0 <= chunk_length < float("inf"):
            raise ValueError(f"chunk_length must be 0 or a positive number of seconds, got {chunk_length}")
        least = getattr(self.xvector.encoder_net, "min_chunk_length", 1)
        if chunk_length > 0 and self._seconds_to_frames(chunk_length) < least:
            seconds = least * self.feats.frame_shift_samples / self.sample_frequency
            raise ValueError(f"chunk_length is {chunk_length} s, this model needs at least {seconds:g} s, or 0")
        if not isinstance(self.xvector.classif_net, ClassifHead):
            return None
        layer = self.xvector.embed_layer if embed_layer is None else embed_layer
        return check_layer(layer, self.xvector.classif_net.num_embed_layers, "embed_layer")

    def _seconds_to_frames(self, seconds: float) -> int:
        return max(1, round(seconds * self.sample_frequency / self.feats.frame_shift_samples))

    def _chunk_frames(self, chunk_length: float, num_frames: int) -> int:
        if chunk_length == 0:
            return 0
        frames = self._seconds_to_frames(chunk_length)
        return 0 if frames >= num_frames else frames

    def extract_embed_slidwin(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None = None,
        win_length: float = 1.5,
        win_shift: float = 0.75,
        embed_layer: int | None = None,
        batch_size: int = 32,
    ) -> SlidingEmbeddings:
        """Embeddings of overlapping windows, each cut out of the waveform and treated as an utterance.

        Args:
            x, x_lengths: as in :meth:`forward`.
            win_length: seconds of a window; an item that is shorter gives one window, itself.
            win_shift: seconds between the starts of windows.
            embed_layer: as in :meth:`extract_embed`.
            batch_size: windows computed at a time.

        Returns:
            Embeddings and time stamps, see :class:`~hyperion_lite.models.wav2xvectors.sliding.SlidingEmbeddings`.

        Raises:
            ValueError: as in :meth:`forward`; windows that are empty or too short for the model.
        """
        window, shift = round(win_length * self.sample_frequency), round(win_shift * self.sample_frequency)
        if shift < 1 or window < self.min_samples:
            raise ValueError(
                f"win_shift must be positive and win_length at least {self.min_samples / self.sample_frequency:.4f} s for this model, "
                f"got {win_shift} and {win_length}"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        waves, padding = prepare_waveforms(x, x_lengths, self.channel_policy)
        self._check_minimum(waves, padding)
        warn_about_signal(waves)
        lengths = [waves.size(1)] * waves.size(0) if padding is None else padding.host_lengths
        starts = [window_starts(length, window, shift) for length in lengths]
        pieces = [waves[i, s : min(s + window, lengths[i])] for i, item in enumerate(starts) for s in item]
        embeds = torch.cat(
            [
                self.extract_embed(pieces[i : i + batch_size], embed_layer=embed_layer)
                for i in range(0, len(pieces), batch_size)
            ]
        )
        counts = [len(item) for item in starts]
        times = [
            torch.tensor(window_times(n, window, shift, self.sample_frequency), dtype=torch.float64) for n in lengths
        ]
        pad = torch.nn.utils.rnn.pad_sequence
        return SlidingEmbeddings(
            pad(list(embeds.split(counts)), batch_first=True),
            torch.tensor(counts, device=waves.device),
            pad(times, batch_first=True).to(waves.device),
        )

    # the head

    def update_loss_margin(self, epoch: float, step: int | None = None) -> None:
        """Set the margin of the output layer for ``epoch`` (from 0), as its warm-up says."""
        self.xvector.update_loss_margin(epoch, step)

    def rebuild_output_layer(self, **options: Any) -> Any:
        """Replace the output layer, see :meth:`~hyperion_lite.models.xvectors.xvector.XVector.rebuild_output_layer`.

        Rows of known classes are kept when the model has a class table and ``class_names`` gives the new ids.
        """
        report = self.xvector.rebuild_output_layer(**options)
        self.set_train_mode(self.train_mode)
        return report

    def change_config(self, xvector: Mapping[str, Any] | None = None) -> None:
        """Change configuration keys that need no new tensors, see the method of the x-vector."""
        self.xvector.change_config(**(xvector or {}))

    def compute_prototype_affinity(self) -> torch.Tensor:
        """(num_classes, num_classes) cosine similarities of the class prototypes."""
        return self.xvector.compute_prototype_affinity()

    def cancel_output_layer_grads(self) -> None:
        """Drop the gradients of the output layer, so that the next optimizer step leaves it alone."""
        self.xvector.cancel_output_layer_grads()

    # train modes

    def frozen_modules(self, mode: str) -> list[nn.Module]:
        """The parts that ``mode`` freezes."""
        return [self] if mode == "frozen" else self.xvector.frozen_modules(_XVECTOR_MODES.get(mode, mode))

    def set_train_mode(self, mode: str) -> None:
        """See the class; also :meth:`HyperTorchModel.set_train_mode`."""
        super().set_train_mode(mode)
        self.xvector.set_train_mode(_XVECTOR_MODES.get(mode, mode))

    # configuration for fine-tuning

    @classmethod
    def filter_finetune_args(cls, **kwargs: Any) -> dict[str, Any]:
        """The keys of :meth:`change_config` that ``kwargs`` has; the rest is dropped."""
        xvector = (cls.xvector_class or XVector).filter_finetune_args(**kwargs.get("xvector", {}))
        return {"xvector": xvector} if xvector else {}

    @classmethod
    def add_finetune_args(
        cls, parser: jsonargparse.ArgumentParser, prefix: str | None = None, skip: Collection[str] = ()
    ) -> None:
        """Add the options of :meth:`change_config` to a parser, under ``--prefix.``."""
        if "xvector" not in skip:
            lead = f"{prefix}.xvector" if prefix else "xvector"
            (cls.xvector_class or XVector).add_finetune_args(parser, lead)
