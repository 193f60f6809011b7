"""What all Hugging Face encoders have in common: configuration, pretrained weights, learning rates, the forward contract."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

from hyperion_lite.core.allocation_budget import AllocationBudget
from hyperion_lite.core.config import ConfigField, config_fields, to_plain
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding, check_minimum_length
from hyperion_lite.tpm.hf.adapted_encoder import AdaptedEncoder
from hyperion_lite.tpm.hf.length_groups import group_by_length, largest_padded_share
from hyperion_lite.tpm.hf.lora import LoRASettings
from hyperion_lite.tpm.hf.model_building import architecture_of, build_model
from hyperion_lite.tpm.hf.outputs import Encoded, HFFeatsOutput, join_groups
from hyperion_lite.tpm.hf.param_groups import encoder_param_groups
from hyperion_lite.tpm.hf.pretrained import Pretrained, open_pretrained
from hyperion_lite.tpm.hf.weights import encoder_state, load_weights

logger = logging.getLogger(__name__)

_E = TypeVar("_E", bound="HFWav2VecBase")

WeightDtype = Literal["float32", "float16", "bfloat16", "stored"]

_DROPOUTS = ("hidden_dropout", "activation_dropout", "attention_dropout", "feat_proj_dropout")
_SPEC_AUGMENT = (
    "apply_spec_augment",
    *(f"mask_{axis}_{what}" for axis in ("time", "feature") for what in ("prob", "length", "min_masks")),
)
_USUAL_SAMPLE_FREQUENCY = 16000


class HFWav2VecBase(AdaptedEncoder):
    """Base class of the Hugging Face encoders: waveform to hidden states.

    ``hf_model`` holds the tensors, under the names they have in transformers; its parts are driven from here, so that the results are the
    same with every release of transformers, and its own ``forward`` is not to be called.

    Args:
        pretrained_model_path: local directory, or id of a model on the Hugging Face hub. ``None``: random weights, of the architecture that
            the other keys describe.
        normalize_input: normalise every waveform to zero mean and unit variance over its valid samples, where the model takes waveforms.
            A feature processor with ``do_normalize: false`` turns it off.
        use_input_attention_mask: kept for files of the original toolkit; attention is masked whenever lengths are given.
        cache_dir: cache of the hub; ``None`` for its default.
        force_download: fetch from the hub again.
        revision: branch, tag or commit on the hub.
        drop_layers_gt: keep only that many transformer layers, the first ones.
        ignore_pretrained: do not look at ``pretrained_model_path``. A saved model has it set: its own file has all that is needed.
        override_dropouts: take the dropout rates from this configuration instead of the pretrained model's.
        override_spec_augment: take the mask settings from this configuration instead of the pretrained model's.
        left_encoder_context: frames before a chunk that the transformer sees, in chunked processing.
        right_encoder_context: frames after a chunk that it sees.
        sample_frequency: of the waveforms, Hz.
        feat_extract_lr: learning rate of the feature extractor; ``None`` for the optimizer's.
        encoder_lr: learning rate of the rest of the encoder; ``None`` for the optimizer's.
        use_lora: add low-rank adapters, which needs peft.
        lora_components: names of the linear layers that get one, or the ends of their dotted names; ``None`` for the projections of
            queries and values.
        lora_rank: rank of the adapters.
        lora_alpha: their outputs are scaled by it over the rank.
        lora_dropout: dropout at their input.
        lora_merge_weights: kept for files of the original toolkit. The weights never hold the adapters, whatever the mode;
            :meth:`merge_lora` adds them.
        bias_weight_decay: weight decay of biases and other one-dimensional parameters; ``None`` for the optimizer's.
        feature_processor: settings of the feature processor that the model was trained with (``preprocessor_config.json``); read from the
            pretrained model if not given.
        weight_dtype: dtype of the weights that are taken from a pretrained model, whatever it is stored in; ``stored`` leaves it.

    Raises:
        ConfigError: keys that fit neither each other nor the pretrained model.
        FileNotFoundError: no such pretrained model.
        ModelFileError: its files are damaged or lack tensors of the encoder.
        MissingDependencyError: transformers is absent or broken.
    """

    own_config_keys: ClassVar[Collection[str]] = ("bias_weight_decay", "feature_processor", "weight_dtype")
    config_exclude = ("architecture",)
    optional_state_keys: ClassVar[Collection[str]] = ("hf_model.masked_spec_embed",)

    model_type: ClassVar[str]
    """``model_type`` in the ``config.json`` of such models."""
    transformers_classes: ClassVar[tuple[str, str]]
    """Configuration and model class, as ``module:name`` below transformers.models."""
    weight_prefixes: ClassVar[tuple[str, ...]]
    """What tensor names start with in checkpoints of models with a task head."""
    layers_key: ClassVar[str] = "num_hidden_layers"
    """Architecture key with the number of layers."""

    def __init__(
        self,
        pretrained_model_path: str | None = None,
        normalize_input: bool = True,
        use_input_attention_mask: bool = False,
        cache_dir: str | None = None,
        force_download: bool = False,
        revision: str = "main",
        drop_layers_gt: int | None = None,
        ignore_pretrained: bool = False,
        override_dropouts: bool = False,
        override_spec_augment: bool = False,
        left_encoder_context: int = 16,
        right_encoder_context: int = 16,
        sample_frequency: int = _USUAL_SAMPLE_FREQUENCY,
        feat_extract_lr: float | None = None,
        encoder_lr: float | None = None,
        use_lora: bool = False,
        lora_components: list[str] | None = None,
        lora_rank: int = 4,
        lora_alpha: float = 1,
        lora_dropout: float = 0.0,
        lora_merge_weights: bool = True,
        bias_weight_decay: float | None = None,
        feature_processor: dict[str, Any] | None = None,
        weight_dtype: WeightDtype = "float32",
        architecture: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if left_encoder_context < 0 or right_encoder_context < 0:
            raise ConfigError("left_encoder_context and right_encoder_context are numbers of frames, 0 or more")
        self.left_encoder_context = left_encoder_context
        self.right_encoder_context = right_encoder_context
        self.feat_extract_lr = feat_extract_lr
        self.encoder_lr = encoder_lr
        self.bias_weight_decay = bias_weight_decay
        resolved = dict(architecture or {})
        source: Pretrained | None = None
        if pretrained_model_path is not None and not ignore_pretrained:
            source = open_pretrained(pretrained_model_path, cache_dir, revision, force_download)
            overridden = (*(_DROPOUTS * override_dropouts), *(_SPEC_AUGMENT * override_spec_augment))
            kept = {key: resolved[key] for key in overridden if key in resolved}
            resolved = {**self._architecture_of(source), **kept}
            feature_processor = source.processor if feature_processor is None else feature_processor
        elif not ignore_pretrained:
            logger.warning("%s starts from random weights: it has no pretrained_model_path", type(self).__name__)
        self._fix_architecture(resolved, drop_layers_gt)
        self._read_processor(feature_processor, normalize_input, sample_frequency)
        self.architecture = resolved
        self._build(source, weight_dtype, drop_layers_gt is not None)
        components = list(self.default_lora_components) if lora_components is None else lora_components
        if use_lora:
            self.add_lora(LoRASettings(tuple(components), lora_rank, lora_alpha, lora_dropout))
        self._update_config(
            **resolved,
            ignore_pretrained=True,
            lora_components=components,
            feature_processor=self.feature_processor,
            normalize_input=self.normalize_input,
            sample_frequency=self.sample_frequency,
        )

    # construction

    @classmethod
    def architecture_fields(cls) -> dict[str, ConfigField]:
        """The keys that describe the network, as opposed to where it comes from and how it is used."""
        wrapper = config_fields(HFWav2VecBase)
        return {name: field for name, field in config_fields(cls).items() if name not in wrapper}

    def _architecture_of(self, source: Pretrained) -> dict[str, Any]:
        found = source.config.get("model_type")
        if found != self.model_type:
            raise ConfigError(
                f"{source.folder} is a pretrained model of type {found!r}, {type(self).__name__} takes {self.model_type!r}"
            )
        return architecture_of(
            source.config, self.transformers_classes[0], self.architecture_fields(), source.folder / "config.json"
        )

    def _fix_architecture(self, architecture: dict[str, Any], drop_layers_gt: int | None) -> None:
        """Fewer layers where asked for; never a random number of them: distributed training needs every parameter in every step."""
        if drop_layers_gt is not None:
            if drop_layers_gt < 1:
                raise ConfigError(f"drop_layers_gt = {drop_layers_gt}: at least one layer must remain")
            architecture[self.layers_key] = min(drop_layers_gt, architecture[self.layers_key])
        if architecture[self.layers_key] < 1:
            raise ConfigError(f"{self.layers_key} must be at least 1, got {architecture[self.layers_key]}")
        for key in ("layerdrop", "encoder_layerdrop"):
            if key in architecture:
                architecture[key] = 0.0
        for axis in ("time", "feature"):
            width = architecture[f"mask_{axis}_length"]
            if architecture["apply_spec_augment"] and architecture[f"mask_{axis}_prob"] > 0 and width < 1:
                raise ConfigError(f"mask_{axis}_length must be at least 1, got {width}")

    def _read_processor(
        self, processor: Mapping[str, Any] | None, normalize_input: bool, sample_frequency: int
    ) -> None:
        self.feature_processor: dict[str, Any] | None = to_plain(processor, "feature_processor")
        settings = self.feature_processor or {}
        normalize = settings.get("do_normalize", True)
        if not isinstance(normalize, bool):
            raise ConfigError(f"feature_processor.do_normalize must be true or false, got {normalize!r}")
        self.normalize_input = normalize_input and normalize
        rate = settings.get("sampling_rate", sample_frequency)
        if rate != sample_frequency and sample_frequency != _USUAL_SAMPLE_FREQUENCY:
            raise ConfigError(
                f"sample_frequency is {sample_frequency}, but the feature processor was made for {rate} Hz; leave it out"
            )
        if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
            raise ConfigError(f"feature_processor.sampling_rate must be a number of Hz, got {rate!r}")
        self.sample_frequency: int = rate

    def _build(self, source: Pretrained | None, weight_dtype: str, drops_layers: bool) -> None:
        config_class, model_class = self.transformers_classes
        if source is None:
            self.hf_model = build_model(self.architecture, config_class, model_class, type(self).__name__)
            self._adapt()
            return
        # what a foreign config.json describes must fit the tensors beside it
        with AllocationBudget(source.state.values(), source.folder):
            self.hf_model = build_model(self.architecture, config_class, model_class, source.folder / "config.json")
        self._adapt()
        dtype = None if weight_dtype == "stored" else getattr(torch, weight_dtype)
        state = encoder_state(source.state, self.weight_prefixes, self.hf_model.state_dict(), source.folder)
        load_weights(self.hf_model, state, source.folder, dtype, self.num_hidden_layers if drops_layers else None)

    def _adapt(self) -> None:
        """Put our modules, which know about padding, in the places of those of transformers; tensor names stay."""
        raise NotImplementedError

    # what there is

    @property
    def hidden_size(self) -> int:
        """Features of the hidden states."""
        return int(self.architecture["hidden_size"])

    @property
    def output_size(self) -> int:
        """Features of the last hidden state, which an adapter can change."""
        return self.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        """Transformer layers; there is one hidden state more."""
        return int(self.architecture[self.layers_key])

    @property
    def hop_samples(self) -> int:
        """Samples per frame."""
        raise NotImplementedError

    @property
    def min_samples(self) -> int:
        """Fewest samples that give a frame."""
        raise NotImplementedError

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Valid frames of the hidden states for items of ``lengths`` (batch,) samples. Exact integer arithmetic."""
        raise NotImplementedError

    def last_out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """Valid frames of the last hidden state for items of ``lengths`` (batch,) samples."""
        return self.out_lengths(lengths)

    def feature_extractor_modules(self) -> list[nn.Module]:
        """The parts that make frames of samples, before the transformer's width."""
        raise NotImplementedError

    def encoder_layers(self) -> list[nn.Module]:
        """The transformer layers, bottom first."""
        raise NotImplementedError

    def projection_modules(self) -> list[nn.Module]:
        """The parts between the feature extractor and the first layer."""
        raise NotImplementedError

    def output_modules(self) -> list[nn.Module]:
        """The parts behind the last layer."""
        return []

    def fixed_parameters(self) -> list[nn.Parameter]:
        """Parameters that are never trained: no output depends on them with the present settings, or the model keeps them as they are."""
        return []

    @property
    def _masks_frames(self) -> bool:
        """Whether spans are masked now: what makes the frames has to be in training, not frozen."""
        if not (self.training and self.architecture["apply_spec_augment"]):
            return False
        makers = (*self.feature_extractor_modules(), *self.projection_modules())
        return any(maker.training for maker in makers if any(True for _ in maker.parameters()))

    def last_state_modules(self) -> list[nn.Module]:
        """The parts that only the last hidden state depends on."""
        return []

    def unfreeze(self: _E) -> _E:
        """Undo :meth:`freeze`; the fixed parameters stay."""
        super().unfreeze()
        for parameter in self.fixed_parameters():
            parameter.requires_grad_(False)
        return self

    def trainable_param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: feature extractor and encoder, each with its own learning rate if it has one.

        With a ``bias_weight_decay``, biases and other one-dimensional parameters stand in groups of their own.
        """
        front, rates = self.feature_extractor_modules(), (self.feat_extract_lr, self.encoder_lr)
        return encoder_param_groups(self, front, *rates, self.bias_weight_decay)

    # computation

    def forward(
        self,
        x: torch.Tensor,
        x_lengths: torch.Tensor | None = None,
        return_hidden_states: bool = True,
        chunk_length: float = 0.0,
    ) -> HFFeatsOutput:
        """Hidden states of waveforms.

        In ``train()``: dropout, and masks over time and features as the model was pretrained with, drawn within each item's valid frames.
        In ``eval()`` an item's result does not depend on the rest of its batch, nor on what its padding holds. Gradients reach the
        waveform in both. No state changes.

        Args:
            x: (batch, samples) floating point at :attr:`sample_frequency`.
            x_lengths: (batch,) valid samples before right padding, or a (batch, samples) bool mask, True = valid.
            return_hidden_states: whether to return all hidden states, not the last one only.
            chunk_length: seconds; items at least as long are processed in chunks of that size, with memory for one chunk besides the
                results. 0 for no chunks. Everything before the first transformer layer is as without chunks; the layers see
                ``left_encoder_context`` and ``right_encoder_context`` frames around a chunk only.

        Returns:
            :class:`HFFeatsOutput` of frames; padded frames are 0.

        Raises:
            ValueError: ``x`` is no batch of waveforms, or the chunk is shorter than a frame.
            LengthsError: lengths do not fit ``x``.
            TooShortError: an item is below :attr:`min_samples`; says which.
        """
        if x.dim() != 2 or not x.is_floating_point():
            raise ValueError(
                f"{type(self).__name__} takes floating-point waveforms (batch, samples), got {x.dtype} {tuple(x.shape)}"
            )
        padding = Padding.from_lengths(x_lengths, x.size(0), x.size(1), device=x.device)
        lengths = [x.size(1)] * x.size(0) if padding is None else padding.host_lengths
        check_minimum_length(lengths, self.min_samples, f"samples at {self.sample_frequency} Hz")
        chunk_samples = self._chunk_samples(chunk_length)
        groups = self._groups(x, lengths, chunk_samples)
        # a normalised weight is made once for all groups and chunks
        with parametrize.cached() if len(groups) > 1 or chunk_samples else nullcontext():
            results = [self._run_group(x, lengths, group, return_hidden_states, chunk_samples) for group in groups]
        out = results[0] if groups == [list(range(x.size(0)))] else join_groups(results, groups)
        valid = None if x_lengths is None else torch.tensor(lengths, device=x.device)
        return HFFeatsOutput(
            out.states if return_hidden_states else None,
            out.last,
            None if valid is None else self.out_lengths(valid),
            None if valid is None else self.last_out_lengths(valid),
        )

    def _chunk_samples(self, chunk_length: float) -> int:
        if not 0 <= chunk_length < float("inf"):
            raise ValueError(f"chunk_length must be 0 or a positive number of seconds, got {chunk_length}")
        samples = int(chunk_length * self.sample_frequency)
        if chunk_length > 0 and samples < self.hop_samples:
            raise ValueError(
                f"chunk_length = {chunk_length} s is shorter than a frame ({self.hop_samples} samples at {self.sample_frequency} Hz); "
                "use 0 for no chunks"
            )
        return samples

    def _groups(self, x: torch.Tensor, lengths: list[int], chunk_samples: int) -> list[list[int]]:
        """Which items are computed together."""
        if min(lengths) == max(lengths) and not (chunk_samples and lengths[0] >= chunk_samples):
            return [list(range(len(lengths)))]
        if chunk_samples and max(lengths) >= chunk_samples:
            alone = [[i] for i, length in enumerate(lengths) if length >= chunk_samples]
            rest = [i for i, length in enumerate(lengths) if length < chunk_samples]
            short = group_by_length([lengths[i] for i in rest], largest_padded_share(x.device))
            return alone + [[rest[i] for i in group] for group in short]
        if self.training or _is_sharded(self.encoder_layers()):
            # every process must call its layers as often as the others do
            return [list(range(len(lengths)))]
        return group_by_length(lengths, largest_padded_share(x.device))

    def _run_group(
        self, x: torch.Tensor, lengths: list[int], group: list[int], return_states: bool, chunk_samples: int
    ) -> Encoded:
        sizes = [lengths[i] for i in group]
        longest = max(sizes)
        if group != list(range(x.size(0))):
            x = x[group[0] : group[0] + 1] if len(group) == 1 else x[torch.tensor(group, device=x.device)]
        x = x[:, :longest]
        padding = None
        if min(sizes) < longest:
            padding = Padding(torch.tensor(sizes, device=x.device), longest, sizes)
            x = padding.fill(x)
        if chunk_samples and longest >= chunk_samples:
            return self._encode_in_chunks(x, return_states, chunk_samples)
        return self._encode(x, padding, return_states)

    def _encode(self, x: torch.Tensor, padding: Padding | None, return_states: bool) -> Encoded:
        """Hidden states of a batch of waveforms with zeros in the padding; zeros in the padding of the result."""
        raise NotImplementedError

    def _encode_in_chunks(self, x: torch.Tensor, return_states: bool, chunk_samples: int) -> Encoded:
        """The same of one item, in chunks."""
        raise NotImplementedError


def _is_sharded(layers: list[nn.Module]) -> bool:
    # nothing is sharded by a module that nobody imported, and the import is slow
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(layer, fsdp.FSDPModule) for layer in layers)
