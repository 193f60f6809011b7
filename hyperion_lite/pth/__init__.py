"""Reads files written by `torch.save` without torch and without executing anything in them.

with open_pth("model.pth") as file:
    file.root                        # what was saved, as plain values
    file.tensors["encoder.weight"]   # dtype, shape, stride, storage
    file.read_tensor("encoder.weight")
"""

from __future__ import annotations

from hyperion_lite.pth.errors import (
    PthError,
    PthFormatError,
    PthLimitError,
    PthTruncatedError,
    PthUnsupportedError,
)
from hyperion_lite.pth.file import PthFile, open_pth
from hyperion_lite.pth.limits import Limits
from hyperion_lite.pth.tree import TensorMap
from hyperion_lite.pth.values import (
    GlobalRef,
    NestedTensor,
    NumpyDType,
    Opaque,
    QuantizedTensor,
    SparseTensor,
    StorageRef,
    TensorNode,
    TensorRef,
)

__all__ = [
    "GlobalRef",
    "Limits",
    "NestedTensor",
    "NumpyDType",
    "Opaque",
    "PthError",
    "PthFile",
    "PthFormatError",
    "PthLimitError",
    "PthTruncatedError",
    "PthUnsupportedError",
    "QuantizedTensor",
    "SparseTensor",
    "StorageRef",
    "TensorMap",
    "TensorNode",
    "TensorRef",
    "open_pth",
]
