"""The element types of torch: names, sizes, storage classes, and what numpy calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hyperion_lite.pth.errors import PthUnsupportedError

if TYPE_CHECKING:
    import numpy as np


class DType(NamedTuple):
    """One element type of torch.

    Attributes:
        name: as in `torch.<name>`.
        itemsize: bytes of one stored element.
        swap: bytes of the unit that byte order applies to (a component of a complex number).
        raw: numpy dtype string of the stored bytes, little-endian.
        array: what `read_tensor` gives: a numpy dtype string, or the name of a type of `ml_dtypes`.
        packed: elements in one stored item (sub-byte quantised types).
    """

    name: str
    itemsize: int
    swap: int
    raw: str
    array: str
    packed: int = 1


def _table() -> dict[str, DType]:
    plain = {
        "float64": "<f8",
        "float32": "<f4",
        "float16": "<f2",
        "int64": "<i8",
        "int32": "<i4",
        "int16": "<i2",
        "int8": "|i1",
        "uint64": "<u8",
        "uint32": "<u4",
        "uint16": "<u2",
        "uint8": "|u1",
        "bool": "|b1",
        "qint8": "|i1",
        "quint8": "|u1",
        "qint32": "<i4",
        "bits8": "|u1",
        "bits1x8": "|u1",
        "bits2x4": "|u1",
        "bits4x2": "|u1",
        "bits16": "<u2",
        "float4_e2m1fn_x2": "|u1",
        **{f"uint{bits}": "|u1" for bits in range(1, 8)},
        **{f"int{bits}": "|i1" for bits in range(1, 8)},
    }
    table = {}
    for name, code in plain.items():
        size = int(code[2:])
        table[name] = DType(name, size, size, code, code)
    table["complex128"] = DType("complex128", 16, 8, "<c16", "<c16")
    table["complex64"] = DType("complex64", 8, 4, "<c8", "<c8")
    # numpy has no complex number of two halves; complex64 holds every value of one exactly.
    table["complex32"] = DType("complex32", 4, 2, "<f2", "<c8")
    table["bcomplex32"] = DType("bcomplex32", 4, 2, "<u2", "<c8")
    table["bfloat16"] = DType("bfloat16", 2, 2, "<u2", "bfloat16")
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"):
        table[name] = DType(name, 1, 1, "|u1", name)
    table["quint4x2"] = DType("quint4x2", 1, 1, "|u1", "|u1", packed=2)
    table["quint2x4"] = DType("quint2x4", 1, 1, "|u1", "|u1", packed=4)
    return table


DTYPES = _table()

STORAGE_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
    # Bytes of any type: the tensor states its own.
    "UntypedStorage": "uint8",
    "_UntypedStorage": "uint8",
}
STORAGE_MODULES = frozenset({"torch", "torch.cuda", "torch.storage"})


def numpy_dtype(dtype: DType) -> np.dtype:
    """The numpy dtype of the arrays that `read_tensor` gives for `dtype`.

    Raises:
        PthUnsupportedError: bfloat16 or float8 while `ml_dtypes` is missing or too old.
    """
    import numpy as np

    if dtype.array[0] in "<|":
        return np.dtype(dtype.array)
    try:
        import ml_dtypes
    except ImportError as error:
        raise PthUnsupportedError(
            f"{dtype.name} needs the package ml_dtypes for numpy: pip install ml_dtypes (or use read_torch)"
        ) from error
    kind = getattr(ml_dtypes, dtype.array, None)
    if kind is None:
        raise PthUnsupportedError(f"this ml_dtypes has no {dtype.array}: pip install -U ml_dtypes (or use read_torch)")
    return np.dtype(kind)
