"""Throughput of training on a GPU; called by benchmarks/train.py where CUDA is available."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import torch
from extract import ECAPA_512, FEATS, RESNET34

from hyperion_lite.models.registry import find_model_class

BATCH_SIZE = 128


def ecapa_1024() -> dict[str, Any]:
    """ECAPA-TDNN with 1024 channels."""
    encoder = {**ECAPA_512["resnet_enc"], "in_conv_channels": 1024, "resb_channels": 1024}  # type: ignore[dict-item]
    return {**ECAPA_512, "resnet_enc": encoder}


MODELS = {"ResNet34 (32)": ("Wav2ResNetXVector", RESNET34), "ECAPA-1024": ("Wav2ResNet1dXVector", ecapa_1024())}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"use_amp": True, "amp_dtype": "bfloat16"},
    "float16": {"use_amp": True, "amp_dtype": "float16"},
}


def print_tables(seconds: float) -> None:
    """A row for each model, precision, and with or without compilation."""
    from train import TimedBatches, fixed_batch, make_trainer

    print(f"\n{torch.cuda.get_device_name()}, batches of {BATCH_SIZE} x 2 s\n")
    print("| model | precision | compiled | items/s | x real time | peak memory | time without work for the GPU |")
    print("|---|---|---|---|---|---|---|")
    batch = fixed_batch(size=BATCH_SIZE)
    for name, (class_name, xvector) in MODELS.items():
        for precision, options in PRECISIONS.items():
            for compiled in (False, True):
                torch.manual_seed(0)
                model = find_model_class(class_name).from_config({"feats": FEATS, "xvector": xvector})
                torch.cuda.reset_peak_memory_stats()
                with tempfile.TemporaryDirectory() as folder:
                    trainer = make_trainer(folder, model, compile=compiled, device="cuda", **options)
                    trainer.train_epoch(TimedBatches(batch, 6))  # compiles, and finds the fastest kernels
                    trainer.cur_batch = 0
                    batches = TimedBatches(batch, max(12, round(4 * seconds)))
                    begin = time.perf_counter()
                    idle = _share_idle(trainer, batches)
                    elapsed = time.perf_counter() - begin
                    del trainer
                update = statistics.median(batches.updates())
                memory = torch.cuda.max_memory_allocated() / 2**30
                rate = BATCH_SIZE / update
                print(
                    f"| {name} | {precision} | {'yes' if compiled else 'no'} | {rate:.0f} | {2 * rate:.0f} | {memory:.1f} GiB | "
                    f"{100 * idle:.0f} % of {elapsed:.0f} s |",
                    flush=True,
                )


def _share_idle(trainer: Any, batches: Any) -> float:
    """Share of the time of an epoch in which no kernel ran."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    begin = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        trainer.train_epoch(batches)
        torch.cuda.synchronize()
    total = time.perf_counter() - begin
    busy = sum(event.device_time_total for event in profiler.events()) / 1e6
    return max(0.0, 1 - busy / total)
