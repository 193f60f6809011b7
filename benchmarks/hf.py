"""Hugging Face encoders: x real time against transformers, and what chunks cost in likeness.

    python benchmarks/hf.py [--threads 2] [--device cpu] [--seconds 24] [--contexts]

Prints tables in Markdown. The encoder has the shape of WavLM base and random weights. The same utterances, of mixed lengths, are
encoded by transformers one by one, by transformers in one padded batch with an attention mask, and by this package in one call.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from hyperion_lite.tpm.hf import HFWavLM
from hyperion_lite.tpm.hf.length_groups import group_by_length, largest_padded_share

SAMPLE_FREQ = 16000
SHORTEST, LONGEST = 1.0, 6.0
CONTEXTS = (0, 16, 50, 100, 250)


def mixed_lengths(seconds: float, generator: torch.Generator) -> list[int]:
    """Samples of utterances, durations log-uniform between the shortest and the longest, ``seconds`` in all."""
    lengths: list[int] = []
    while sum(lengths) < seconds * SAMPLE_FREQ:
        share = float(torch.rand((), generator=generator))
        lengths.append(int(SHORTEST * (LONGEST / SHORTEST) ** share * SAMPLE_FREQ))
    return lengths


def best_of(function: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Seconds of the fastest of several runs, after one that is not measured."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        with torch.inference_mode():
            function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def padded_share(lengths: list[int], groups: list[list[int]]) -> float:
    """Share of the samples that are computed which are padding."""
    computed = sum(max(lengths[i] for i in group) * len(group) for group in groups)
    return 1.0 - sum(lengths) / computed


def measure_speed(device: torch.device, seconds: float, repeats: int) -> None:
    """One row for every way."""
    from transformers import WavLMConfig, WavLMModel

    generator = torch.Generator().manual_seed(1)
    lengths = mixed_lengths(seconds, generator)
    items = [torch.randn(length, generator=generator).to(device) for length in lengths]
    batch = torch.nn.utils.rnn.pad_sequence(items, batch_first=True)
    valid = torch.tensor(lengths, device=device)
    mask = (torch.arange(batch.size(1), device=device) < valid[:, None]).long()
    theirs = WavLMModel(WavLMConfig()).to(device).eval()
    ours = HFWavLM(ignore_pretrained=True, layer_norm_eps=1e-5).to(device).eval()
    ours.hf_model.load_state_dict(theirs.state_dict())
    everything = [list(range(len(lengths)))]
    groups = group_by_length(lengths, largest_padded_share(device))
    rows: list[tuple[str, float, Callable[[], Any]]] = [
        ("transformers, one by one", 0.0, lambda: [theirs(x[None], output_hidden_states=True) for x in items]),
        (
            "transformers, one padded batch",
            padded_share(lengths, everything),
            lambda: theirs(batch, attention_mask=mask, output_hidden_states=True),
        ),
        ("hyperion_lite, one call", padded_share(lengths, groups), lambda: ours(batch, valid)),
    ]
    audio = sum(lengths) / SAMPLE_FREQ
    took = [best_of(function, device, repeats) for _, _, function in rows]
    print(f"{len(lengths)} utterances, {audio:.1f} s, {device}, {torch.get_num_threads()} threads\n")
    print("| way | padding computed | x real time | speed of hyperion_lite relative to it |")
    print("|---|---:|---:|---:|")
    for (name, share, _), spent in zip(rows, took, strict=True):
        print(f"| {name} | {100 * share:.0f} % | {audio / spent:.1f} | {spent / took[-1]:.2f} |")


def measure_contexts(device: torch.device, seconds: float) -> None:
    """Likeness of the last hidden state to the one of the whole, for chunks of 5 s, by the context on either side."""
    torch.manual_seed(0)
    encoder = HFWavLM(ignore_pretrained=True, layer_norm_eps=1e-5).to(device).eval()
    x = torch.randn(1, int(seconds * SAMPLE_FREQ)).to(device)
    print("\n| frames of context | mean cosine | smallest cosine | mean cosine near the joins |")
    print("|---:|---:|---:|---:|")
    with torch.inference_mode():
        whole = encoder(x, return_hidden_states=False).last_hidden_state
        for context in CONTEXTS:
            encoder.left_encoder_context = encoder.right_encoder_context = context
            chunked = encoder(x, return_hidden_states=False, chunk_length=5.0).last_hidden_state
            cosine = torch.cosine_similarity(whole, chunked, dim=-1)[0]
            step = 5 * SAMPLE_FREQ // encoder.hop_samples
            joins = range(step, cosine.numel(), step)
            near = torch.cat([cosine[max(j - 10, 0) : j + 10] for j in joins]) if len(joins) else cosine
            print(f"| {context} | {cosine.mean():.6f} | {cosine.min():.6f} | {near.mean():.6f} |")


def main() -> None:
    """Read the options and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=24.0, help="audio in all")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--contexts", action="store_true", help="also measure chunked processing")
    options = parser.parse_args()
    if not math.isfinite(options.seconds) or options.seconds <= 0:
        parser.error("--seconds must be positive")
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    measure_speed(device, options.seconds, options.repeats)
    if options.contexts:
        measure_contexts(device, options.seconds)


if __name__ == "__main__":
    main()
