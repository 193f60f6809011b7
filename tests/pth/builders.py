"""Checkpoint files of realistic structure with random contents, written by torch."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

PITCHED_40K = ([10, 10, 2, 2], [16, 16, 4, 4])
PITCHED_48K_V1 = ([10, 6, 2, 2, 2], [16, 16, 4, 4, 4])


def kokoro_layout(shape_file: Path) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Rows (state dictionary, tensor name, shape, storage number, storage offset)."""
    return [
        (part, name, tuple(shape), key, offset) for part, name, shape, key, offset in json.loads(shape_file.read_text())
    ]


def build_kokoro(path: Path, shape_file: Path, seed: int = 0) -> dict[str, dict[str, torch.Tensor]]:
    """Write a TTS checkpoint: five state dictionaries, the tensors of each LSTM views of one flat storage."""
    rows = kokoro_layout(shape_file)
    sizes: dict[int, int] = {}
    for _, _, shape, key, offset in rows:
        sizes[key] = max(sizes.get(key, 0), offset + prod(shape))
    generator = torch.Generator().manual_seed(seed)
    # uniform numbers cost a tenth of normal ones; the values do not matter
    storages = {key: torch.rand(size, generator=generator).sub_(0.5) for key, size in sizes.items()}
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for part, name, shape, key, offset in rows:
        parts.setdefault(part, {})[name] = storages[key][offset : offset + prod(shape)].view(shape)
    torch.save(parts, path)
    return parts


def voice_config(
    *,
    rates: tuple[list[int], list[int]] = PITCHED_40K,
    resblock: str = "1",
    sample_rate: int | str = 40000,
    speakers: int = 5,
) -> list[Any]:
    """A positional configuration with the depths of the real ones and small widths."""
    dilations = [[1, 3, 5]] * 3 if resblock == "1" else [[1, 3]] * 3
    return [
        33, 32, 8, 12, 20, 2, 6, 3, 0, resblock, [3, 7, 11], dilations, rates[0], 64, rates[1], speakers, 10, sample_rate,
    ]  # fmt: skip


def build_voice(
    path: Path,
    *,
    version: str | None = "v2",
    f0: bool = True,
    config: list[Any] | None = None,
    spelling: str = "old",
    change: dict[str, tuple[int, ...]] | None = None,
    extra: dict[str, Any] | None = None,
    half: bool = True,
) -> dict[str, Any]:
    """Write a voice-conversion inference checkpoint and return what was saved.

    Args:
        path: where to write it.
        version: "v1", "v2", or None for the files older than the field (they are v1).
        f0: pitch guidance.
        config: the positional configuration.
        spelling: "old" (``weight_g``), "new" (``parametrizations``) or "fused" for the weight-normalised layers.
        change: tensor name -> another shape than the right one.
        extra: more fields for the file.
        half: float16 weights, as the real files have.
    """
    config = voice_config() if config is None else config
    network = _network(json.dumps(config), 256 if version in (None, "v1") else 768, f0, spelling)
    weights = OrderedDict((name, value.half() if half else value) for name, value in network.state_dict().items())
    for name, shape in (change or {}).items():
        weights[name] = torch.zeros(shape)
    saved: dict[str, Any] = {"weight": weights, "config": config, "info": "200epoch", "sr": "40k", "f0": int(f0)}
    if version is not None:
        saved["version"] = version
    saved.update(extra or {})
    torch.save(saved, path)
    return saved


def build_voice_training(path: Path) -> None:
    """Write a training checkpoint of the family: ``model``, ``optimizer``, no ``config``."""
    network = _Voice(voice_config(), 768, True, "old")
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = {"model": network.state_dict(), "iteration": 7, "optimizer": optimizer.state_dict(), "learning_rate": 1e-4}
    torch.save(state, path)


@lru_cache(maxsize=16)
def _network(config: str, phone_width: int, f0: bool, spelling: str) -> nn.Module:
    return _Voice(json.loads(config), phone_width, f0, spelling)


def _normed(layer: nn.Module, spelling: str) -> nn.Module:
    if spelling == "new":
        return torch.nn.utils.parametrizations.weight_norm(layer)
    if spelling == "old":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return torch.nn.utils.weight_norm(layer)
    return layer


class _Norm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))


