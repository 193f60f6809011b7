"""Containers that hold named arrays, written one tensor at a time: safetensors and npz.

A writer gets the whole list of names, dtypes and shapes first and the arrays one by one, so that its memory is bounded by one tensor.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

SAFETENSORS_DTYPES: dict[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
"""numpy name -> name in a safetensors header."""

_MAX_HEADER = 100_000_000
_EPOCH = (1980, 1, 1, 0, 0, 0)
# numpy's mark of a type that another package (ml_dtypes) registered
_REGISTERED = 2

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that will be written: everything about it but its values, which ``load`` brings when their turn comes."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def values(self) -> np.ndarray:
        """Load the tensor: row-major, little-endian."""
        array = self.load()
        if array.dtype != self.dtype or array.shape != self.shape:
            raise AssertionError(f"{self.name}: planned {self.dtype} {self.shape}, loaded {array.dtype} {array.shape}")
        if array.dtype.kind in "iufc" and array.dtype.isbuiltin != _REGISTERED:
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return np.ascontiguousarray(array).reshape(self.shape)


def check_names(tensors: Sequence[PlannedTensor]) -> None:
    """Raise ValueError for a name that UTF-8 cannot spell."""
    for tensor in tensors:
        try:
            tensor.name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"the tensor name {tensor.name!r} is not valid Unicode; exclude it") from error


def write_safetensors(
    path: Path, tensors: Sequence[PlannedTensor], metadata: Mapping[str, str], progress: Progress
) -> int:
    """Write a safetensors file and return its size in bytes.

    Tensors are laid out by falling element size, so that each is aligned to its element, and written in the order given: reading the
    source from front to back matters more than writing the file so.

    Raises:
        ValueError: a dtype that the format lacks, a name it reserves or cannot spell.
    """
    check_names(tensors)
    ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    starts = {}
    offset = 0
    for tensor in ordered:
        if tensor.name == "__metadata__":
            raise ValueError("a safetensors file cannot hold a tensor named '__metadata__'; exclude it")
        code = SAFETENSORS_DTYPES.get(tensor.dtype.name)
        if code is None:
            raise ValueError(
                f"{tensor.name!r}: safetensors has no type for {tensor.dtype.name}; exclude it, or choose a dtype"
            )
        end = offset + tensor.nbytes
        starts[tensor.name] = offset
        header[tensor.name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER:
        raise ValueError(
            f"{len(tensors)} tensor names need a header of {len(text)} bytes; safetensors allows {_MAX_HEADER}"
        )
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        base = stream.tell()
        for tensor in tensors:
            stream.seek(base + starts[tensor.name])
            stream.write(tensor.values().reshape(-1).view(np.uint8).data)
            progress(tensor.name, tensor.nbytes)
        return stream.seek(0, os.SEEK_END)


def npz_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which an npy file holds ``dtype``: itself, or float32 for the 16- and 8-bit floats that numpy itself lacks."""
    return np.dtype(np.float32) if dtype.isbuiltin == _REGISTERED else dtype


def write_npz(path: Path, tensors: Sequence[PlannedTensor], progress: Progress) -> int:
    """Write an uncompressed npz file, readable with ``numpy.load`` and no pickle, and return its size in bytes.

    Raises:
        ValueError: a name that cannot be the name of a zip entry.
    """
    check_names(tensors)
    for tensor in tensors:
        if "\0" in tensor.name or "\\" in tensor.name or tensor.name.startswith("/") or ".." in tensor.name.split("/"):
            raise ValueError(f"the tensor name {tensor.name!r} cannot name an entry of an npz file; exclude it")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for tensor in tensors:
            # a fixed time stamp: the same tensors give the same bytes
            entry = zipfile.ZipInfo(f"{tensor.name}.npy", date_time=_EPOCH)
            entry.external_attr = 0o644 << 16
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, tensor.values(), allow_pickle=False)
            progress(tensor.name, tensor.nbytes)
    return path.stat().st_size
