"""The encoder of Whisper."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.padding import Padding
from hyperion_lite.layers.precision import autocast_disabled
from hyperion_lite.tpm.hf.attention import SelfAttention
from hyperion_lite.tpm.hf.base import HFWav2VecBase
from hyperion_lite.tpm.hf.mel_tables import slaney_filters
from hyperion_lite.tpm.hf.outputs import Encoded
from hyperion_lite.tpm.hf.span_masks import mask_spans

_MEL_FLOOR = 1e-10
_RANGE = 8.0
"""Powers of ten below the loudest point of a window that are told apart."""


class LogMel(nn.Module):
    """Logarithmic mel spectrum of windows of one fixed length, scaled as Whisper takes it.

    Args:
        num_mels: filters.
        num_fft: samples of a frame.
        hop: samples between frames.
        sample_frequency: Hz.
    """

    _filters: torch.Tensor
    _window: torch.Tensor

    def __init__(self, num_mels: int, num_fft: int, hop: int, sample_frequency: int) -> None:
        super().__init__()
        self.num_fft = num_fft
        self.hop = hop
        self.register_buffer("_filters", slaney_filters(num_fft, num_mels, sample_frequency), persistent=False)
        self.register_buffer("_window", torch.hann_window(num_fft), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(windows, samples) to (windows, num_mels, samples / hop) float32."""
        with autocast_disabled(x):
            window = self._window.float()
            spectrum = torch.stft(x.float(), self.num_fft, self.hop, window=window, return_complex=True)[..., :-1]
            power = spectrum.real.square() + spectrum.imag.square()
            mel = (self._filters.float().t() @ power).clamp(min=_MEL_FLOOR).log10()
            return (torch.maximum(mel, mel.amax((1, 2), keepdim=True) - _RANGE) + 4.0) / 4.0


class WhisperLayer(nn.Module):
    """Self-attention and feed-forward, each normalised before.

    Args:
        source: the transformers layer whose parts are taken over, under the same names.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.self_attn = SelfAttention(source.self_attn)
        self.self_attn_layer_norm = source.self_attn_layer_norm
        self.activation_fn = source.activation_fn
        self.fc1 = source.fc1
        self.fc2 = source.fc2
        self.final_layer_norm = source.final_layer_norm
        self.dropout = float(source.dropout)
        self.activation_dropout = float(source.activation_dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(windows, time, features) to the same."""
        h, _ = self.self_attn(self.self_attn_layer_norm(x))
        x = x + F.dropout(h, self.dropout, self.training)
        h = F.dropout(self.activation_fn(self.fc1(self.final_layer_norm(x))), self.activation_dropout, self.training)
        x = x + F.dropout(self.fc2(h), self.dropout, self.training)
        if x.dtype == torch.float16:
            # large models leave the range of half precision here
            limit = torch.finfo(x.dtype).max - 1000
            x = x.clamp(-limit, limit)
        return x


