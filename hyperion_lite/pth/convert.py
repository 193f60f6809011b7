"""The tensors of a checkpoint written to other containers, one at a time and never half.

Memory is bounded by the largest tensor (its values as stored and as written); the output appears complete under its name or not at
all.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from hyperion_lite.pth.dtypes import DTYPES, numpy_dtype
from hyperion_lite.pth.errors import PthUnsupportedError
from hyperion_lite.pth.quantize import is_floating, quantize_int8
from hyperion_lite.pth.selection import Patterns, glob_list, groups_within, matches, select_names
from hyperion_lite.pth.tensor_writers import PlannedTensor, Progress, npz_dtype, write_npz, write_safetensors
from hyperion_lite.pth.weight_norm import check_weight_norm_shapes, find_weight_norm_pairs, fuse_pair

if TYPE_CHECKING:
    from hyperion_lite.pth import PthFile

FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""What the floating-point tensors of a file can be converted to."""


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion wrote.

    Attributes:
        path: the file.
        tensors: number of tensors in it.
        nbytes: its size in bytes.
        fused: weights that were made of a weight-normalised pair.
        tied: tensor left out -> the tensor with the same elements that stands for it (only with ``tied="once"``).
        quantized: tensors that became int8.
    """

    path: Path
    tensors: int
    nbytes: int
    fused: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    quantized: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Plan:
    tensors: list[PlannedTensor]
    fused: tuple[str, ...]
    tied: dict[str, str]


def to_safetensors(
    src: str | os.PathLike[str] | PthFile,
    dst: str | os.PathLike[str],
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    dtype: str | None = None,
    fuse_weight_norm: bool = False,
    prefix: str = "",
    tied: Literal["copy", "once"] = "copy",
    metadata: Mapping[str, str] | None = None,
    verify: bool = True,
    progress: Progress | None = None,
) -> ConversionReport:
    """Write the tensors of a checkpoint to a safetensors file.

    Args:
        src: a checkpoint file, or an open one (which stays open).
        dst: the file to write; an older one is replaced once the new one is complete.
        include: glob or globs over the dotted tensor names; None takes every tensor.
        exclude: glob or globs of tensors to leave out.
        dtype: what floating-point tensors become, one of ``FLOAT_DTYPES``; other tensors keep their type.
        fuse_weight_norm: replace weight-normalised pairs by their effective weight.
        prefix: take the tensors below this dotted name only, and drop it from their names.
        tied: names of one and the same tensor are each written ("copy"), or only the first is, and the header's metadata maps the
            others to it ("once").
        metadata: more entries (text to text) for the header.
        verify: compare the checksums of the storages that are read.
        progress: called with the name and the size in bytes of every tensor written.

    Raises:
        PthError: the checkpoint cannot be read.
        ValueError: no tensor is selected, a type or name that safetensors lacks, a value beyond the range of ``dtype``, ``dst`` is
            the checkpoint itself, weight-normalised halves that do not fit. Nothing is left under ``dst``.
        OSError: the output cannot be written.
    """
    with _opened(src) as file, _published(dst, file) as temporary:
        plan = _plan(file, include, exclude, dtype, fuse_weight_norm, prefix, tied, verify)
        header = {"format": "pt", **plan.tied, **(metadata or {})}
        size = write_safetensors(temporary, plan.tensors, header, progress or _silent)
    return ConversionReport(Path(dst), len(plan.tensors), size, plan.fused, plan.tied)


def to_npz(
    src: str | os.PathLike[str] | PthFile,
    dst: str | os.PathLike[str],
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    dtype: str | None = None,
    fuse_weight_norm: bool = False,
    prefix: str = "",
    verify: bool = True,
    progress: Progress | None = None,
) -> ConversionReport:
    """Write the tensors of a checkpoint to an uncompressed npz file.

    bfloat16 and float8 are widened to float32, which holds their values exactly: an npy file cannot state these types. Arguments and
    errors are those of :func:`to_safetensors`.
    """
    with _opened(src) as file, _published(dst, file) as temporary:
        plan = _plan(file, include, exclude, dtype, fuse_weight_norm, prefix, "copy", verify)
        widened = [_cast(tensor, npz_dtype(tensor.dtype)) for tensor in plan.tensors]
        size = write_npz(temporary, widened, progress or _silent)
    return ConversionReport(Path(dst), len(widened), size, plan.fused)


def quantize_to_safetensors(
    src: str | os.PathLike[str] | PthFile,
    dst: str | os.PathLike[str],
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    keep: Patterns = None,
    axis: int = 0,
    axes: Mapping[str, int] | None = None,
    fuse_weight_norm: bool = True,
    prefix: str = "",
    verify: bool = True,
    progress: Progress | None = None,
) -> ConversionReport:
    """Write a checkpoint with its weights as int8 and one float32 scale per output channel.

    A floating-point tensor of at least two axes becomes ``NAME`` (int8) and ``NAME_scale`` (float32, one per channel), quantised as
    :func:`~hyperion_lite.pth.quantize.quantize_int8` states; every other tensor is written as it is. The header's metadata maps
    ``NAME`` to its channel axis under the key ``int8_axis:NAME``.

    Args:
        src, dst, include, exclude, fuse_weight_norm, prefix, verify, progress: as in :func:`to_safetensors`.
        keep: glob or globs of tensors (by their output names) that stay as they are.
        axis: the channel axis where ``axes`` says nothing else.
        axes: glob over output names -> channel axis; the first match counts. Transposed convolutions have theirs at 1.

    Raises:
        ValueError: besides the reasons of :func:`to_safetensors`: a weight with NaN or infinity, no such axis, or a tensor of the file
            already has the name of a scale.
    """
    with _opened(src) as file, _published(dst, file) as temporary:
        plan = _plan(file, include, exclude, None, fuse_weight_norm, prefix, "copy", verify)
        written, channel_axes = _quantized_plan(plan.tensors, glob_list(keep), axis, axes or {})
        header = {"format": "pt", **{f"int8_axis:{name}": str(channel) for name, channel in channel_axes.items()}}
        size = write_safetensors(temporary, written, header, progress or _silent)
    return ConversionReport(Path(dst), len(written), size, plan.fused, quantized=tuple(channel_axes))


def _plan(
    file: PthFile,
    include: Patterns,
    exclude: Patterns,
    dtype: str | None,
    fuse: bool,
    prefix: str,
    tied: Literal["copy", "once"],
    verify: bool,
) -> _Plan:
    target = None
    if dtype is not None:
        if dtype not in FLOAT_DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}; expected one of {', '.join(FLOAT_DTYPES)}")
        target = numpy_dtype(DTYPES[dtype])
    names = select_names(file.tensors, include, exclude, prefix)
    short = {name[len(prefix) + 1 :] if prefix else name: name for name in names}
    dropped = _tied_names(file, short) if tied == "once" else {}
    planned = {name: _stored(file, name, short[name], verify) for name in short if name not in dropped}
    pairs = find_weight_norm_pairs(planned) if fuse else {}
    for weight, pair in pairs.items():
        g, v = planned[pair.g], planned[pair.v]
        check_weight_norm_shapes(weight, g.shape, v.shape)
        planned[pair.v] = replace(v, name=weight, load=_fusing(weight, g, v))
        del planned[pair.g]
    tensors = list(planned.values())
    if target is not None:
        tensors = [_cast(tensor, target) if is_floating(tensor.dtype) else tensor for tensor in tensors]
    return _Plan(tensors, tuple(pairs), dropped)


def _stored(file: PthFile, name: str, source: str, verify: bool) -> PlannedTensor:
    ref = file.tensors[source]
    kind = DTYPES[ref.dtype]
    dtype = numpy_dtype(kind)
    if dtype.name != kind.name and kind.name not in ("complex32", "bcomplex32"):
        # the bytes alone would silently lose scale and zero point, or how many elements a byte holds
        raise PthUnsupportedError(
            f"{source!r} is a tensor of {ref.dtype}, which no plain array can state; exclude it", path=file.path
        )
    return PlannedTensor(name, dtype, tuple(ref.shape), lambda: file.read_tensor(source, verify=verify))


def _tied_names(file: PthFile, short: Mapping[str, str]) -> dict[str, str]:
    """Name left out -> the first name of the same elements."""
    output = {source: name for name, source in short.items()}
    groups = groups_within(file.tensors.duplicates, output)
    return {output[source]: output[group[0]] for group in groups for source in group[1:]}


def _fusing(weight: str, g: PlannedTensor, v: PlannedTensor) -> Callable[[], np.ndarray]:
    def load() -> np.ndarray:
        direction = v.load()
        return fuse_pair(g.load(), direction, name=weight, out=direction if direction.flags.writeable else None)

    return load


def _cast(tensor: PlannedTensor, dtype: np.dtype) -> PlannedTensor:
    if tensor.dtype == dtype:
        return tensor

    def load() -> np.ndarray:
        values = tensor.load()
        with np.errstate(over="ignore"):
            cast = values.astype(dtype)
        if not np.isfinite(cast).all() and (np.isfinite(values) & ~np.isfinite(cast)).any():
            largest = np.abs(values[np.isfinite(values)].astype(np.float64)).max()
            raise ValueError(
                f"{tensor.name!r} holds magnitudes up to {largest:.6g}, beyond the range of {dtype.name}; exclude it or widen"
            )
        return cast

    return replace(tensor, dtype=dtype, load=load)


def _quantized_plan(
    tensors: list[PlannedTensor], keep: list[str] | None, axis: int, axes: Mapping[str, int]
) -> tuple[list[PlannedTensor], dict[str, int]]:
    """What is written in place of ``tensors``, and the channel axis of those that are quantised."""
    taken = {tensor.name for tensor in tensors}
    written: list[PlannedTensor] = []
    channel_axes = {}
    for tensor in tensors:
        if len(tensor.shape) < 2 or not is_floating(tensor.dtype) or 0 in tensor.shape or matches(tensor.name, keep):
            written.append(tensor)
            continue
        if f"{tensor.name}_scale" in taken:
            raise ValueError(
                f"{tensor.name + '_scale'!r} is in the file already; keep {tensor.name!r} as it is, or exclude one"
            )
        channel = next((value for glob, value in axes.items() if matches(tensor.name, [glob])), axis)
        written.extend(_quantized_pair(tensor, channel))
        channel_axes[tensor.name] = channel % len(tensor.shape)
    return written, channel_axes


def _quantized_pair(tensor: PlannedTensor, axis: int) -> tuple[PlannedTensor, PlannedTensor]:
    if not -len(tensor.shape) <= axis < len(tensor.shape):
        raise ValueError(f"{tensor.name!r}: there is no channel axis {axis} in a tensor of shape {list(tensor.shape)}")
    scales: list[np.ndarray] = []

    def quantize() -> np.ndarray:
        array = tensor.load()
        try:
            values, scale = quantize_int8(array, axis)
        except ValueError as error:
            raise ValueError(f"{tensor.name!r}: {error}") from error
        scales.append(scale)
        return values

    # the writer loads in the order of the list, the values first
    size = tensor.shape[axis]
    return (
        PlannedTensor(tensor.name, np.dtype(np.int8), tensor.shape, quantize),
        PlannedTensor(f"{tensor.name}_scale", np.dtype(np.float32), (size,), scales.pop),
    )


def _silent(name: str, nbytes: int) -> None:
    """Progress that nobody watches."""


@contextmanager
def _opened(src: str | os.PathLike[str] | PthFile) -> Iterator[PthFile]:
    from hyperion_lite.pth import PthFile, open_pth

    with ExitStack() as stack:
        yield src if isinstance(src, PthFile) else stack.enter_context(open_pth(src))


@contextmanager
def _published(dst: str | os.PathLike[str], file: PthFile) -> Iterator[Path]:
    """Yield a temporary sibling to write; it takes the name ``dst`` when it is complete and on the disk, else it is removed."""
    # a symbolic link keeps pointing at what is replaced
    target = Path(os.path.realpath(dst))
    if target.exists() and not target.is_file():
        kind = "a directory" if target.is_dir() else "no regular file"
        raise ValueError(f"cannot write {target}: it is {kind}")
    if file.path is not None and target.exists() and os.path.samefile(target, file.path):
        raise ValueError(f"cannot write {target}: it is the checkpoint that is read")
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
