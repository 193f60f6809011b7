"""The actions of ``hyperion-lite pth`` that write a file: convert, quantize."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyperion_lite.cli.pth_text import print_json, printable, size_text
from hyperion_lite.pth import PthFile, open_pth
from hyperion_lite.pth.convert import ConversionReport, quantize_to_safetensors, to_npz, to_safetensors
from hyperion_lite.pth.tensor_writers import Progress


def convert(args: argparse.Namespace) -> int:
    """Write the selected tensors to a safetensors or npz file."""
    kind = args.format or _format_of(args.output)
    with _opened(args) as (file, progress):
        if kind == "npz":
            if args.tied == "once":
                raise ValueError(
                    "--tied once needs safetensors: an npz file has no place that says which names were left out"
                )
            report = to_npz(
                file, args.output, include=args.include, exclude=args.exclude, dtype=args.dtype,
                fuse_weight_norm=args.fuse_weight_norm, prefix=args.prefix, verify=not args.no_verify, progress=progress,
            )  # fmt: skip
        else:
            report = to_safetensors(
                file, args.output, include=args.include, exclude=args.exclude, dtype=args.dtype,
                fuse_weight_norm=args.fuse_weight_norm, prefix=args.prefix, tied=args.tied, verify=not args.no_verify, progress=progress,
            )  # fmt: skip
    return _print(report, args.json)


def quantize(args: argparse.Namespace) -> int:
    """Write int8 weights and scales to a safetensors file."""
    if _format_of(args.output) != "safetensors":
        raise ValueError(f"{args.output}: quantised weights are written to a .safetensors file")
    with _opened(args) as (file, progress):
        axes: dict[str, int] = {}
        for glob, axis in args.channel_axis:
            axes.setdefault(glob, axis)
        report = quantize_to_safetensors(
            file, args.output, include=args.include, exclude=args.exclude, keep=args.keep, axis=args.axis,
            axes=axes, fuse_weight_norm=not args.no_fuse_weight_norm, prefix=args.prefix,
            verify=not args.no_verify, progress=progress,
        )  # fmt: skip
    return _print(report, args.json)


def _format_of(output: str) -> str:
    suffix = Path(output).suffix.lower()
    if suffix not in (".safetensors", ".npz"):
        raise ValueError(f"{output}: the extension says neither safetensors nor npz; use --format or another name")
    return suffix[1:]


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[tuple[PthFile, Progress]]:
    from tqdm import tqdm

    # None: the bar shows only where the standard error is a terminal
    with (
        open_pth(args.file, allow_torchscript=args.allow_torchscript) as file,
        tqdm(unit="B", unit_scale=True, leave=False, disable=None) as bar,
    ):

        def advance(name: str, nbytes: int) -> None:
            bar.update(nbytes)

        yield file, advance


def _print(report: ConversionReport, as_json: bool) -> int:
    if as_json:
        fields = {"file": str(report.path), "tensors": report.tensors, "bytes": report.nbytes}
        print_json({**fields, "fused": report.fused, "tied": report.tied, "quantized": report.quantized})
        return 0
    parts = [f"{report.tensors} tensors", size_text(report.nbytes)]
    for items, text in (
        (report.fused, "weight norms fused"),
        (report.quantized, "quantised"),
        (report.tied, "tied names left out"),
    ):
        if items:
            parts.append(f"{len(items)} {text}")
    print(f"{printable(str(report.path))}: {', '.join(parts)}")
    return 0
