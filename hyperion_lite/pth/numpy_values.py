"""numpy scalars and arrays of plain dtypes as real numpy values; every other numpy object stays opaque."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperion_lite.pth.checks import is_text
from hyperion_lite.pth.errors import PthFormatError, PthUnsupportedError, shorten
from hyperion_lite.pth.values import GlobalRef, NumpyDType, Opaque

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine

# Booleans, integers, floats, complex numbers, byte and text strings: kinds without Python objects or nested fields.
_PLAIN_SPEC = re.compile(r"b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SU][0-9]{1,9}")
_MAX_DIMENSIONS = 32


def make_dtype(m: Machine, args: tuple) -> NumpyDType | Opaque:
    """`numpy.dtype(spec, align, copy)`; its byte order follows in a state."""
    spec = args[0] if args else None
    if type(spec) is bytes:
        spec = spec.decode("latin-1")
    if type(spec) is not str:
        # A scalar class or a list of fields.
        return Opaque("numpy", "dtype", args)
    return NumpyDType(spec, "=", _PLAIN_SPEC.fullmatch(spec) is not None)


def to_numpy(dtype: Any) -> np.dtype | None:
    """The numpy dtype of a plain description, or None for other dtypes."""
    # Subarrays, fields and dates are not plain; neither is a spec that a file made up.
    if type(dtype) is not NumpyDType or not dtype.plain:
        return None
    order = "<" if dtype.order == "=" else dtype.order
    try:
        return np.dtype(order + dtype.spec)
    except (TypeError, ValueError) as error:
        raise PthUnsupportedError(f"numpy dtype {shorten(order + dtype.spec)} on this machine") from error


def _raw(value: Any) -> bytes | bytearray | None:
    if type(value) is str:
        # Python 2 bytes that happened to be UTF-8.
        return value.encode("utf-8", "surrogatepass")
    return value if type(value) in (bytes, bytearray) else None


def make_scalar(m: Machine, args: tuple) -> Any:
    """`scalar(dtype, bytes)`."""
    dtype = to_numpy(args[0]) if len(args) == 2 else None
    raw = _raw(args[1]) if dtype is not None else None
    if dtype is None or raw is None:
        return Opaque("numpy._core.multiarray", "scalar", args)
    if len(raw) != dtype.itemsize:
        raise PthFormatError(f"{len(raw)} bytes of a numpy {dtype} scalar")
    m.copy(len(raw))
    m.spend(64)
    if dtype.itemsize == 0:
        return dtype.type()
    try:
        return np.frombuffer(bytes(raw), dtype)[0]
    except ValueError as error:
        raise PthFormatError(f"malformed numpy {dtype} scalar") from error


def make_empty_array(m: Machine, args: tuple) -> Any:
    """`_reconstruct(class, (0,), b"b")`: an array whose shape, dtype and elements follow in a state."""
    if len(args) == 3 and type(args[0]) is GlobalRef and (args[0].module, args[0].name) == ("numpy", "ndarray"):
        m.spend(112)
        return np.ndarray((0,), np.int8)
    return Opaque("numpy._core.multiarray", "_reconstruct", args)


def _check_shape(shape: Any, itemsize: int, length: int) -> None:
    """Make sure that `length` bytes fill an array of `shape`, and that its arithmetic fits 64 bits."""
    if type(shape) is not tuple or len(shape) > _MAX_DIMENSIONS or not all(type(s) is int and s >= 0 for s in shape):
        raise PthFormatError(f"malformed shape of a numpy array: {shorten(shape)}")
    extent = itemsize
    for size in shape:
        extent *= max(size, 1)
    expected = 0 if 0 in shape else extent
    if expected != length or extent >= 2**62 or (itemsize == 0 and 0 not in shape):
        raise PthFormatError(f"{length} bytes of {itemsize}-byte elements in a numpy array of shape {shorten(shape)}")


def _check_text(array: np.ndarray) -> None:
    """Refuse code points that Python has no character for; numpy would fail when an element is looked at."""
    if array.dtype.kind == "U" and array.size:
        order = array.dtype.byteorder
        points = np.frombuffer(array.tobytes(), np.dtype("u4").newbyteorder(order))
        if points.size and int(points.max()) > 0x10FFFF:
            raise PthFormatError("text in a numpy array has no valid characters")


def _object_state(m: Machine, shape: Any, values: list) -> tuple:
    _check_shape(shape, 8, 8 * len(values))
    m.spend(8 * len(values))
    return np.dtype(object), values


def set_array_state(m: Machine, array: np.ndarray, state: Any) -> None:
    """`(version, shape, dtype, Fortran order, bytes)`; applied to the very array, which others may refer to.

    An array of Python objects holds the inert values that stand for them. Elements of dtypes that are not plain
    (structured, dates) stay raw: the array has a void dtype of their size.

    Raises:
        PthFormatError: a state that contradicts itself.
    """
    if type(state) is not tuple or len(state) not in (4, 5) or array.nbytes:
        raise PthFormatError("malformed state of a numpy array")
    shape, spec, fortran, data = state[-4:]
    raw = _raw(data)
    if type(data) is list and type(spec) is NumpyDType and spec.spec in ("O", "O4", "O8"):
        dtype, raw = _object_state(m, shape, data)
        m.nesting.add(array, data)
    elif raw is not None:
        dtype = to_numpy(spec) or _void(spec)
        _check_shape(shape, dtype.itemsize, len(raw))
        raw = bytes(raw)
    else:
        raise PthFormatError(f"elements of a numpy array in a {type(data).__name__}")
    m.copy(len(raw))
    try:
        column_major: Any = int(type(fortran) in (bool, int) and bool(fortran))
        array.__setstate__((1, shape, dtype, column_major, raw))
    except (TypeError, ValueError) as error:
        raise PthFormatError(f"malformed state of a numpy array: {error}") from error
    _check_text(array)


def _void(spec: Any) -> np.dtype:
    size = re.fullmatch(r"[A-Za-z]([0-9]{1,6})", spec.spec) if type(spec) is NumpyDType else None
    if size is None:
        raise PthUnsupportedError(f"a numpy array of dtype {spec!r}")
    return np.dtype(f"V{size.group(1)}")


def make_array(m: Machine, args: tuple) -> Any:
    """`_frombuffer(bytes, dtype, shape, order)`, written under protocol 5."""
    if len(args) != 4:
        return Opaque("numpy._core.numeric", "_frombuffer", args)
    data, spec, shape, order = args
    dtype = to_numpy(spec)
    if dtype is None or type(data) not in (bytes, bytearray) or not is_text(order, "C", "F"):
        return Opaque("numpy._core.numeric", "_frombuffer", args)
    _check_shape(shape, dtype.itemsize, len(data))
    m.spend(112)
    m.copy(len(data))
    if not len(data):
        return np.zeros(shape, dtype, order)
    array = np.frombuffer(data, dtype).reshape(shape, order=order)
    _check_text(array)
    return array
