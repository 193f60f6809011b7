"""Tensors of torch over the bytes of a file; the only module here that needs torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.container import Container
from hyperion_lite.pth.dtypes import DTYPES
from hyperion_lite.pth.errors import PthUnsupportedError
from hyperion_lite.pth.reading import read_array
from hyperion_lite.pth.values import StorageRef, TensorRef

if TYPE_CHECKING:
    import torch

# Integers of quantised tensors, and elements that torch itself has no arithmetic for, come as plain integers.
_AS_PLAIN = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}


def read_torch(container: Container, tensor: TensorRef, shared: dict[str, Any], verify: bool = False) -> torch.Tensor:
    """The tensor; see `PthFile.read_torch`. `shared` keeps the mapped storages, so that views stay views."""
    import torch

    if tensor.storage is None:
        raise PthUnsupportedError("a tensor of device meta has no elements")
    plan = DTYPES[tensor.dtype]
    dtype = getattr(torch, _AS_PLAIN.get(tensor.dtype, tensor.dtype), None)
    if dtype is None:
        raise PthUnsupportedError(f"this torch has no {tensor.dtype}")
    if plan.packed > 1:
        return torch.from_numpy(read_array(container, tensor, verify=verify))
    if verify:
        container.verify_storage(tensor.storage)
    storage, start = _storage_bytes(container, tensor, shared)
    try:
        result = torch.empty(0, dtype=dtype).set_(
            storage.untyped_storage(), tensor.offset - start, tensor.shape, tensor.stride
        )
    except RuntimeError as error:
        raise PthUnsupportedError(f"a view that torch cannot make: {error}") from error
    if tensor.conj:
        result = result.conj()
    return torch._neg_view(result) if tensor.neg else result


def _storage_bytes(container: Container, tensor: TensorRef, shared: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Bytes that hold the tensor's elements, and the number of elements of its storage that come before them."""
    import torch

    storage = tensor.storage
    assert storage is not None
    mapped = _map_storage(container, storage, tensor.itemsize, shared)
    if mapped is not None:
        return mapped, 0
    first, last = tensor.span
    size = tensor.itemsize
    content = torch.empty((last - first) * size, dtype=torch.uint8)
    if last > first:
        array = content.numpy()
        container.read_range(storage, first * size, array.data)
        swap = DTYPES[tensor.dtype].swap
        if container.byteorder != sys.byteorder and swap > 1:
            array.view(f"u{swap}").byteswap(inplace=True)
    return content, first


def _map_storage(
    container: Container, storage: StorageRef, itemsize: int, shared: dict[str, Any]
) -> torch.Tensor | None:
    """A storage's bytes in the (private, copy-on-write) memory map, if they are there as they are needed."""
    import torch

    place = container.place(storage)
    swapped = container.byteorder != sys.byteorder and DTYPES[storage.dtype.name].swap > 1
    if place is None or place % itemsize or swapped or not storage.nbytes:
        return None
    known = shared.get(storage.key)
    if known is None:
        buffer = container.source.buffer()
        if buffer is None:
            return None
        known = shared[storage.key] = torch.frombuffer(buffer, dtype=torch.uint8, count=storage.nbytes, offset=place)
    return known