class _Attention(nn.Module):
    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.conv_q, self.conv_k, self.conv_v, self.conv_o = (nn.Conv1d(channels, channels, 1) for _ in range(4))
        self.emb_rel_k, self.emb_rel_v = (nn.Parameter(torch.randn(1, 21, channels // heads)) for _ in range(2))


class _FeedForward(nn.Module):
    def __init__(self, channels: int, inner: int, kernel: int) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = nn.Conv1d(channels, inner, kernel), nn.Conv1d(inner, channels, kernel)


class _TextEncoder(nn.Module):
    def __init__(self, config: list[Any], phone_width: int, f0: bool) -> None:
        super().__init__()
        inter, hidden, inner, heads, layers, kernel = config[2:8]
        self.emb_phone = nn.Linear(phone_width, hidden)
        if f0:
            self.emb_pitch = nn.Embedding(256, hidden)
        self.encoder = nn.Module()
        self.encoder.attn_layers = nn.ModuleList(_Attention(hidden, heads) for _ in range(layers))
        self.encoder.norm_layers_1 = nn.ModuleList(_Norm(hidden) for _ in range(layers))
        self.encoder.ffn_layers = nn.ModuleList(_FeedForward(hidden, inner, kernel) for _ in range(layers))
        self.encoder.norm_layers_2 = nn.ModuleList(_Norm(hidden) for _ in range(layers))
        self.proj = nn.Conv1d(hidden, inter * 2, 1)


class _ResBlock(nn.Module):
    def __init__(self, kind: str, channels: int, kernel: int, dilations: list[int], spelling: str) -> None:
        super().__init__()
        for name in ("convs1", "convs2") if kind == "1" else ("convs",):
            layers = [_normed(nn.Conv1d(channels, channels, kernel), spelling) for _ in dilations]
            self.add_module(name, nn.ModuleList(layers))


class _Decoder(nn.Module):
    def __init__(self, config: list[Any], f0: bool, spelling: str) -> None:
        super().__init__()
        kind, kernels, dilations, rates, channels, up_kernels = config[9:15]
        if f0:
            self.m_source = nn.Module()
            self.m_source.l_linear = nn.Linear(1, 1)
            self.noise_convs = nn.ModuleList()
        self.conv_pre = nn.Conv1d(config[2], channels, 7)
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        self.cond = nn.Conv1d(config[16], channels, 1)
        for stage, (rate, kernel) in enumerate(zip(rates, up_kernels, strict=True)):
            self.ups.append(_normed(nn.ConvTranspose1d(channels, channels // 2, kernel, rate), spelling))
            channels //= 2
            if f0:
                last = stage + 1 == len(rates)
                self.noise_convs.append(nn.Conv1d(1, channels, 1 if last else 2 * prod(rates[stage + 1 :])))
            for resblock_kernel, dilation in zip(kernels, dilations, strict=True):
                self.resblocks.append(_ResBlock(kind, channels, resblock_kernel, dilation, spelling))
        self.conv_post = nn.Conv1d(channels, 1, 7, bias=False)


class _Coupling(nn.Module):
    def __init__(self, config: list[Any], spelling: str) -> None:
        super().__init__()
        half, hidden = config[2] // 2, config[3]
        self.pre, self.post = nn.Conv1d(half, hidden, 1), nn.Conv1d(hidden, half, 1)
        self.enc = nn.Module()
        self.enc.cond_layer = _normed(nn.Conv1d(config[16], 2 * hidden * 3, 1), spelling)
        self.enc.in_layers = nn.ModuleList(_normed(nn.Conv1d(hidden, 2 * hidden, 5), spelling) for _ in range(3))
        skips = [nn.Conv1d(hidden, hidden if last else 2 * hidden, 1) for last in (False, False, True)]
        self.enc.res_skip_layers = nn.ModuleList(_normed(skip, spelling) for skip in skips)


class _Voice(nn.Module):
    """The inference part of the network, with the parameters and names of the real one and no forward."""

    def __init__(self, config: list[Any], phone_width: int, f0: bool, spelling: str) -> None:
        super().__init__()
        self.enc_p = _TextEncoder(config, phone_width, f0)
        self.dec = _Decoder(config, f0, spelling)
        self.flow = nn.Module()
        # every second entry is a flip, which has no parameters
        self.flow.flows = nn.ModuleList(_Coupling(config, spelling) if i % 2 == 0 else nn.Identity() for i in range(8))
        self.emb_g = nn.Embedding(config[15], config[16])
