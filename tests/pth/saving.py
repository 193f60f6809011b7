"""Saving with torch in every way that torch has, and comparing what was read with what torch loads."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch

from hyperion_lite.pth import PthFile, TensorRef

WAYS = [(protocol, zipped) for zipped in (True, False) for protocol in (2, 3, 4, 5)]


def saved(value: Any, protocol: int = 2, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order, bit for bit."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()
    return bytes(plain.untyped_storage())


def assert_same_tensor(file: PthFile, found: Any, expected: torch.Tensor) -> None:
    assert type(found) is TensorRef
    assert f"torch.{found.dtype}" == str(expected.dtype)
    assert (found.shape, found.stride) == (tuple(expected.shape), expected.stride())
    as_torch = file.read_torch(found)
    assert as_torch.dtype == expected.dtype
    assert (as_torch.shape, as_torch.stride()) == (expected.shape, expected.stride())
    assert raw_bytes(as_torch) == raw_bytes(expected)
    array = file.read_tensor(found)
    assert array.flags.c_contiguous
    assert array.shape == tuple(expected.shape)
    if expected.dtype in (torch.complex32, getattr(torch, "bcomplex32", None)):
        assert array.dtype == np.complex64
        assert np.array_equal(array, expected.to(torch.complex64).numpy(), equal_nan=True)
    else:
        assert array.tobytes() == raw_bytes(expected)


def assert_same(file: PthFile, found: Any, expected: Any) -> None:
    """Compare a value that was read with the one that was saved, tensors included."""
    if isinstance(expected, torch.Tensor):
        assert_same_tensor(file, found, expected)
    elif isinstance(expected, dict):
        assert type(found) is type(expected)
        assert list(found) == list(expected)
        for key in expected:
            assert_same(file, found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(file, one, other)
    elif isinstance(expected, np.ndarray):
        assert type(found) is np.ndarray
        # Unpickling an array brings it to the byte order of the machine, under most protocols.
        assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
        assert found.shape == expected.shape
        assert found.astype(expected.dtype).tobytes() == expected.tobytes()
    else:
        assert type(found) is type(expected)
        assert found == expected or (found != found and expected != expected)
