"""Tensor names and shapes of a voice-conversion network, derived from its positional configuration.

The network is of the VITS family with a HiFi-GAN decoder: a text encoder over phone embeddings, a flow of residual couplings, a
decoder that is driven by pitch when pitch guidance is on, a speaker table and, in training checkpoints only, a posterior encoder.
Every shape is a function of the configuration, so a file can be checked without building the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

Shape = tuple[int, ...]

# constants of the architecture that the positional configuration does not carry
_PITCH_BINS = 256
_ATTENTION_WINDOW = 10
_COUPLING_LAYERS = 4
_FLOW_KERNEL = 5
_FLOW_WN_LAYERS = 3
_POSTERIOR_KERNEL = 5
_POSTERIOR_WN_LAYERS = 16
_END_KERNEL = 7

PITCH_TENSORS = ("enc_p.emb_pitch.", "dec.m_source.", "dec.noise_convs.")
"""Name prefixes of the tensors that exist only with pitch guidance."""

PHONE_WIDTHS = {"v1": 256, "v2": 768}
"""Input width of the phone embedding by checkpoint version."""

_MAX_SIZE = 1 << 24
_MAX_LAYERS = 1024
_MAX_STAGES = 16


@dataclass(frozen=True)
class VoiceConfig:
    """The positional ``config`` of a voice-conversion checkpoint with its fields named, in their order in the file.

    Attributes:
        spec_channels: spectrogram bins.
        segment_size: training segment in spectrogram frames.
        inter_channels: channels between encoder, flow and decoder.
        hidden_channels: channels inside encoder and flow.
        filter_channels: channels inside the feed-forward layers.
        n_heads: attention heads.
        n_layers: attention layers.
        kernel_size: kernel of the feed-forward convolutions.
        p_dropout: dropout probability.
        resblock: residual block type of the decoder, "1" or "2".
        resblock_kernel_sizes: one kernel per residual block of a stage.
        resblock_dilation_sizes: the dilations of each of these blocks.
        upsample_rates: one rate per decoder stage.
        upsample_initial_channel: channels of the first stage; every stage halves them.
        upsample_kernel_sizes: one kernel per decoder stage.
        spk_embed_dim: number of speakers.
        gin_channels: speaker embedding channels; 0 for a network without speakers.
        sr: sample rate as it stands in the file, usually Hz.
    """

    spec_channels: int
    segment_size: int
    inter_channels: int
    hidden_channels: int
    filter_channels: int
    n_heads: int
    n_layers: int
    kernel_size: int
    p_dropout: float
    resblock: str
    resblock_kernel_sizes: tuple[int, ...]
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]
    upsample_rates: tuple[int, ...]
    upsample_initial_channel: int
    upsample_kernel_sizes: tuple[int, ...]
    spk_embed_dim: int
    gin_channels: int
    sr: int | str


VOICE_FIELDS = tuple(VoiceConfig.__dataclass_fields__)
_TUPLES = ("resblock_kernel_sizes", "upsample_rates", "upsample_kernel_sizes")
_ZERO_ALLOWED = ("gin_channels", "spk_embed_dim", "segment_size")


def parse_voice_config(values: Any) -> VoiceConfig:
    """Name the fields of a positional configuration; entries after the last known field are ignored here.

    Raises:
        ValueError: not a list, too short, or a field of the wrong type or out of range; the message names the position and the field.
    """
    if not isinstance(values, list | tuple):
        raise ValueError(
            f"'config' is a {type(values).__name__}; expected the positional list of {len(VOICE_FIELDS)} entries"
        )
    if len(values) < len(VOICE_FIELDS):
        raise ValueError(
            f"'config' has {len(values)} entries; expected {len(VOICE_FIELDS)}, the first one missing is {VOICE_FIELDS[len(values)]!r}"
        )
    fields = {name: _field(index, name, values[index]) for index, name in enumerate(VOICE_FIELDS)}
    config = VoiceConfig(**fields)
    _check_config(config)
    return config


def _field(index: int, name: str, value: Any) -> Any:
    where = f"config[{index}] ({name})"
    if name == "p_dropout":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where} is {value!r}; expected a number")
        return float(value) if abs(value) <= 1 else _out_of_range(where, value, "a probability")
    if name == "resblock":
        return str(_whole(where, value, 0)) if not isinstance(value, str) else value
    if name == "sr":
        return value if isinstance(value, str) else _whole(where, value, 1)
    if name == "resblock_dilation_sizes":
        return tuple(_whole_list(f"{where}[{number}]", item) for number, item in enumerate(_list(where, value)))
    if name in _TUPLES:
        return _whole_list(where, value)
    return _whole(where, value, 0 if name in _ZERO_ALLOWED else 1)


def _whole(where: str, value: Any, smallest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{where} is {_short(value)}; expected a whole number")
    if not smallest <= value <= _MAX_SIZE:
        _out_of_range(where, value, f"{smallest} to {_MAX_SIZE}")
    return value


def _out_of_range(where: str, value: Any, expected: str) -> Any:
    raise ValueError(f"{where} is {_short(value)}; expected {expected}")


def _list(where: str, value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MAX_STAGES:
        raise ValueError(f"{where} is {_short(value)}; expected a list of 1 to {_MAX_STAGES} entries")
    return value


def _whole_list(where: str, value: Any) -> tuple[int, ...]:
    return tuple(_whole(f"{where}[{number}]", item, 1) for number, item in enumerate(_list(where, value)))


def _short(value: Any) -> str:
    if isinstance(value, list | tuple | dict | set):
        return f"a {type(value).__name__} of {len(value)} entries"
    # the digits of a huge integer are refused by Python itself
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_config(config: VoiceConfig) -> None:
    if config.n_layers > _MAX_LAYERS:
        raise ValueError(f"config[6] (n_layers) is {config.n_layers}; expected at most {_MAX_LAYERS}")
    if config.hidden_channels % config.n_heads:
        raise ValueError(
            f"config[3] (hidden_channels) is {config.hidden_channels}, not a multiple of n_heads, {config.n_heads}"
        )
    if config.inter_channels % 2:
        raise ValueError(
            f"config[2] (inter_channels) is {config.inter_channels}; the coupling layers need an even number"
        )
    if len(config.upsample_rates) != len(config.upsample_kernel_sizes):
        raise ValueError(
            f"config has {len(config.upsample_rates)} upsample_rates and {len(config.upsample_kernel_sizes)} upsample_kernel_sizes"
        )
    if len(config.resblock_kernel_sizes) != len(config.resblock_dilation_sizes):
        raise ValueError(
            f"config has {len(config.resblock_kernel_sizes)} resblock_kernel_sizes and "
            f"{len(config.resblock_dilation_sizes)} resblock_dilation_sizes"
        )
    if config.upsample_initial_channel >> len(config.upsample_rates) < 1:
        raise ValueError(
            f"config[13] (upsample_initial_channel) is {config.upsample_initial_channel}: too few to halve at every stage"
        )


def expected_shapes(config: VoiceConfig, phone_width: int | None, f0: bool) -> dict[str, Shape]:
    """Return name -> shape of every tensor of an inference checkpoint, weight normalisation in its older spelling.

    Args:
        config: the named configuration.
        phone_width: input width of the phone embedding; None (an unknown version) leaves that tensor out.
        f0: whether pitch guidance is on.
    """
    shapes = dict(_text_encoder(config, phone_width, f0))
    shapes.update(_decoder(config, f0))
    shapes.update(_flow(config))
    if config.gin_channels:
        shapes["emb_g.weight"] = (config.spk_embed_dim, config.gin_channels)
    return shapes


def posterior_shapes(config: VoiceConfig) -> dict[str, Shape]:
    """Return name -> shape of the posterior encoder, which inference checkpoints usually leave out."""
    shapes = dict(_conv("enc_q.pre", config.spec_channels, config.hidden_channels, 1))
    shapes.update(_wavenet("enc_q.enc", config, _POSTERIOR_KERNEL, _POSTERIOR_WN_LAYERS))
    shapes.update(_conv("enc_q.proj", config.hidden_channels, 2 * config.inter_channels, 1))
    return shapes


def _conv(name: str, inputs: int, outputs: int, kernel: int, bias: bool = True) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs, kernel)
    if bias:
        yield f"{name}.bias", (outputs,)


def _normed_conv(
    name: str, inputs: int, outputs: int, kernel: int, transposed: bool = False
) -> Iterator[tuple[str, Shape]]:
    shape = (inputs, outputs, kernel) if transposed else (outputs, inputs, kernel)
    yield f"{name}.weight_g", (shape[0], 1, 1)
    yield f"{name}.weight_v", shape
    yield f"{name}.bias", (outputs,)


def _text_encoder(config: VoiceConfig, phone_width: int | None, f0: bool) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_channels
    if phone_width is not None:
        yield "enc_p.emb_phone.weight", (hidden, phone_width)
    yield "enc_p.emb_phone.bias", (hidden,)
    if f0:
        yield "enc_p.emb_pitch.weight", (_PITCH_BINS, hidden)
    for layer in range(config.n_layers):
        attention = f"enc_p.encoder.attn_layers.{layer}"
        for part in ("emb_rel_k", "emb_rel_v"):
            yield f"{attention}.{part}", (1, 2 * _ATTENTION_WINDOW + 1, hidden // config.n_heads)
        for part in ("conv_q", "conv_k", "conv_v", "conv_o"):
            yield from _conv(f"{attention}.{part}", hidden, hidden, 1)
        for norm in ("norm_layers_1", "norm_layers_2"):
            for part in ("gamma", "beta"):
                yield f"enc_p.encoder.{norm}.{layer}.{part}", (hidden,)
        feed_forward = f"enc_p.encoder.ffn_layers.{layer}"
        yield from _conv(f"{feed_forward}.conv_1", hidden, config.filter_channels, config.kernel_size)
        yield from _conv(f"{feed_forward}.conv_2", config.filter_channels, hidden, config.kernel_size)
    yield from _conv("enc_p.proj", hidden, 2 * config.inter_channels, 1)


def _decoder(config: VoiceConfig, f0: bool) -> Iterator[tuple[str, Shape]]:
    channels = config.upsample_initial_channel
    if f0:
        yield "dec.m_source.l_linear.weight", (1, 1)
        yield "dec.m_source.l_linear.bias", (1,)
    yield from _conv("dec.conv_pre", config.inter_channels, channels, _END_KERNEL)
    if config.gin_channels:
        yield from _conv("dec.cond", config.gin_channels, channels, 1)
    blocks = len(config.resblock_kernel_sizes)
    for stage, kernel in enumerate(config.upsample_kernel_sizes):
        yield from _normed_conv(f"dec.ups.{stage}", channels, channels // 2, kernel, transposed=True)
        channels //= 2
        if f0:
            # the source signal is brought down to the rate of this stage by a strided convolution
            remaining = config.upsample_rates[stage + 1 :]
            yield from _conv(f"dec.noise_convs.{stage}", 1, channels, 2 * prod(remaining) if remaining else 1)
        for number in range(blocks):
            yield from _resblock(f"dec.resblocks.{stage * blocks + number}", config, number, channels)
    yield from _conv("dec.conv_post", channels, 1, _END_KERNEL, bias=False)


def _resblock(name: str, config: VoiceConfig, number: int, channels: int) -> Iterator[tuple[str, Shape]]:
    kernel = config.resblock_kernel_sizes[number]
    lists = ("convs1", "convs2") if config.resblock == "1" else ("convs",)
    for convs in lists:
        for index in range(len(config.resblock_dilation_sizes[number])):
            yield from _normed_conv(f"{name}.{convs}.{index}", channels, channels, kernel)


def _flow(config: VoiceConfig) -> Iterator[tuple[str, Shape]]:
    half = config.inter_channels // 2
    # couplings alternate with flips, which have no parameters
    for index in range(0, 2 * _COUPLING_LAYERS, 2):
        name = f"flow.flows.{index}"
        yield from _conv(f"{name}.pre", half, config.hidden_channels, 1)
        yield from _wavenet(f"{name}.enc", config, _FLOW_KERNEL, _FLOW_WN_LAYERS)
        yield from _conv(f"{name}.post", config.hidden_channels, half, 1)


def _wavenet(name: str, config: VoiceConfig, kernel: int, layers: int) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_channels
    if config.gin_channels:
        yield from _normed_conv(f"{name}.cond_layer", config.gin_channels, 2 * hidden * layers, 1)
    for layer in range(layers):
        yield from _normed_conv(f"{name}.in_layers.{layer}", hidden, 2 * hidden, kernel)
        outputs = hidden if layer == layers - 1 else 2 * hidden
        yield from _normed_conv(f"{name}.res_skip_layers.{layer}", hidden, outputs, 1)
