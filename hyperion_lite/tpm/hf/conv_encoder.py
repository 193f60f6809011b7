"""Encoders that put a transformer on a convolutional feature extractor: wav2vec 2.0, HuBERT, WavLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from hyperion_lite.core.padding import Padding
from hyperion_lite.tpm.hf.adapter import ConvAdapter
from hyperion_lite.tpm.hf.attention import SelfAttention
from hyperion_lite.tpm.hf.base import Encoded, HFWav2VecBase
from hyperion_lite.tpm.hf.chunks import conv_in_chunks, run_in_chunks
from hyperion_lite.tpm.hf.conv_stack import ConvGeometry, ConvStack
from hyperion_lite.tpm.hf.encoder_layer import EncoderLayer, PositionalConv
from hyperion_lite.tpm.hf.input_norm import normalise_waveforms
from hyperion_lite.tpm.hf.span_masks import mask_spans


class HFConvEncoder(HFWav2VecBase):
    """Base class of the three families.

    Args:
        vocab_size: of a task head, which the encoder does not have.
        hidden_size: width of the transformer.
        num_hidden_layers: its layers.
        num_attention_heads: heads of each layer.
        intermediate_size: width inside the feed-forward parts.
        hidden_act: activation of the feed-forward parts.
        hidden_dropout: dropout of the outputs of all parts of the transformer.
        activation_dropout: dropout inside the feed-forward parts.
        attention_dropout: dropout of the attention weights.
        feat_proj_dropout: dropout of the projected features.
        layerdrop: always 0.
        initializer_range: standard deviation of random weights.
        layer_norm_eps: added to the variance in the transformer's layer norms.
        feat_extract_norm: normalisation of the feature extractor: ``group``, over time, in its first layer; ``layer``, over channels, in
            all layers.
        feat_extract_activation: activation of the feature extractor.
        conv_dim: channels of its layers.
        conv_stride: strides of its layers.
        conv_kernel: kernel sizes of its layers.
        conv_bias: whether its convolutions have a bias.
        num_conv_pos_embeddings: kernel size of the positional convolution.
        num_conv_pos_embedding_groups: its groups.
        do_stable_layer_norm: normalise before the parts of a layer, and once at the end, instead of after each part.
        apply_spec_augment: mask features in training.
        mask_time_prob: share of the frames that spans over time are drawn for.
        mask_time_length: frames of a span.
        mask_time_min_masks: fewest spans.
        mask_feature_prob: share of the features that spans over features are drawn for.
        mask_feature_length: features of a span.
        mask_feature_min_masks: fewest spans.
    """

    config_exclude = ("more_architecture",)
    attention_class: ClassVar[type[SelfAttention]] = SelfAttention

    def __init__(
        self,
        vocab_size: int = 32,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: str = "gelu",
        hidden_dropout: float = 0.1,
        activation_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        feat_proj_dropout: float = 0.0,
        layerdrop: float = 0.0,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        feat_extract_norm: Literal["group", "layer"] = "group",
        feat_extract_activation: str = "gelu",
        conv_dim: list[int] | tuple[int, ...] = (512, 512, 512, 512, 512, 512, 512),
        conv_stride: list[int] | tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2),
        conv_kernel: list[int] | tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2),
        conv_bias: bool = False,
        num_conv_pos_embeddings: int = 128,
        num_conv_pos_embedding_groups: int = 16,
        do_stable_layer_norm: bool = False,
        apply_spec_augment: bool = True,
        mask_time_prob: float = 0.05,
        mask_time_length: int = 10,
        mask_time_min_masks: int = 2,
        mask_feature_prob: float = 0.0,
        mask_feature_length: int = 10,
        mask_feature_min_masks: int = 0,
        more_architecture: Mapping[str, Any] | None = None,
        **wrapper: Any,
    ) -> None:
        given = {
            key: value
            for key, value in locals().items()
            if key not in ("self", "more_architecture", "wrapper", "__class__")
        }
        super().__init__(architecture={**given, **(more_architecture or {})}, **wrapper)

    # parts

    def _adapt(self) -> None:
        model: Any = self.hf_model
        self._geometry = ConvGeometry(self.architecture["conv_kernel"], self.architecture["conv_stride"])
        model.feature_extractor = ConvStack(model.feature_extractor)
        model.encoder.pos_conv_embed = PositionalConv(model.encoder.pos_conv_embed)
        norm_first = bool(self.architecture["do_stable_layer_norm"])
        model.encoder.layers = nn.ModuleList(
            EncoderLayer(layer, self.attention_class, norm_first) for layer in model.encoder.layers
        )
        if getattr(model, "adapter", None) is not None:
            model.adapter = ConvAdapter(model.adapter)

    @property
    def _adapter(self) -> ConvAdapter | None:
        return getattr(self.hf_model, "adapter", None)

    @property
    def hop_samples(self) -> int:
        return self._geometry.hop

    @property
    def min_samples(self) -> int:
        return self._geometry.receptive_field

    @property
    def output_size(self) -> int:
        size = self.architecture.get("output_hidden_size")
        return self.hidden_size if self._adapter is None or size is None else int(size)

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        return self._geometry.out_length(lengths)

    def last_out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        frames = self.out_lengths(lengths)
        return frames if self._adapter is None else self._adapter.out_lengths(frames)

    def feature_extractor_modules(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return [model.feature_extractor]

    def projection_modules(self) -> list[nn.Module]:
        model: Any = self.hf_model
        parts = [model.feature_projection, model.encoder.pos_conv_embed]
        return parts if self.architecture["do_stable_layer_norm"] else [*parts, model.encoder.layer_norm]

    def encoder_layers(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return list(model.encoder.layers)

    def output_modules(self) -> list[nn.Module]:
        model: Any = self.hf_model
        parts = [model.encoder.layer_norm] if self.architecture["do_stable_layer_norm"] else []
        return parts if self._adapter is None else [*parts, self._adapter]

    def last_state_modules(self) -> list[nn.Module]:
        return [] if self._adapter is None else [self._adapter]

    def fixed_parameters(self) -> list[nn.Parameter]:
        embedding = getattr(self.hf_model, "masked_spec_embed", None)
        masked = self.architecture["apply_spec_augment"] and self.architecture["mask_time_prob"] > 0
        return [] if embedding is None or masked else [embedding]

    # computation

    def _encode(self, x: torch.Tensor, padding: Padding | None, return_states: bool) -> Encoded:
        model: Any = self.hf_model
        if self.normalize_input:
            x = normalise_waveforms(x, padding)
        features, padding = model.feature_extractor(self._in_weight_dtype(x), padding)
        x = self._project(features, padding)
        x = self._add_positions(x + model.encoder.pos_conv_embed(x, padding))
        states, x = self._run_layers(x, padding, return_states)
        return self._finish(states, x, padding)

    def _in_weight_dtype(self, x: torch.Tensor) -> torch.Tensor:
        model: Any = self.hf_model
        return x.to(model.feature_extractor.conv_layers[0].conv.weight.dtype)

    def _project(self, features: torch.Tensor, padding: Padding | None) -> torch.Tensor:
        """(batch, channels, frames) to (batch, frames, hidden_size), with zeros in the padding; masked in training."""
        model: Any = self.hf_model
        projected = model.feature_projection(features.transpose(1, 2))
        x = projected[0] if isinstance(projected, tuple) else projected
        if self._masks_frames:
            x = mask_spans(x, padding, self.architecture, getattr(model, "masked_spec_embed", 0.0))
        return x if padding is None else padding.fill(x, dim=1)

    def _add_positions(self, x: torch.Tensor) -> torch.Tensor:
        """h_0, of the sum of features and positional convolution."""
        model: Any = self.hf_model
        if not self.architecture["do_stable_layer_norm"]:
            x = model.encoder.layer_norm(x)
        return model.encoder.dropout(x)

    def _run_layers(
        self, x: torch.Tensor, padding: Padding | None, return_states: bool
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """h_0 to the states that are asked for and h_n."""
        model: Any = self.hf_model
        states = [x] if return_states else []
        bias: torch.Tensor | None = None
        for layer in model.encoder.layers:
            x, bias = layer(x, padding, bias)
            if return_states:
                states.append(x)
        if self.architecture["do_stable_layer_norm"]:
            x = model.encoder.layer_norm(x)
            if return_states:
                states[-1] = x
        return states, x

    def _finish(self, states: list[torch.Tensor], last: torch.Tensor, padding: Padding | None) -> Encoded:
        last_padding = padding
        if self._adapter is not None:
            last, last_padding = self._adapter(last, padding)
        if padding is not None:
            states = [padding.fill(state, dim=1) for state in states]
        if last_padding is not None:
            last = last_padding.fill(last, dim=1)
        return Encoded(states, last, padding, last_padding)

    def _encode_in_chunks(self, x: torch.Tensor, return_states: bool, chunk_samples: int) -> Encoded:
        model: Any = self.hf_model
        if self.normalize_input:
            x = normalise_waveforms(x)
        chunk = chunk_samples // self.hop_samples
        features = conv_in_chunks(model.feature_extractor, self._geometry, self._in_weight_dtype(x), chunk)
        projected = self._project(features, None)

        def run(start: int, stop: int) -> tuple[list[torch.Tensor], torch.Tensor]:
            h = self._add_positions(self._with_positions(projected, start, stop))
            return self._run_layers(h, None, return_states)

        states, last = run_in_chunks(
            run, projected.size(1), chunk, self.left_encoder_context, self.right_encoder_context
        )
        return self._finish(states, last, None)

    def _with_positions(self, x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Frames ``start`` ... ``stop - 1`` of ``x`` plus their positional convolution, which sees the frames around them."""
        model: Any = self.hf_model
        conv = model.encoder.pos_conv_embed
        first = max(start - conv.reach, 0)
        positions = conv(x[:, first : stop + conv.reach])
        return x[:, start:stop] + positions[:, start - first : stop - first]
