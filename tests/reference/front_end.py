"""From the waveform to normalised features."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.reference.tensors import Scope

DEFAULTS: dict[str, Any] = {
    "sample_frequency": 16000,
    "frame_length": 25,
    "frame_shift": 10,
    "fft_length": 512,
    "remove_dc_offset": True,
    "preemphasis_coeff": 0.97,
    "window_type": "povey",
    "use_fft_mag": False,
    "dither": 1,
    "fb_type": "mel_kaldi",
    "low_freq": 20,
    "high_freq": 0,
    "num_filters": 23,
    "norm_filters": False,
    "num_ceps": 13,
    "snip_edges": True,
    "center": False,
    "cepstral_lifter": 22,
    "energy_floor": 0,
    "raw_energy": True,
    "use_energy": True,
}
FLOOR = 2.0**-14


def window(kind: str, length: int) -> Tensor:
    angle = 2 * math.pi * torch.arange(length, dtype=torch.float64) / length
    c1, c2 = angle.cos(), (2 * angle).cos()
    table = {
        "hanning": 0.5 - 0.5 * c1,
        "hamming": 0.54 - 0.46 * c1,
        "povey": (0.5 - 0.5 * c1) ** 0.85,
        "rectangular": torch.ones_like(c1),
        "blackman": 0.42 - 0.5 * c1 + 0.08 * c2,
    }
    return table[kind].float()


def kaldi_mel(f: float) -> float:
    return 1127 * math.log(1 + f / 700)


def inverse_kaldi_mel(m: float) -> float:
    return 700 * (math.exp(m / 1127) - 1)


def slaney(f: float) -> float:
    return 3 * f / 200 if f < 1000 else 15 + 27 * math.log(f / 1000) / math.log(6.4)


def inverse_slaney(m: float) -> float:
    return 200 * m / 3 if m < 15 else 1000 * math.exp(math.log(6.4) * (m - 15) / 27)


SCALES = {
    "mel_etsi": (kaldi_mel, inverse_kaldi_mel),
    "linear": (lambda f: f, lambda m: m),
    "mel_librosa": (slaney, inverse_slaney),
    "mel_librosa_htk": (lambda f: 2595 * math.log10(1 + f / 700), lambda m: 700 * (10 ** (m / 2595) - 1)),
}


def filter_bank(cfg: dict[str, Any], fft: int, rules: str) -> Tensor:
    """(fft / 2 + 1, num_filters), entry by entry."""
    fs, count, kind = cfg["sample_frequency"], cfg["num_filters"], cfg["fb_type"]
    low, high = cfg["low_freq"], cfg["high_freq"] if cfg["high_freq"] > 0 else fs / 2 + cfg["high_freq"]
    bank = torch.zeros(fft // 2 + 1, count, dtype=torch.float64)
    forward, inverse = SCALES.get(kind, (kaldi_mel, inverse_kaldi_mel))
    first, last = forward(low), forward(high)
    points = [first + (last - first) * k / (count + 1) for k in range(count + 2)]
    if kind != "mel_kaldi":
        points = [inverse(p) for p in points]
    rows, divisor = (fft // 2, fft - 1) if rules == "legacy" else (fft // 2 + 1, fft)
    mels = [kaldi_mel(j * fs / divisor) for j in range(rows)]
    for k in range(count):
        left, middle, right = points[k : k + 3]
        if kind == "mel_kaldi":
            for j, m in enumerate(mels):
                if left < m < right:
                    bank[j, k] = (m - left) / (middle - left) if m <= middle else (right - m) / (right - middle)
        elif kind in ("mel_etsi", "linear"):
            b0, b1, b2 = (round(p / fs * fft) for p in (left, middle, right))
            for j in range(b0, b1 + 1):
                bank[j, k] = (j - b0 + 1) / (b1 - b0 + 1)
            for j in range(b1 + 1, b2 + 1):
                bank[j, k] = (b2 - j + 1) / (b2 - b1 + 1)
        else:
            f = torch.arange(fft // 2 + 1, dtype=torch.float64) * fs / fft
            bank[:, k] = torch.minimum((f - left) / (middle - left), (right - f) / (right - middle)).clamp(min=0)
            if cfg["norm_filters"]:
                bank[:, k] *= 2 / (right - left)
    if cfg["norm_filters"] and "librosa" not in kind:
        bank /= bank.sum(0)
    return bank.float()


def frames(x: Tensor, length: int, shift: int, snip_edges: bool, center: bool) -> Tensor:
    """x (B, S) -> (B, T, length), frame by frame."""
    samples = x.shape[1]
    if center:
        left = right = length // 2
        count = 1 + (samples + 2 * left - length) // shift
    elif snip_edges:
        left = right = 0
        count = 1 + (samples - length) // shift
    else:
        count, left = (samples + shift // 2) // shift, (length - shift) // 2
        right = (count - 1) * shift + length - samples - left
    right = max(right, 0)
    head, tail = x[:, 1 : left + 1].flip(1), x[:, samples - 1 - right : samples - 1].flip(1)
    padded = torch.cat([head, x, tail], 1)
    return torch.stack([padded[:, t * shift : t * shift + length] for t in range(count)], 1)


def acoustic(t: Scope, x: Tensor, config: dict[str, Any], rules: str) -> Tensor:
    """x (B, S) -> (B, T, F); dither is off."""
    cfg = {**DEFAULTS, **config}
    kanbayashi = cfg["audio_feat"] == "kanbayashi_logfb"
    if kanbayashi:
        fixed = {
            "preemphasis_coeff": 0,
            "use_fft_mag": True,
            "fb_type": "mel_librosa",
            "norm_filters": True,
            "use_energy": False,
        }
        cfg = {**cfg, **fixed, "center": rules == "legacy" or cfg["center"], "audio_feat": "logfb"}
    fs, kind = cfg["sample_frequency"], cfg["audio_feat"]
    length, shift = math.floor(cfg["frame_length"] * fs / 1000), math.floor(cfg["frame_shift"] * fs / 1000)
    fft = cfg["fft_length"]
    if fft < length:
        fft = 2 ** math.ceil(math.log2(length))
    table = (t / "wav2win").put("_window", window(cfg["window_type"], length))
    if cfg["remove_dc_offset"]:
        x = x - x.mean(1, keepdim=True)
    raw = x
    if cfg["preemphasis_coeff"]:
        x = x - cfg["preemphasis_coeff"] * torch.cat([x[:, :1], x[:, :-1]], 1)
    framing = (length, shift, cfg["snip_edges"], cfg["center"])
    windowed = frames(x, *framing) * table
    spectrum = torch.fft.rfft(windowed, n=fft).abs()
    if not cfg["use_fft_mag"]:
        spectrum = spectrum**2
    power = (frames(raw, *framing) if cfg["raw_energy"] else windowed).pow(2).sum(2)
    energy = (power + (1e-15 if rules == "legacy" else FLOOR)).log()
    if kind == "spec":
        y = spectrum
    elif kind == "log_spec":
        y = (spectrum + 1e-15).log() if rules == "legacy" else spectrum.clamp(min=FLOOR).log()
    else:
        y = spectrum @ t.put("_fb", filter_bank(cfg, fft, rules))
        y = (y + 1e-10).log() if rules == "legacy" else y.clamp(min=FLOOR).log()
    if kind == "mfcc":
        y = cepstra(t, y, cfg)
    if cfg["use_energy"]:
        y = torch.cat([energy[..., None], y if kind == "logfb" else y[..., 1:]], 2)
    return y / math.log(10) if kanbayashi else y


def cepstra(t: Scope, y: Tensor, cfg: dict[str, Any]) -> Tensor:
    count, ceps, q = cfg["num_filters"], cfg["num_ceps"], cfg["cepstral_lifter"]
    n, k = torch.arange(count, dtype=torch.float64)[:, None], torch.arange(ceps, dtype=torch.float64)
    dct = (math.pi / count * (n + 0.5) * k).cos() * math.sqrt(2 / count)
    dct[:, 0] /= math.sqrt(2)
    y = y @ t.put("_dct", dct.float())
    if q > 0:
        y = y * t.put("_lifter", (1 + q / 2 * (math.pi * k / q).sin()).float())
    return y


def mean_var_norm(x: Tensor, cfg: dict[str, Any] | None, rules: str) -> Tensor:
    """x (B, T, F); only a configuration that contains a true ``norm_mean`` or ``norm_var`` normalises."""
    mean, var = (bool((cfg or {}).get(key)) for key in ("norm_mean", "norm_var"))
    if cfg is None or not (mean or var):
        return x
    mean = bool(cfg.get("norm_mean", True))
    left, right, count = cfg.get("left_context", 0), cfg.get("right_context", 0), x.shape[1]
    if left + right == 0 or count <= left + right + 1:
        centred = x - x.mean(1, keepdim=True)
        x = centred if mean else x
        return x / centred.pow(2).sum(1, keepdim=True).div(count - 1).sqrt().clamp(min=1e-5) if var else x
    if mean:
        x = x - x.mean(1, keepdim=True)
    z = F.pad(x.transpose(1, 2), (left, right), mode="reflect").transpose(1, 2)
    first = 1 if rules == "legacy" else 0
    windows = torch.stack([z[:, i + first : i + left + right + 1] for i in range(count)], 1)
    m, q = windows.sum(2) / (left + right + 1), windows.pow(2).sum(2) / (left + right + 1)
    y = x - m if mean else x
    return y / (q - m**2).clamp(min=1e-5).sqrt() if var else y


def front_end(t: Scope, x: Tensor, config: dict[str, Any], rules: str) -> Tensor:
    """x (B, S) -> (B, F, T)."""
    feats = acoustic(t / "audio_feats", x, config["audio_feats"], rules)
    return mean_var_norm(feats, config.get("mvn"), rules).transpose(1, 2)
