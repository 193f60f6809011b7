"""From a tensor's description to its elements."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hyperion_lite.pth.container import Container
from hyperion_lite.pth.dtypes import DTYPES, DType, numpy_dtype
from hyperion_lite.pth.errors import PthFormatError, PthLimitError, PthUnsupportedError
from hyperion_lite.pth.values import TensorRef

# A strided view that needs less than this share of its span is gathered from the memory map, if there is one.
_SPARSE_VIEW = 4
_SMALL_SPAN = 1 << 20


def read_array(container: Container, tensor: TensorRef, out: Any = None, verify: bool = False) -> np.ndarray:
    """The elements of `tensor` as a contiguous row-major array; see `PthFile.read_tensor`."""
    dtype = DTYPES[tensor.dtype]
    if tensor.storage is None:
        raise PthUnsupportedError("a tensor of device meta has no elements")
    shape = _array_shape(tensor, dtype)
    target = _target(shape, numpy_dtype(dtype), out, tensor, container)
    converts = dtype.raw != dtype.array and dtype.array.startswith("<c")
    raw = _empty((*shape, 2), np.dtype(dtype.raw)) if converts else target.view(np.dtype(dtype.raw))
    _read_raw(container, tensor, dtype, raw, verify)
    if converts:
        _join_halves(dtype, raw, target)
    return _finish(tensor, target)


def _array_shape(tensor: TensorRef, dtype: DType) -> tuple[int, ...]:
    if dtype.packed == 1:
        return tensor.shape
    if not tensor.is_contiguous or tensor.offset % dtype.packed:
        raise PthUnsupportedError(f"a strided view of {dtype.name}, whose elements share bytes")
    # Elements smaller than a byte: their bytes as stored.
    return (-(-tensor.numel // dtype.packed),)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        return np.empty(shape, dtype)
    except ValueError as error:
        raise PthUnsupportedError(f"an array of {len(shape)} dimensions that numpy cannot make: {error}") from error


def _target(shape: tuple[int, ...], dtype: np.dtype, out: Any, tensor: TensorRef, container: Container) -> np.ndarray:
    """A new array, or the caller's memory as one."""
    limit = container.limits.max_expand_bytes
    first, last = tensor.span
    needed = tensor.numel * dtype.itemsize
    if needed > limit and tensor.numel > last - first:
        raise PthLimitError(
            f"a tensor that repeats {last - first} stored elements into an array of {needed} bytes "
            "(Limits.max_expand_bytes)"
        )
    if out is None:
        return _empty(shape, dtype)
    if isinstance(out, np.ndarray) and out.dtype == dtype and out.shape == shape:
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError("out must be a writeable, row-major array")
        return out
    if isinstance(out, np.ndarray) and out.dtype != np.uint8:
        raise ValueError(f"out must be {dtype} {list(shape)}, or bytes; it is {out.dtype} {list(out.shape)}")
    memory = memoryview(out)
    count = needed if np.prod(shape, dtype=object) == tensor.numel else shape[0] * dtype.itemsize
    if memory.readonly or not memory.c_contiguous or memory.nbytes < count:
        raise ValueError(f"out must be {count} writeable bytes; it has {memory.nbytes}")
    return np.frombuffer(memory.cast("B")[:count], dtype).reshape(shape) if count else _empty(shape, dtype)


def _read_raw(container: Container, tensor: TensorRef, dtype: DType, raw: np.ndarray, verify: bool) -> None:
    """Fill `raw` with the stored elements, in this machine's byte order."""
    storage = tensor.storage
    assert storage is not None
    content = raw.reshape(-1).view(np.uint8)
    start = tensor.offset // dtype.packed * dtype.itemsize
    checked = not verify or storage.base.key in container.verified
    if tensor.is_contiguous:
        whole = storage.base is storage and start == 0 and content.nbytes == storage.nbytes
        if not checked and not whole:
            container.verify_storage(storage)
        if content.nbytes:
            container.read_range(storage, start, content.data)
        if not checked and whole:
            _accept(container, storage, content)
    else:
        if not checked:
            container.verify_storage(storage)
        _gather(container, tensor, dtype, raw)
    native = "little" if dtype.raw != dtype.array or dtype.array[0] in "<|" else sys.byteorder
    if container.byteorder != native and dtype.swap > 1:
        content.view(f"u{dtype.swap}").byteswap(inplace=True)


def _accept(container: Container, storage: Any, content: np.ndarray) -> None:
    if not container.accepts(storage, content):
        raise PthFormatError(f"storage {storage.key} is damaged: its CRC-32 is wrong")
    container.verified.add(storage.base.key)


def _gather(container: Container, tensor: TensorRef, dtype: DType, raw: np.ndarray) -> None:
    """Copy a strided view out of the smallest span that encloses it."""
    storage = tensor.storage
    assert storage is not None
    first, last = tensor.span
    size = dtype.itemsize
    span_bytes = (last - first) * size
    place = container.place(storage)
    mapped = None
    if place is not None and span_bytes > _SMALL_SPAN and span_bytes > _SPARSE_VIEW * raw.nbytes:
        mapped = container.source.buffer()
    item = np.dtype((np.void, size)) if size not in (1, 2, 4, 8) else np.dtype(f"u{size}")
    if mapped is not None:
        assert place is not None
        buffer, offset = mapped, place + first * size
    else:
        buffer, offset = np.empty(span_bytes, np.uint8), 0
        container.read_range(storage, first * size, buffer.data)
    # The step along an axis of one element has no meaning, and may be anything.
    strides = tuple(step * size if count > 1 else 0 for count, step in zip(tensor.shape, tensor.stride, strict=True))
    try:
        view = np.ndarray(tensor.shape, item, buffer, offset, strides)
        np.copyto(raw.reshape(-1).view(item).reshape(tensor.shape), view)
    except ValueError as error:
        raise PthUnsupportedError(f"a view that numpy cannot make: {error}") from error


def _join_halves(dtype: DType, raw: np.ndarray, target: np.ndarray) -> None:
    """Complex numbers of two halves, as complex64."""
    parts = target.reshape(-1).view(np.float32).reshape(*target.shape, 2)
    if dtype.name == "bcomplex32":
        # The upper half of a float32.
        parts.view(np.uint32)[...] = raw.astype(np.uint32) << 16
    else:
        parts[...] = raw


def _finish(tensor: TensorRef, array: np.ndarray) -> np.ndarray:
    if tensor.dtype == "bool":
        # Bytes other than 0 and 1 would behave unlike either.
        octets = array.view(np.uint8)
        if octets.size and octets.max() > 1:
            np.not_equal(octets, 0, out=array)
    if tensor.conj and array.dtype.kind == "c":
        np.conjugate(array, out=array)
    if tensor.neg:
        np.negative(array, out=array)
    return array
