"""Speed of extraction: x real time, and the share of the machine's measured matrix-product rate.

    python benchmarks/extract.py [--threads 2]

Prints a table in Markdown. The limit is the rate of a large float32 matrix product, measured in the same run; the floating-point
operations of a model are counted by torch's own counter.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from hyperion_lite.extraction.batching import BatchLimits, group_by_length, padded_share
from hyperion_lite.models.registry import find_model_class
from hyperion_lite.narchs.fold_batch_norm import fold_batch_norm

SAMPLE_FREQ = 16000

FEATS = {
    "audio_feats": {
        "audio_feat": "logfb",
        "sample_frequency": SAMPLE_FREQ,
        "num_filters": 80,
        "snip_edges": False,
        "use_energy": False,
        "low_freq": 20,
        "high_freq": 7600,
    },
    "mvn": {"norm_mean": True, "norm_var": False, "left_context": 150, "right_context": 150},
    "trans": True,
}
ECAPA_512 = {
    "resnet_enc": {
        "in_feats": 80,
        "in_conv_channels": 512,
        "in_kernel_size": 5,
        "resb_type": "seres2bn",
        "resb_repeats": [1, 1, 1],
        "resb_channels": 512,
        "resb_strides": 1,
        "resb_dilations": [2, 3, 4],
        "res2net_scale": 8,
        "se_r": 4,
        "hid_act": "relu",
        "multilayer": True,
        "multilayer_concat": True,
        "endpoint_channels": 1536,
        "norm_before": False,
    },
    "pool_net": {"pool_type": "ch-wise-att-mean+stddev", "inner_feats": 128},
    "num_classes": 5994,
    "embed_dim": 192,
    "norm_before": False,
}
RESNET34 = {
    "resnet_type": "resnet34",
    "in_channels": 1,
    "in_feats": 80,
    "conv_channels": 32,
    "base_channels": 32,
    "in_kernel_size": 3,
    "pool_net": {"pool_type": "mean+stddev"},
    "num_classes": 5994,
    "embed_dim": 256,
}
MODELS = {"ECAPA-512": ("Wav2ResNet1dXVector", ECAPA_512), "ResNet34 (32)": ("Wav2ResNetXVector", RESNET34)}


def best_of(function: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def matrix_rate(size: int = 1536) -> float:
    """Floating-point operations a second of a square float32 matrix product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    return 2 * size**3 / best_of(lambda: a @ b, 5)


def count_operations(model: Any, x: torch.Tensor) -> int:
    """Multiply-adds of one extraction, counted as two operations each."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.extract_embed(x)
    return counter.get_total_flops()


def durations_of_job(count: int = 60) -> list[float]:
    """Durations between 2 and 20 s."""
    generator = torch.Generator().manual_seed(0)
    return (2 + 18 * torch.rand(count, generator=generator)).tolist()


@torch.inference_mode()
def run_job(model: Any, waves: list[torch.Tensor], batches: list[list[int]]) -> None:
    """Extract every batch once."""
    for batch in batches:
        lengths = torch.tensor([len(waves[i]) for i in batch])
        x = torch.nn.utils.rnn.pad_sequence([waves[i] for i in batch], batch_first=True)
        model.extract_embed(x, x_lengths=lengths)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    limit = matrix_rate()
    print(f"torch {torch.__version__}, {args.threads} threads, matrix product {limit / 1e9:.0f} GFLOP/s\n")
    print("| model | job | x real time | share of matrix rate | padding |")
    print("|---|---|---|---|---|")
    durations = durations_of_job()
    waves = [0.1 * torch.randn(round(d * SAMPLE_FREQ)) for d in durations]
    batches = group_by_length(durations, BatchLimits())
    share = padded_share(durations, batches)
    for name, (class_name, xvector) in MODELS.items():
        model = find_model_class(class_name).from_config({"feats": FEATS, "xvector": xvector}).eval()
        ten = 0.1 * torch.randn(1, 10 * SAMPLE_FREQ)
        operations = count_operations(model, ten)
        for label, variant in ((name, model), (f"{name}, folded", fold_batch_norm(model))):
            with torch.inference_mode():
                variant.extract_embed(ten)
                seconds = best_of(partial(variant.extract_embed, ten))
            print(f"| {label} | 1 x 10 s | {10 / seconds:.0f} | {operations / seconds / limit:.2f} | 0 % |")
            seconds = best_of(partial(run_job, variant, waves, batches), 1)
            rate = operations * sum(durations) / 10 / seconds / limit
            print(
                f"| {label} | 60 utterances of 2-20 s | {sum(durations) / seconds:.0f} | {rate:.2f} | {100 * share:.1f} % |"
            )


if __name__ == "__main__":
    main()
