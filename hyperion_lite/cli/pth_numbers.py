"""The actions of ``hyperion-lite pth`` that read tensors' values: stats, verify, diff."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from hyperion_lite.cli.pth_text import number_text, print_json, printable, selected, shape_text, table
from hyperion_lite.pth import PthFile, PthUnsupportedError, open_pth
from hyperion_lite.pth.tensor_stats import TensorDifference, tensor_difference, tensor_stats


def stats(args: argparse.Namespace) -> int:
    """Print the statistics of every selected tensor."""
    with open_pth(args.file, allow_torchscript=args.allow_torchscript) as file:
        names = selected(file.tensors, args)
        results = [(name, file.tensors[name], tensor_stats(file.read_tensor(name))) for name in _progress(names)]
    if args.json:
        print_json(
            [
                {"name": name, "dtype": ref.dtype, "shape": list(ref.shape), **asdict(result)}
                for name, ref, result in results
            ]
        )
        return 0
    header = ("name", "dtype", "shape", "min", "max", "mean", "std", "nan", "inf")
    rows = []
    for name, ref, item in results:
        numbers = (item.minimum, item.maximum, item.mean, item.std, item.nan, item.inf)
        rows.append((printable(name), ref.dtype, shape_text(ref.shape), *map(number_text, numbers)))
    for line in table(header, rows):
        print(line)
    bad = [name for name, _, item in results if item.nan or item.inf]
    print(f"{len(results)} tensors, {len(bad)} with NaN or infinity")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Check every checksum and, of a voice model, the shapes."""
    with open_pth(args.file, allow_torchscript=args.allow_torchscript) as file:
        file.verify()
        voice = _validated_voice(file)
        count = len(file.tensors)
    if args.json:
        print_json({"file": args.file, "ok": True, "tensors": count, "voice_model": voice})
    else:
        print(f"ok: {count} tensors" + (", shapes agree with the voice model's configuration" if voice else ""))
    return 0


def _validated_voice(file: PthFile) -> bool:
    from hyperion_lite.pth.views import voice_model_info

    try:
        info = voice_model_info(file)
    except PthUnsupportedError:
        return False
    info.validate()
    return True


def diff(args: argparse.Namespace) -> int:
    """Compare the tensors of two files; 1 when they differ."""
    with (
        open_pth(args.file, allow_torchscript=args.allow_torchscript) as a,
        open_pth(args.other, allow_torchscript=args.allow_torchscript) as b,
    ):
        union = list(dict.fromkeys([*a.tensors, *b.tensors]))
        names = selected(union, args)
        found = [item for name in _progress(names) if (item := _compare(a, b, name, args.atol, args.rtol))]
    if args.json:
        print_json({"compared": len(names), "differing": len(found), "differences": found})
    else:
        for item in found:
            print(f"{printable(item['name'])}: {_describe(item)}")
        print(f"{len(found)} of {len(names)} tensors differ" if found else f"{len(names)} tensors, no difference")
    return 1 if found else 0


def _compare(a: PthFile, b: PthFile, name: str, atol: float, rtol: float) -> dict[str, Any] | None:
    left, right = a.tensors.get(name), b.tensors.get(name)
    if left is None or right is None:
        return {"name": name, "kind": "only in B" if left is None else "only in A"}
    if tuple(left.shape) != tuple(right.shape):
        return {"name": name, "kind": "shape", "a": list(left.shape), "b": list(right.shape)}
    result = tensor_difference(a.read_tensor(name), b.read_tensor(name), atol=atol, rtol=rtol)
    if left.dtype != right.dtype:
        return {"name": name, "kind": "dtype", "a": left.dtype, "b": right.dtype, **asdict(result)}
    return {"name": name, "kind": "values", **asdict(result)} if result.differing else None


def _describe(item: dict[str, Any]) -> str:
    if item["kind"] == "shape":
        return f"shape {shape_text(item['a'])} in A, {shape_text(item['b'])} in B"
    if item["kind"].startswith("only"):
        return str(item["kind"])
    fields = TensorDifference(**{name: item[name] for name in TensorDifference.__dataclass_fields__})
    numbers = (
        f"{fields.differing} of {fields.count} values differ, largest difference {fields.max_abs:.6g} "
        f"(relative {fields.max_rel:.6g}), mean {fields.mean_abs:.6g}"
    )
    if item["kind"] == "dtype":
        return f"{item['a']} in A, {item['b']} in B; {numbers if fields.differing else 'same values'}"
    return numbers


def _progress(names: list[str]) -> Iterable[str]:
    from tqdm import tqdm

    # None: only where the standard error is a terminal
    return tqdm(names, unit="tensor", leave=False, disable=None)
