"""``HFWav2XVector``: a Hugging Face encoder, fusion of its layers, and an x-vector network as one model on waveforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from hyperion_lite.core.config import Configurable, unknown_choice
from hyperion_lite.core.errors import ConfigError, UnknownClassError
from hyperion_lite.core.padding import Padding
from hyperion_lite.models.wav2xvectors.hf_learning import HFLearning
from hyperion_lite.models.wav2xvectors.wave_input import Waveforms
from hyperion_lite.models.xvectors.xvector import XVector, XVectorOutput
from hyperion_lite.narchs.classif_head import check_layer
from hyperion_lite.narchs.feat_fuser_mvn import FeatFuserMVN
from hyperion_lite.tpm import hf as encoders
from hyperion_lite.tpm.hf.base import HFWav2VecBase


class HFFeats(NamedTuple):
    """Frames of the encoder.

    Attributes:
        feats: (batch, features, frames), layers fused and normalised, zero in the padding.
        h_feats: the asked hidden states, (batch, hidden_size, frames) each; ``None`` if none were asked for.
        lengths: (batch,) valid frames of ``feats``, ``None`` when nothing is padded.
    """

    feats: torch.Tensor
    h_feats: list[torch.Tensor] | None
    lengths: torch.Tensor | None


class HFWav2XVector(HFLearning):
    """A Hugging Face encoder, a fusion of its layers, and an x-vector network on the fused frames.

    Tensors: ``hf_feats.hf_model``, ``feat_fuser.feat_fuser``, ``xvector``.

    Train modes (:meth:`set_train_mode`); what is frozen gets no gradient and stays in evaluation mode:
        full: everything learns, adapters too.
        frozen: nothing learns.
        ft-embed-affine: the head from the embedding layer on learns.
        ft-xvector: the x-vector learns; encoder and fusion are frozen.
        hf-feats-frozen: fusion and x-vector learn; the encoder is frozen.
        ft-xvector-nograd, hf-feats-frozen-nograd: the same, and in training no graph is kept of what is frozen in front, so that no
            gradient reaches the waveform either.
        hf-feat-extractor-frozen: everything learns but the encoder's feature extractor.
        hf-lora: of the encoder only the adapters learn; its dropout and masks are on, the statistics of batch norms do not move.
        hf-all-bias-lora, hf-lora-with-bias: also its biases, or those of the layers that have an adapter.

    Args:
        hf_feats: configuration of the encoder, with ``class_name`` unless the subclass fixes it.
        feat_fuser: configuration of :class:`~hyperion_lite.narchs.feat_fuser_mvn.FeatFuserMVN`; the number of layers and their size are
            filled in.
        xvector: configuration of the x-vector, with ``class_name`` unless the subclass fixes it; its ``in_feats`` may be left out.
        feat_fusion_start: first layer that is fused; 0 is the input of the first transformer layer. A fusion of type ``last`` ignores it.
        channel_policy: what to do with several channels: ``error``, ``mean``, or a channel index.

    Raises:
        ConfigError: parts that do not fit each other.
    """

    nested_configs: ClassVar[Mapping[str, Any]] = {"feat_fuser": FeatFuserMVN}
    hf_feats_class: ClassVar[type[HFWav2VecBase] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        parts = {"hf_feats": cls.hf_feats_class, "xvector": cls.xvector_class}
        cls.nested_configs = {**cls.nested_configs, **{key: part for key, part in parts.items() if part is not None}}

    def __init__(
        self,
        hf_feats: dict[str, Any] | HFWav2VecBase,
        feat_fuser: dict[str, Any] | FeatFuserMVN,
        xvector: dict[str, Any] | XVector,
        feat_fusion_start: int = 0,
        channel_policy: str | int = "error",
    ) -> None:
        super().__init__(channel_policy)
        self.hf_feats = hf_feats if isinstance(hf_feats, HFWav2VecBase) else self._build_encoder(hf_feats)
        self.feat_fusion_start = feat_fusion_start
        self.feat_fuser = feat_fuser if isinstance(feat_fuser, FeatFuserMVN) else self._build_fuser(feat_fuser)
        self._check_fuser()
        if not isinstance(xvector, XVector):
            xvector = self._build_xvector(self._complete_xvector(xvector))
        self.xvector = xvector
        self._check_in_feats(self.feat_fuser.num_feats, "feat_fuser")
        self._update_config(hf_feats=self.hf_feats, feat_fuser=self.feat_fuser, xvector=self.xvector)
        self._renew_train_mode()

    # building

    @classmethod
    def nested_class(cls, key: str, value: Mapping[str, Any]) -> type[Configurable] | None:
        """As in the base class; an encoder that no subclass fixes is found by its ``class_name``."""
        if key == "hf_feats":
            return cls._encoder_class(value)
        nested = super().nested_class(key, value)
        if key == "xvector" and nested is not None and _lacks_in_feats(nested, value):
            # it is checked when the size of the frames is known
            return None
        return nested

    @classmethod
    def _encoder_class(cls, config: Mapping[str, Any]) -> type[HFWav2VecBase]:
        if cls.hf_feats_class is not None:
            return cls.hf_feats_class
        if "class_name" not in config:
            raise ConfigError(f"{cls.__name__}.hf_feats: missing key 'class_name', which says what encoder to build")
        return _find_encoder_class(str(config["class_name"]))

    @classmethod
    def _build_encoder(cls, config: Mapping[str, Any]) -> HFWav2VecBase:
        return cls._encoder_class(config).from_config(config)

    def _build_fuser(self, config: Mapping[str, Any]) -> FeatFuserMVN:
        fuser = dict(config.get("feat_fuser") or {})
        last, start = self.hf_feats.num_hidden_layers, self.feat_fusion_start
        if not 0 <= start <= last:
            if fuser.get("fuser_type") != "last" or start < 0:
                raise ConfigError(f"feat_fusion_start must be 0 to {last}, the last layer of the encoder, got {start}")
            start = last
        size = self.hf_feats.output_size if fuser.get("fuser_type") == "last" else self.hf_feats.hidden_size
        fuser |= {"num_feats": last + 1 - start, "feat_dim": size}
        return FeatFuserMVN.from_config({**config, "feat_fuser": fuser})

    def _check_fuser(self) -> None:
        fuser, most = self.feat_fuser.feat_fuser, self.hf_feats.num_hidden_layers + 1
        size = self.hf_feats.output_size if self._takes_last else self.hf_feats.hidden_size
        if fuser.feat_dim != size or fuser.num_feats > most:
            raise ConfigError(
                f"feat_fuser takes {fuser.num_feats} layers of {fuser.feat_dim} features, the encoder gives {most} of {size}"
            )

    def _complete_xvector(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """``config`` with the size of the frames where it is missing."""
        return fill_in_feats(self._xvector_class(config), config, self.feat_fuser.num_feats)

    def get_config(self) -> dict[str, Any]:
        """Constructor arguments as plain JSON types, and ``class_name``."""
        config = super().get_config()
        if self.hf_feats_class is None:
            config["hf_feats"] = {"class_name": type(self.hf_feats).__name__, **config["hf_feats"]}
        # where the class fixes a part, the name of its class says nothing; files of the original toolkit do not have it
        config["feat_fuser"].pop("class_name", None)
        if self.xvector_class is not None:
            config["xvector"].pop("class_name", None)
        return config

    # what the model is

    @property
    def sample_frequency(self) -> float:
        """Sampling rate that waveforms must have, in Hz."""
        return self.hf_feats.sample_frequency

    @property
    def frame_shift_samples(self) -> int:
        """Samples from one frame of the encoder to the next."""
        hop = self.hf_feats.hop_samples
        many = torch.tensor([hop << 12])
        return hop * round(int(self.hf_feats.out_lengths(many)) / int(self.feat_lengths(many)))

    def feat_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Exact number of frames of the encoder for waveforms of ``lengths`` (batch,) samples."""
        return self.hf_feats.last_out_lengths(lengths) if self._takes_last else self.hf_feats.out_lengths(lengths)

    @property
    def _min_frontend_samples(self) -> int:
        return self.hf_feats.min_samples

    @property
    def _min_chunk_frames(self) -> int:
        # the shortest chunk of the x-vector does not matter: chunk_length is that of the pretrained encoder
        return 1

    def check_extraction(self, chunk_length: float = 0, embed_layer: int | None = None) -> int | None:
        """See :meth:`WaveformXVector.check_extraction`; ``chunk_length`` is the ``hf_chunk_length`` of :meth:`extract_embed`."""
        hop = self.hf_feats.hop_samples
        if chunk_length > 0 and int(chunk_length * self.sample_frequency) < hop:
            seconds = hop / self.sample_frequency
            raise ValueError(f"chunk_length is {chunk_length} s, this model needs at least {seconds:g} s, or 0")
        return super().check_extraction(chunk_length, embed_layer)

    # computing

    def forward_feats(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None = None,
        vad_samples: torch.Tensor | None = None,
        return_feat_layers: Sequence[int] | None = None,
        chunk_length: float = 0,
    ) -> HFFeats:
        """Frames of the encoder, as the x-vector gets them.

        Args:
            x, x_lengths, vad_samples: as in :meth:`forward`.
            return_feat_layers: hidden states to return too: 0 is the input of the first transformer layer, ``i`` the output of the
                ``i``-th, -1 the last; whatever ``feat_fusion_start``.
            chunk_length: seconds of audio that the encoder sees at a time, 0 for all.

        Raises:
            ValueError: as in :meth:`forward`.
        """
        return self._frames(*self._waves(x, x_lengths, vad_samples), return_feat_layers, chunk_length)

    def _frames(
        self, x: torch.Tensor, padding: Padding | None, layers: Sequence[int] | None, chunk_length: float
    ) -> HFFeats:
        self._check_seconds("hf_chunk_length", chunk_length)
        count = self.hf_feats.num_hidden_layers + 1
        wanted = None if layers is None else [check_layer(layer, count, "return_feat_layers") for layer in layers]
        with self._graph(self._mode.encoder == "none"):
            output = self.hf_feats(
                x,
                None if padding is None else padding.lengths,
                return_hidden_states=wanted is not None or not self._takes_last,
                chunk_length=chunk_length,
            )
        h_feats = None if wanted is None else [output.hidden_states[layer].transpose(1, 2) for layer in wanted]
        if self._takes_last:
            states, lengths = [output.last_hidden_state], output.last_lengths
        else:
            states, lengths = output.hidden_states[-self.feat_fuser.feat_fuser.num_feats :], output.lengths
        with self._graph(not self._mode.fuser):
            feats, lengths = self.feat_fuser(states, lengths)
        feats = feats if self.feat_fuser.trans else feats.transpose(1, 2)
        return HFFeats(feats, h_feats, lengths)

    def forward(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        vad_samples: torch.Tensor | None = None,
        vad_feats: torch.Tensor | None = None,
        return_feat_layers: Sequence[int] | None = None,
        return_enc_layers: Sequence[int] | None = None,
        return_classif_layers: Sequence[int] | None = None,
        return_logits: bool = True,
    ) -> torch.Tensor | XVectorOutput:
        """Classify.

        Args:
            x: (batch, num_samples) floating point in [-1, 1] at :attr:`sample_frequency`; also (batch, channels, num_samples) under the
                channel policy, or a list of 1-D tensors.
            x_lengths: (batch,) integer, valid samples before right padding; or (batch, num_samples) bool mask, True = valid.
            y: (batch,) integer target classes; in ``train()`` they get the margin.
            vad_samples: (batch, num_samples) bool, True = keep; applied to the waveform before the encoder.
            vad_feats: (batch, num_frames) bool, True = keep; applied to the fused frames.
            return_feat_layers: hidden states of the Hugging Face encoder to return, see :meth:`forward_feats`; or ``None``.
            return_enc_layers: layers of the x-vector's encoder to return, or ``None``.
            return_classif_layers: head layers to return, or ``None``.
            return_logits: whether the structured output has logits too.

        Returns:
            Logits (batch, num_classes); or, when layers are asked for, an
            :class:`~hyperion_lite.models.xvectors.xvector.XVectorOutput` with the asked fields; ``h_feats`` are (batch, hidden_size,
            frames), all frames, whatever ``vad_feats``.

        ``train()`` adds dropout, SpecAugment and batch statistics in the parts that learn; ``eval()`` is deterministic and never mutates
        state. Neither disables gradients, which reach ``x`` whenever it requires them. State: running statistics, in ``train()``.

        Raises:
            ValueError: input that is described wrongly or too short; the message names the item.
            RuntimeError: tensors on different devices.
        """
        waves, wave_padding = self._waves(x, x_lengths, vad_samples)
        frames = self._frames(waves, wave_padding, return_feat_layers, 0)
        feats, padding = self._select_frames(frames.feats, frames.lengths, vad_feats)
        feats = self._to_network_dtype(feats)
        lengths = None if padding is None else padding.lengths
        if return_feat_layers is not None and return_enc_layers is None and return_classif_layers is None:
            output = XVectorOutput(logits=self.xvector(feats, lengths, y) if return_logits else None)
        else:
            output = self.xvector(feats, lengths, y, return_enc_layers, return_classif_layers, return_logits)
        if frames.h_feats is not None:
            output.h_feats = frames.h_feats
            output.h_feats_lengths = None if wave_padding is None else self.hf_feats.out_lengths(wave_padding.lengths)
        return output

    def extract_embed(
        self,
        x: Waveforms,
        x_lengths: torch.Tensor | None = None,
        vad_samples: torch.Tensor | None = None,
        vad_feats: torch.Tensor | None = None,
        hf_chunk_length: float = 0,
        xvec_chunk_length: float = 0,
        embed_layer: int | None = None,
        detach_chunks: bool = False,
        chunk_length: float | None = None,
    ) -> torch.Tensor:
        """Speaker embeddings. Call ``eval()`` first, and use ``torch.inference_mode()`` unless gradients are wanted.

        Args:
            x, x_lengths, vad_samples, vad_feats: as in :meth:`forward`. An item without enough voiced positions is used whole, and a
                warning names it; so is silent audio named.
            hf_chunk_length: seconds of audio that the Hugging Face encoder sees at a time, with its contexts on both sides; 0 for all.
                Attention then reaches no further, so use one policy for all embeddings that are compared.
            xvec_chunk_length: seconds of frames that the encoder of the x-vector sees at a time, 0 for all; see
                :meth:`XVector.extract_embed <hyperion_lite.models.xvectors.xvector.XVector.extract_embed>`.
            embed_layer: layer of the head to take; the model's by default.
            detach_chunks: keep no graph of what is computed in chunks, so that memory is bounded by the chunk also when gradients are
                enabled.
            chunk_length: another name of ``hf_chunk_length``, the one that all waveform models know.

        Returns:
            (batch, embed_dim) embeddings, not length-normalised.

        Raises:
            ValueError: as in :meth:`forward`; a chunk that is too short; an ``embed_layer`` that does not exist.
        """
        self._check_seconds("xvec_chunk_length", xvec_chunk_length)
        hf_chunk_length = hf_chunk_length if chunk_length is None else chunk_length
        waves, padding = self._waves(x, x_lengths, vad_samples, warn_silent=True)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not (detach_chunks and hf_chunk_length > 0)):
            frames = self._frames(waves, padding, None, hf_chunk_length)
        feats, padding = self._select_frames(frames.feats, frames.lengths, vad_feats)
        return self.xvector.extract_embed(
            self._to_network_dtype(feats),
            x_lengths=None if padding is None else padding.lengths,
            chunk_length=self._chunk_frames(xvec_chunk_length, feats.size(-1)),
            embed_layer=embed_layer,
            detach_chunks=detach_chunks,
        )


def fill_in_feats(cls: type[XVector], config: Mapping[str, Any], in_feats: int) -> dict[str, Any]:
    """A copy of the configuration of an x-vector of class ``cls`` with ``in_feats`` where its encoder lacks it."""
    complete = dict(config)
    if cls.encoder_key is None:
        if complete.get("in_feats") is None:
            complete["in_feats"] = in_feats
    elif isinstance(complete.get(cls.encoder_key), Mapping):
        encoder = dict(complete[cls.encoder_key])
        if encoder.get("in_feats") is None:
            encoder["in_feats"] = in_feats
        complete[cls.encoder_key] = encoder
    return complete


def _find_encoder_class(name: str) -> type[HFWav2VecBase]:
    known = {key: getattr(encoders, key) for key in encoders.__all__}
    known = {k: v for k, v in known.items() if isinstance(v, type) and issubclass(v, HFWav2VecBase)}
    known.pop("HFWav2VecBase", None)
    if name not in known:
        raise UnknownClassError(unknown_choice("Hugging Face encoder", name, known))
    return known[name]


def _lacks_in_feats(cls: type[Configurable], config: Mapping[str, Any]) -> bool:
    return issubclass(cls, XVector) and fill_in_feats(cls, config, 0) != dict(config)