class HFWhisperEncoder(HFWav2VecBase):
    """The encoder of Whisper, which sees windows of 30 s.

    Every item is cut into windows from its own first sample; the last one is filled up with zeros, as the model was trained. Each window
    is computed on its own, and the frames that begin within the item are kept, one every 20 ms; so an item of a second costs as much as
    one of 30 s, and nothing depends on the rest of the batch. In chunked processing the windows are computed one by one, whatever the
    chunk is. ``normalize_input`` and the encoder contexts have no effect.

    Args:
        num_mel_bins: filters of the log-mel spectrum.
        d_model: width of the encoder.
        encoder_layers: its layers.
        encoder_attention_heads: heads of each layer.
        encoder_ffn_dim: width inside the feed-forward parts.
        dropout: dropout of the outputs of all parts.
        attention_dropout: dropout of the attention weights.
        activation_dropout: dropout inside the feed-forward parts.
        activation_function: activation of the feed-forward parts.
        encoder_layerdrop: always 0.
        init_std: standard deviation of random weights.
        scale_embedding: kept for transformers; the encoder does not use it.
        max_source_positions: frames of a window.
        apply_spec_augment: mask the spectrum in training.
        mask_time_prob: share of the spectrum's frames that spans over time are drawn for.
        mask_time_length: frames of a span.
        mask_time_min_masks: fewest spans.
        mask_feature_prob: share of the filters that spans over filters are drawn for.
        mask_feature_length: filters of a span.
        mask_feature_min_masks: fewest spans.

    Reference: Radford et al., "Robust speech recognition via large-scale weak supervision", 2022.
    """

    model_type = "whisper"
    transformers_classes = ("whisper.configuration_whisper:WhisperConfig", "whisper.modeling_whisper:WhisperEncoder")
    weight_prefixes = ("model.encoder.", "encoder.")
    layers_key = "encoder_layers"

    def __init__(
        self,
        num_mel_bins: int = 80,
        d_model: int = 384,
        encoder_layers: int = 4,
        encoder_attention_heads: int = 6,
        encoder_ffn_dim: int = 1536,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation_function: str = "gelu",
        encoder_layerdrop: float = 0.0,
        init_std: float = 0.02,
        scale_embedding: bool = False,
        max_source_positions: int = 1500,
        apply_spec_augment: bool = False,
        mask_time_prob: float = 0.05,
        mask_time_length: int = 10,
        mask_time_min_masks: int = 2,
        mask_feature_prob: float = 0.0,
        mask_feature_length: int = 10,
        mask_feature_min_masks: int = 0,
        **wrapper: Any,
    ) -> None:
        given = {key: value for key, value in locals().items() if key not in ("self", "wrapper", "__class__")}
        super().__init__(architecture=given, **wrapper)

    # parts

    def _adapt(self) -> None:
        model: Any = self.hf_model
        processor = self.feature_processor or {}
        num_fft, hop = processor.get("n_fft", 400), processor.get("hop_length", 160)
        if not all(isinstance(v, int) and 0 < v <= self.sample_frequency for v in (num_fft, hop)):
            raise ConfigError(f"the feature processor has n_fft {num_fft} and hop_length {hop}: expected samples")
        self.log_mel = LogMel(self.architecture["num_mel_bins"], num_fft, hop, self.sample_frequency)
        model.layers = nn.ModuleList(WhisperLayer(layer) for layer in model.layers)

    @property
    def hidden_size(self) -> int:
        return int(self.architecture["d_model"])

    @property
    def hop_samples(self) -> int:
        return 2 * self.log_mel.hop

    @property
    def min_samples(self) -> int:
        return 1

    @property
    def window_samples(self) -> int:
        """Samples of a window."""
        return self.hop_samples * int(self.architecture["max_source_positions"])

    def out_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        return (lengths + self.hop_samples - 1) // self.hop_samples

    def feature_extractor_modules(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return [self.log_mel, model.conv1, model.conv2]

    def projection_modules(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return [model.embed_positions]

    def encoder_layers(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return list(model.layers)

    def output_modules(self) -> list[nn.Module]:
        model: Any = self.hf_model
        return [model.layer_norm]

    def fixed_parameters(self) -> list[nn.Parameter]:
        model: Any = self.hf_model
        # sinusoids, which were not trained either
        return [model.embed_positions.weight]

    # computation

    def _encode(self, x: torch.Tensor, padding: Padding | None, return_states: bool) -> Encoded:
        lengths = [x.size(1)] * x.size(0) if padding is None else padding.host_lengths
        frames = self.out_lengths(torch.tensor(lengths)).tolist()
        windows, sizes = self._windows(x, lengths)
        states, last = self._run_windows(windows, sizes, return_states)
        counts = [-(-length // self.window_samples) for length in lengths]
        valid = None if min(frames) == max(frames) else Padding(torch.tensor(frames, device=x.device), max(frames))

        def joined(h: torch.Tensor) -> torch.Tensor:
            items = [part.flatten(0, 1)[:count] for part, count in zip(h.split(counts), frames, strict=True)]
            return nn.utils.rnn.pad_sequence(items, batch_first=True)

        return Encoded([joined(state) for state in states], joined(last), valid, valid)

    def _encode_in_chunks(self, x: torch.Tensor, return_states: bool, chunk_samples: int) -> Encoded:
        pieces = [self._encode(piece, None, return_states) for piece in x.split(self.window_samples, dim=1)]
        states = [torch.cat(parts, dim=1) for parts in zip(*(piece.states for piece in pieces), strict=True)]
        return Encoded(states, torch.cat([piece.last for piece in pieces], dim=1), None, None)

    def _windows(self, x: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, list[int]]:
        """The windows of all items, (windows, samples), and how many samples of each belong to its item."""
        size = self.window_samples
        windows: list[torch.Tensor] = []
        sizes: list[int] = []
        for item, length in zip(x, lengths, strict=True):
            for start in range(0, length, size):
                piece = item[start : min(start + size, length)]
                sizes.append(piece.numel())
                windows.append(F.pad(piece, (0, size - piece.numel())))
        return torch.stack(windows), sizes

    def _run_windows(
        self, windows: torch.Tensor, sizes: list[int], return_states: bool
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        model: Any = self.hf_model
        mel = self.log_mel(windows)
        if self._masks_frames:
            filled = Padding(torch.tensor([-(-size // self.log_mel.hop) for size in sizes]), mel.size(2))
            mel = mask_spans(mel.transpose(1, 2), filled, self.architecture, 0.0).transpose(1, 2)
        x = F.gelu(model.conv1(mel.to(model.conv1.weight.dtype)))
        x = F.gelu(model.conv2(x)).transpose(1, 2)
        x = F.dropout(x + model.embed_positions.weight, model.dropout, self.training)
        states = [x] if return_states else []
        for layer in model.layers:
            x = layer(x)
            if return_states:
                states.append(x)
        x = model.layer_norm(x)
        if return_states:
            states[-1] = x
        return states, x
