"""The actions of ``hyperion-lite pth`` that describe: info, list, show. The first two need no numpy, all of them no torch."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hyperion_lite.cli.pth_text import print_json, printable, selected, shape_text, size_text, table, value_text
from hyperion_lite.pth import PthFile, PthFormatError, PthUnsupportedError, TensorRef, open_pth
from hyperion_lite.pth.selection import groups_within
from hyperion_lite.pth.tree import children, key_text

_SHOWN = 40


def list_tensors(args: argparse.Namespace) -> int:
    """Print every selected tensor, and which of them share a storage."""
    with open_pth(args.file, allow_torchscript=args.allow_torchscript) as file:
        names = selected(file.tensors, args)
        tensors = {name: file.tensors[name] for name in names}
        shared = groups_within(file.tensors.shared.values(), names)
        same = groups_within(file.tensors.duplicates, names)
        renamed = [name for name in file.tensors.renamed if name in tensors]
    if args.json:
        rows = [{"name": name, **_tensor_fields(ref)} for name, ref in tensors.items()]
        print_json({"tensors": rows, "shared_storages": shared, "same_tensors": same, "renamed": renamed})
        return 0
    sharing = {name: f"{len(group)} tensors" for group in shared for name in group}
    header = ("name", "dtype", "shape", "stride", "offset", "storage", "shared by")
    lines = [(printable(name), *_tensor_columns(ref), sharing.get(name, "-")) for name, ref in tensors.items()]
    for line in table(header, lines):
        print(line)
    for group in same:
        print(f"same tensor: {', '.join(map(printable, group))}")
    total = sum(ref.numel for ref in tensors.values())
    print(f"{len(tensors)} tensors, {total} values, {len(shared)} storages with several tensors")
    return 0


def _tensor_fields(ref: TensorRef) -> dict[str, Any]:
    storage = ref.storage
    return {
        "dtype": ref.dtype,
        "shape": [*ref.shape],
        "stride": [*ref.stride],
        "offset": ref.offset,
        "storage": None if storage is None else storage.base.key,
        "storage_bytes": None if storage is None else storage.base.nbytes,
        "bytes": ref.nbytes,
        "contiguous": ref.is_contiguous,
        "kind": ref.kind,
        "device": ref.device,
        "requires_grad": ref.requires_grad,
    }


def _tensor_columns(ref: TensorRef) -> tuple[str, ...]:
    key = "-" if ref.storage is None else printable(ref.storage.base.key)
    return ref.dtype, shape_text(ref.shape), shape_text(ref.stride), str(ref.offset), key


def info(args: argparse.Namespace) -> int:
    """Print what the file is and holds; the fields of a voice model by name."""
    with open_pth(args.file, allow_torchscript=args.allow_torchscript) as file:
        metadata = file.metadata
        dtypes = Counter(ref.dtype for ref in file.tensors.values())
        contents = _contents(file.root)
        voice = _voice(file)
        ties = len(file.tensors.duplicates)
    if args.json:
        print_json(
            {
                "file": args.file,
                **metadata,
                "dtypes": dict(dtypes),
                "tied_groups": ties,
                "contents": contents,
                "voice_model": voice,
            }
        )
        return 0
    for name, value in metadata.items():
        if value in (b"", "", []):
            continue
        if isinstance(value, str):
            shown = printable(value)
        else:
            shown = f"{value} ({size_text(value)})" if name.endswith("_bytes") and value else value_text(value)
        print(f"{name}: {shown}")
    print(f"dtypes: {', '.join(f'{count} {dtype}' for dtype, count in dtypes.items()) or 'none'}")
    if ties:
        print(f"tied_groups: {ties}")
    print("contents:")
    for name, text in contents.items():
        print(f"  {printable(name)}: {text}")
    if voice is not None:
        _print_voice(voice)
    return 0


def _contents(root: Any) -> dict[str, str]:
    """One line for each value at the top of the file."""
    if not isinstance(root, Mapping) or not root:
        return {"(the file itself)": _summary(root)}
    lines = {}
    for number, (key, value) in enumerate(root.items()):
        if number == _SHOWN:
            lines["..."] = f"{len(root) - _SHOWN} more"
            break
        lines[key_text(key)] = _summary(value)
    return lines


def _summary(value: Any) -> str:
    if isinstance(value, Mapping):
        tensors = sum(isinstance(item, TensorRef) for item in value.values())
        return f"{type(value).__name__} of {len(value)}" + (f", {tensors} of them tensors" if tensors else "")
    return value_text(value)


def _voice(file: PthFile) -> dict[str, Any] | None:
    root = file.root
    if not (isinstance(root, Mapping) and "weight" in root and "config" in root):
        return None
    from hyperion_lite.pth.views import voice_model_info

    try:
        model = voice_model_info(file)
    except PthUnsupportedError:
        return None
    except PthFormatError as error:
        return {"error": error.message}
    unknown = model.unknown_tensors()
    return {
        "version": model.version,
        "f0": model.f0,
        "sr": model.sr,
        "sample_rate": model.sample_rate,
        "info": model.info,
        "config": asdict(model.config),
        "config_extra": [*model.config_extra],
        "other_fields": [key_text(key) for key in model.extra],
        "tensors": len(model.tensors),
        "unknown_tensors": unknown,
        "missing_tensors": [problem.name for problem in model.problems(complete=True) if problem.found is None],
        "problems": [str(problem) for problem in model.problems()],
    }


def _print_voice(voice: dict[str, Any]) -> None:
    print("voice model:")
    for name, value in voice.items():
        if name == "config":
            for field, setting in value.items():
                print(f"  config.{field}: {value_text(setting)}")
        elif name in ("problems", "unknown_tensors", "missing_tensors"):
            print(f"  {name}: {len(value) or 'none'}")
            for text in value[:_SHOWN]:
                print(f"    {printable(text)}")
        elif name == "error":
            print(f"  malformed: {printable(value)}")
        else:
            print(f"  {name}: {value_text(value)}")


def show(args: argparse.Namespace) -> int:
    """Print the first values of a tensor, or any other value by its dotted name."""
    with open_pth(args.file, allow_torchscript=args.allow_torchscript) as file:
        ref = file.tensors.get(args.name)
        if ref is not None:
            return _show_tensor(file, args.name, ref, args)
        value = find_value(file.root, args.name)
        if value is _MISSING:
            # the reader's message names near tensors
            file.read_tensor(args.name)
    if args.json:
        print_json({"name": args.name, "type": type(value).__name__, "value": value})
        return 0
    print(f"{printable(args.name)}: {_summary(value)}")
    for number, (key, child) in enumerate(children(value) if _has_children(value) else ()):
        if number == _SHOWN:
            print("  ...")
            break
        print(f"  {printable(key_text(key))}: {_summary(child)}")
    return 0


def _show_tensor(file: PthFile, name: str, ref: TensorRef, args: argparse.Namespace) -> int:
    count = min(args.values, ref.numel)
    values: list[Any] = []
    if count:
        values = file.read_tensor(_head(ref, count)).reshape(-1)[:count].tolist()
    if args.json:
        print_json(
            {"name": name, **_tensor_fields(ref), "values": [str(v) if isinstance(v, complex) else v for v in values]}
        )
        return 0
    dtype, shape, stride, offset, key = _tensor_columns(ref)
    print(
        f"{printable(name)}: {dtype} {shape}, stride {stride}, offset {offset} of storage {key}, {size_text(ref.nbytes)}"
    )
    if args.values:
        more = " ..." if ref.numel > count else ""
        print(" ".join(f"{value:.9g}" if isinstance(value, float) else str(value) for value in values) + more)
    return 0


def _head(ref: TensorRef, count: int) -> TensorRef:
    """A view whose row-major elements begin with the first ``count`` of ``ref`` and hardly go on."""
    shape = [*ref.shape]
    if ref.itemsize * ref.numel != ref.nbytes:
        # several elements in a byte: such a tensor is read whole
        return ref
    inner = 1
    for axis in reversed(range(len(shape))):
        shape[axis] = min(shape[axis], -(-count // inner))
        inner *= shape[axis]
    return ref.derive(shape=tuple(shape))


_MISSING = object()


def _has_children(value: Any) -> bool:
    return not isinstance(value, str | bytes | bytearray | int | float | complex | None)


def find_value(root: Any, name: str) -> Any:
    """The value that a dotted name leads to, or a sentinel; keys may hold dots themselves."""
    stack: list[tuple[Any, str]] = [(root, name)]
    seen: set[tuple[int, int]] = set()
    while stack:
        value, rest = stack.pop()
        if (id(value), len(rest)) in seen or not _has_children(value):
            continue
        seen.add((id(value), len(rest)))
        for key, child in children(value):
            text = key_text(key)
            if text == rest:
                return child
            if rest.startswith(f"{text}."):
                stack.append((child, rest[len(text) + 1 :]))
    return _MISSING
