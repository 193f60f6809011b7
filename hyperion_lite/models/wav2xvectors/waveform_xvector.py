"""What the models on waveforms share: their input, sliding windows, and the head of the x-vector in them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding, check_minimum_length
from hyperion_lite.models.hyper_torch_model import HyperTorchModel
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.models.wav2xvectors.sliding import SlidingEmbeddings, window_starts, window_times
from hyperion_lite.models.wav2xvectors.vad import select_voiced
from hyperion_lite.models.wav2xvectors.wave_input import Waveforms, prepare_waveforms, warn_about_signal
from hyperion_lite.models.xvectors.xvector import XVector
from hyperion_lite.narchs.classif_head import ClassifHead, check_layer

if TYPE_CHECKING:
    import jsonargparse


class WaveformXVector(HyperTorchModel, abstract=True):
    """Base of the models from waveform to embedding: a front end, which subclasses add, and an x-vector network on its frames.

    A subclass builds ``xvector`` in its constructor and says what its front end does with lengths.

    Args:
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.
    """

    own_config_keys: ClassVar[Collection[str]] = ("channel_policy",)
    xvector_class: ClassVar[type[XVector] | None] = None

    xvector: XVector

    def __init__(self, channel_policy: str | int = "error") -> None:
        super().__init__()
        if not isinstance(channel_policy, int) and channel_policy not in ("error", "mean"):
            raise ConfigError(f"channel_policy must be 'error', 'mean' or a channel index, got {channel_policy!r}")
        self.channel_policy = channel_policy

    @classmethod
    def nested_class(cls, key: str, value: Mapping[str, Any]) -> type[Configurable] | None:
        """As in the base class; an x-vector that no subclass fixes is found by its ``class_name``."""
        if key == "xvector" and cls.xvector_class is None and "class_name" in value:
            return find_model_class(str(value["class_name"]))
        return super().nested_class(key, value)

    @classmethod
    def _build_xvector(cls, config: Mapping[str, Any]) -> XVector:
        return cls._xvector_class(config).from_config(config)

    @classmethod
    def _xvector_class(cls, config: Mapping[str, Any]) -> type[XVector]:
        if cls.xvector_class is not None:
            return cls.xvector_class
        if "class_name" not in config:
            raise ConfigError(
                f"{cls.__name__}.xvector: missing key 'class_name', which says what kind of x-vector to build"
            )
        found = find_model_class(config["class_name"])
        if not issubclass(found, XVector):
            raise ConfigError(f"{cls.__name__}.xvector: {config['class_name']} is not an x-vector")
        return found

    def _check_in_feats(self, given: int, name: str) -> None:
        """The front end, called ``name`` in the configuration, gives what the encoder takes."""
        wanted = self.xvector.encoder_net.in_shape()[-2]
        if wanted not in (None, given):
            raise ConfigError(f"{name} gives {given} features per frame, but the encoder has in_feats = {wanted}")

    # what the model is

    @property
    @abstractmethod
    def sample_frequency(self) -> float:
        """Sampling rate that waveforms must have, in Hz."""

    @property
    @abstractmethod
    def frame_shift_samples(self) -> int:
        """Samples from one frame of the front end to the next."""

    @abstractmethod
    def feat_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Exact number of frames of the front end for waveforms of ``lengths`` (batch,) samples."""

    @property
    @abstractmethod
    def _min_frontend_samples(self) -> int:
        """Samples of the shortest waveform that the front end accepts."""

    @cached_property
    def min_samples(self) -> int:
        """Length of the shortest waveform that the model accepts."""
        frames, low = self.xvector.min_length, self._min_frontend_samples
        high = low
        while int(self.feat_lengths(torch.tensor([high]))[0]) < frames:
            high *= 2
        guess = torch.arange(low, high + 1)
        enough = torch.nonzero(self.feat_lengths(guess) >= frames)
        return int(guess[enough[0, 0]])

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

    @property
    def bias_weight_decay(self) -> float | None:
        """Weight decay of biases and normalisation parameters; ``None`` for the optimizer's own."""
        return self.xvector.bias_weight_decay

    # the input

    def _waves(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None,
        vad_samples: torch.Tensor | None = None,
        warn_silent: bool = False,
    ) -> tuple[torch.Tensor, Padding | None]:
        """Waveforms (batch, num_samples), zero in the padding, of which the wanted samples are left."""
        x, padding = prepare_waveforms(x, x_lengths, self.channel_policy)
        if warn_silent:
            warn_about_signal(x)
        if vad_samples is not None:
            x, padding = select_voiced(x, padding, vad_samples, self.min_samples, "vad_samples", "samples")
        lengths = [x.size(1)] if padding is None else padding.host_lengths
        check_minimum_length(lengths, self.min_samples, f"samples at {self.sample_frequency:g} Hz")
        return x, padding

    def _select_frames(
        self, feats: torch.Tensor, feat_lengths: torch.Tensor | None, vad_feats: torch.Tensor | None
    ) -> tuple[torch.Tensor, Padding | None]:
        """The wanted frames of (batch, features, frames)."""
        padding = Padding.from_lengths(feat_lengths, feats.size(0), feats.size(-1), "feature lengths")
        if vad_feats is None:
            return feats, padding
        return select_voiced(feats, padding, vad_feats, self.xvector.min_length, "vad_feats", "frames")

    def _to_network_dtype(self, feats: torch.Tensor) -> torch.Tensor:
        # a half-precision network takes features that were computed in single precision
        parameter = next(self.xvector.parameters(), None)
        return feats if parameter is None else feats.to(parameter.dtype)

    # embeddings

    @abstractmethod
    def extract_embed(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None = None,
        vad_samples: torch.Tensor | None = None,
        vad_feats: torch.Tensor | None = None,
        *,
        chunk_length: float = 0,
        embed_layer: int | None = None,
    ) -> torch.Tensor:
        """(batch, embed_dim) speaker embeddings, not length-normalised."""

    def check_extraction(self, chunk_length: float = 0, embed_layer: int | None = None) -> int | None:
        """Check options of :meth:`extract_embed` before there is audio.

        Returns:
            The layer that the embeddings come from, counted from 0; ``None`` for a DINO head, which has no choice.

        Raises:
            ValueError: a layer that does not exist; chunks that are too short, which only longer audio would notice.
        """
        self._check_seconds("chunk_length", chunk_length)
        least = self._min_chunk_frames
        if chunk_length > 0 and self._seconds_to_frames(chunk_length) < least:
            seconds = least * self.frame_shift_samples / self.sample_frequency
            raise ValueError(f"chunk_length is {chunk_length} s, this model needs at least {seconds:g} s, or 0")
        if not isinstance(self.xvector.classif_net, ClassifHead):
            return None
        layer = self.xvector.embed_layer if embed_layer is None else embed_layer
        return check_layer(layer, self.xvector.classif_net.num_embed_layers, "embed_layer")

    @property
    def _min_chunk_frames(self) -> int:
        """Frames of the shortest chunk of ``chunk_length``."""
        return getattr(self.xvector.encoder_net, "min_chunk_length", 1)

    @staticmethod
    def _check_seconds(name: str, value: float) -> None:
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be 0 or a positive number of seconds, got {value}")

    def _seconds_to_frames(self, seconds: float) -> int:
        return max(1, round(seconds * self.sample_frequency / self.frame_shift_samples))

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
        waves, padding = self._waves(x, x_lengths, warn_silent=True)
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
        self._restore_learning_parts()
        return report

    def change_config(self, xvector: Mapping[str, Any] | None = None) -> None:
        """Change configuration keys that need no new tensors, see the method of the x-vector."""
        self.xvector.change_config(**(xvector or {}))
        if (xvector or {}).get("train_mode") is None:
            self._restore_learning_parts()

    def check_changes(self, xvector: Mapping[str, Any] | None = None) -> None:
        """Check the arguments of :meth:`change_config`, and change nothing. Raises ``ConfigError``."""
        self.xvector.check_changes(**(xvector or {}))

    def compute_prototype_affinity(self) -> torch.Tensor:
        """(num_classes, num_classes) cosine similarities of the class prototypes."""
        return self.xvector.compute_prototype_affinity()

    def cancel_output_layer_grads(self) -> None:
        """Drop the gradients of the output layer, so that the next optimizer step leaves it alone."""
        self.xvector.cancel_output_layer_grads()

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
