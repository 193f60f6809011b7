"""Speed of the acoustic front end on one core, beside torchaudio's Kaldi-compatible filter bank in the same run.

    python benchmarks/features.py [--threads 1] [--repeats 20]

Prints a table: for each front end, x real time for one utterance of 10 s, a batch of 16 of them, and a padded batch of 2 to 10 s
(counted by valid audio). Times are the best of the repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch

from hyperion_lite.narchs.audio_feats_mvn import AudioFeatsMVN

SAMPLE_FREQUENCY = 16000
RECIPE = {
    "audio_feat": "logfb",
    "num_filters": 80,
    "low_freq": 20,
    "high_freq": 7600,
    "snip_edges": False,
    "use_energy": False,
}
SLIDING = {"norm_mean": True, "left_context": 150, "right_context": 150}
FRONT_ENDS = {
    "logfb 80": (RECIPE, None),
    "logfb 80, mean over 301 frames": (RECIPE, SLIDING),
    "logfb 80, mean and variance": (RECIPE, {**SLIDING, "norm_var": True}),
    "logfb 80, energy": ({**RECIPE, "use_energy": True}, None),
    "mfcc 20": ({**RECIPE, "audio_feat": "mfcc", "num_ceps": 20}, None),
    "log_spec": ({**RECIPE, "audio_feat": "log_spec"}, None),
}


def best_times(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Seconds of the fastest of ``repeats`` runs of each call; the calls take turns, so that a busy moment hits all of them."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def make_inputs() -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    """Name -> waveforms and lengths."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(16, 10 * SAMPLE_FREQUENCY, generator=generator) * 0.1
    lengths = torch.linspace(2, 10, 16).mul(SAMPLE_FREQUENCY).long()
    return {"1 x 10 s": (batch[:1], None), "16 x 10 s": (batch, None), "16 x 2-10 s": (batch, lengths)}


def torchaudio_fbank(x: torch.Tensor, lengths: torch.Tensor | None) -> None:
    """The filter bank of torchaudio, which takes one utterance at a time."""
    from torchaudio.compliance.kaldi import fbank

    sizes = [x.size(1)] * x.size(0) if lengths is None else lengths.tolist()
    for item, size in zip(x, sizes, strict=True):
        fbank(item[None, :size], num_mel_bins=80, high_freq=7600.0, snip_edges=False, dither=0.0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    inputs = make_inputs()
    contenders: dict[str, Callable[..., object]] = {"torchaudio kaldi fbank 80": torchaudio_fbank}
    for name, (feats, mvn) in FRONT_ENDS.items():
        contenders[name] = AudioFeatsMVN(feats, mvn, trans=True).eval()
    cells: dict[str, list[str]] = {name: [] for name in contenders}
    with torch.inference_mode():
        for x, lengths in inputs.values():
            audio = float(x.numel() if lengths is None else lengths.sum()) / SAMPLE_FREQUENCY
            times = best_times([lambda f=f, x=x, n=lengths: f(x, n) for f in contenders.values()], args.repeats)
            for name, taken in zip(contenders, times, strict=True):
                cells[name].append(f"{audio / taken:12.0f} ({times[0] / taken:4.1f})")
    print(
        f"x real time, {args.threads} thread(s), torch {torch.__version__}; in brackets: times faster than torchaudio"
    )
    print(f"{'front end':32}" + "".join(f"{name:>20}" for name in inputs))
    for name, row in cells.items():
        print(f"{name:32}" + "".join(f"{cell:>20}" for cell in row))


if __name__ == "__main__":
    main()
