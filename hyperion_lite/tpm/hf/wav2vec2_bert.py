"""w2v-BERT 2.0."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding
from hyperion_lite.tpm.hf.base import HFWav2VecBase
from hyperion_lite.tpm.hf.chunks import run_in_chunks
from hyperion_lite.tpm.hf.conformer import ConformerAdapter, ConformerLayer
from hyperion_lite.tpm.hf.outputs import Encoded
from hyperion_lite.tpm.hf.span_masks import mask_spans
from hyperion_lite.tpm.hf.stacked_fbank import StackedFbank


class HFWav2Vec2Bert(HFWav2VecBase):
    """w2v-BERT 2.0: Conformer layers on stacked filter-bank energies.

    The features are normalised over each item, whatever ``normalize_input`` says. A chunk's layers look back with a convolution, beside
    the attention, so in chunked processing the left context should be the longer one.

    Args:
        feature_projection_input_dim: features of a frame, filters times stacked frames.
        hidden_size: width of the layers.
        num_hidden_layers: their number.
        num_attention_heads: heads of each layer.
        intermediate_size: width inside the feed-forward parts.
        hidden_act: activation of the feed-forward and convolution parts.
        hidden_dropout: dropout of the outputs of the parts.
        activation_dropout: dropout inside the feed-forward parts.
        attention_dropout: dropout of the attention weights.
        feat_proj_dropout: dropout of the projected features.
        layerdrop: always 0.
        initializer_range: standard deviation of random weights.
        layer_norm_eps: added to the variance in layer norms.
        apply_spec_augment: mask features in training.
        mask_time_prob: share of the frames that spans over time are drawn for.
        mask_time_length: frames of a span.
        mask_time_min_masks: fewest spans.
        mask_feature_prob: share of the features that spans over features are drawn for.
        mask_feature_length: features of a span.
        mask_feature_min_masks: fewest spans.
        add_adapter: reduce the frame rate of the last hidden state.
        adapter_kernel_size: kernel size of its convolutions.
        adapter_stride: their stride.
        num_adapter_layers: layers of the adapter.
        adapter_act: activation in its feed-forward parts.
        use_intermediate_ffn_before_adapter: half a feed-forward part between the last layer and the adapter.
        output_hidden_size: features behind the adapter; ``None`` for hidden_size.
        position_embeddings_type: kind of positions in the attention.
        rotary_embedding_base: base of the wavelengths of rotary positions.
        max_source_positions: kept for transformers; items may be longer.
        left_max_position_embeddings: distances back in time that have their own embedding, for relative_key.
        right_max_position_embeddings: distances ahead in time that have their own embedding, for relative_key.
        conv_depthwise_kernel_size: kernel size of the convolution part.
        conformer_conv_dropout: its dropout.

    Reference: Seamless Communication, "Seamless: multilingual expressive and streaming speech translation", 2023.
    """

    default_lora_components = ("linear_q", "linear_v")
    model_type = "wav2vec2-bert"
    transformers_classes = (
        "wav2vec2_bert.configuration_wav2vec2_bert:Wav2Vec2BertConfig",
        "wav2vec2_bert.modeling_wav2vec2_bert:Wav2Vec2BertModel",
    )
    weight_prefixes = ("wav2vec2_bert.",)

    def __init__(
        self,
        feature_projection_input_dim: int = 160,
        hidden_size: int = 1024,
        num_hidden_layers: int = 24,
        num_attention_heads: int = 16,
        intermediate_size: int = 4096,
        hidden_act: str = "swish",
        hidden_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feat_proj_dropout: float = 0.0,
        layerdrop: float = 0.0,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-5,
        apply_spec_augment: bool = True,
        mask_time_prob: float = 0.05,
        mask_time_length: int = 10,
        mask_time_min_masks: int = 2,
        mask_feature_prob: float = 0.0,
        mask_feature_length: int = 10,
        mask_feature_min_masks: int = 0,
        add_adapter: bool = False,
        adapter_kernel_size: int = 3,
        adapter_stride: int = 2,
        num_adapter_layers: int = 1,
        adapter_act: str = "relu",
        use_intermediate_ffn_before_adapter: bool = False,
        output_hidden_size: int | None = None,
        position_embeddings_type: Literal["relative_key", "relative", "rotary"] | None = "relative_key",
        rotary_embedding_base: int = 10000,
        max_source_positions: int = 5000,
        left_max_position_embeddings: int = 64,
        right_max_position_embeddings: int = 8,
        conv_depthwise_kernel_size: int = 31,
        conformer_conv_dropout: float = 0.1,
        **wrapper: Any,
    ) -> None:
        given = {key: value for key, value in locals().items() if key not in ("self", "wrapper", "__class__")}
        super().__init__(architecture=given, **wrapper)

    # parts

    def _adapt(self) -> None:
        model: Any = self.hf_model
        processor = self.feature_processor or {}
        stack = processor.get("stride", 2)
        features = self.architecture["feature_projection_input_dim"]
        mels = processor.get("num_mel_bins", features // stack if isinstance(stack, int) and stack > 0 else 0)
        if not isinstance(stack, int) or not isinstance(mels, int) or mels < 1 or mels * stack != features:
            raise ConfigError(
                f"a feature processor with num_mel_bins {mels} and stride {stack} does not give the "
                f"feature_projection_input_dim = {features} features that the model takes"
            )
        self.fbank = StackedFbank(mels, stack, self.sample_frequency)
        base = float(self.architecture["rotary_embedding_base"])
        # positions are made in the attention
        model.encoder.embed_positions = None
        model.encoder.layers = nn.ModuleList(ConformerLayer(layer, base) for layer in model.encoder.layers)
        if model.adapter is not None:
            model.adapter = ConformerAdapter(model.adapter)

    @property
    def _adapter(self) -> ConformerAdapter | None:
        model: Any = self.hf_model
        return model.adapter

    @property
    def hop_samples(self) -> int:
        return self.fbank.hop

    @property
    def min_samples(self) -> int:
        return self.fbank.min_samples

    @property
    def output_size(self) -> int:
        size = self.architecture["output_hidden_size"]
        return self.hidden_size if self._adapter is None or size is None else int(size)

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        return self.fbank.out_lengths(lengths)

    def last_out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        frames = self.out_lengths(lengths)
        return frames if self._adapter is None else self._adapter.out_lengths(frames)

    def feature_extractor_modules(self) -> list[nn.Module]:
        return [self.fbank]

    def projection_modules(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return [model.feature_projection]

    def encoder_layers(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return list(model.encoder.layers)

    def output_modules(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return [part for part in (model.intermediate_ffn, model.adapter) if part is not None]

    def last_state_modules(self) -> list[nn.Module]:
        return self.output_modules()

    def fixed_parameters(self) -> list[nn.Parameter]:
        embedding = getattr(self.hf_model, "masked_spec_embed", None)
        masked = self.architecture["apply_spec_augment"] and self.architecture["mask_time_prob"] > 0
        return [] if embedding is None or masked else [embedding]

    # computation

    def _encode(self, x: torch.Tensor, padding: Padding | None, return_states: bool) -> Encoded:
        x, padding = self._project(x, padding)
        states, last = self._run_layers(x, padding, return_states)
        return self._finish(states, last, padding)

    def _encode_in_chunks(self, x: torch.Tensor, return_states: bool, chunk_samples: int) -> Encoded:
        projected, _ = self._project(x, None)

        def run(start: int, stop: int) -> tuple[list[torch.Tensor], torch.Tensor]:
            return self._run_layers(projected[:, start:stop], None, return_states)

        chunk = chunk_samples // self.hop_samples
        states, last = run_in_chunks(
            run, projected.size(1), chunk, self.left_encoder_context, self.right_encoder_context
        )
        return self._finish(states, last, None)

    def _project(self, x: torch.Tensor, padding: Padding | None) -> tuple[torch.Tensor, Padding | None]:
        """h_0, with zeros in the padding; masked in training."""
        model: Any = self.hf_model
        features, padding = self.fbank(x, padding)
        x, _ = model.feature_projection(features.to(model.feature_projection.projection.weight.dtype))
        if self._masks_frames:
            x = mask_spans(x, padding, self.architecture, getattr(model, "masked_spec_embed", 0.0))
        x = x if padding is None else padding.fill(x, dim=1)
        return model.encoder.dropout(x), padding

    def _run_layers(
        self, x: torch.Tensor, padding: Padding | None, return_states: bool
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        states = [x] if return_states else []
        for layer in self.encoder_layers():
            x = layer(x, padding)
            if return_states:
                states.append(x)
        return states, x

    def _finish(self, states: list[torch.Tensor], last: torch.Tensor, padding: Padding | None) -> Encoded:
        model: Any = self.hf_model
        last_padding = padding
        if model.intermediate_ffn is not None:
            last = last + 0.5 * model.intermediate_ffn(last)
        if self._adapter is not None:
            last, last_padding = self._adapter(last, padding)
        if padding is not None:
            states = [padding.fill(state, dim=1) for state in states]
        if last_padding is not None:
            last = last_padding.fill(last, dim=1)
        return Encoded(states, last, padding, last_padding)
