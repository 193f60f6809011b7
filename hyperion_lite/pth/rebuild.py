"""The calls by which torch rebuilds tensors, as descriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.build import set_tensor_attributes
from hyperion_lite.pth.checks import check_view, checked_int, checked_sizes, is_text
from hyperion_lite.pth.dtypes import DTYPES, DType
from hyperion_lite.pth.errors import PthFormatError, shorten
from hyperion_lite.pth.values import (
    GlobalRef,
    NestedTensor,
    Opaque,
    QuantizedTensor,
    SparseTensor,
    StorageRef,
    TensorNode,
    TensorRef,
)

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine


def _expect(args: tuple, least: int, most: int) -> None:
    if not least <= len(args) <= most:
        raise PthFormatError(f"{len(args)} arguments where {least} to {most} are expected")


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise PthFormatError(f"{what} is a {type(value).__name__}, not a boolean")
    return value


def named_dtype(value: Any) -> DType:
    """The dtype behind a value such as `torch.float32`."""
    found = DTYPES.get(value[6:]) if type(value) is str and value.startswith("torch.") else None
    if found is None:
        raise PthFormatError(f"{shorten(value)} is no dtype of torch")
    return found


def _view(m: Machine, args: tuple, dtype: DType | None = None) -> TensorRef:
    """A checked view (storage, offset, shape, stride), as elements of `dtype` (default: the storage's)."""
    storage, offset, shape, stride = args
    if type(storage) is not StorageRef:
        raise PthFormatError(f"the storage of a tensor is a {type(storage).__name__}")
    if dtype is None:
        dtype = storage.dtype
        available = storage.numel * dtype.packed
    else:
        available = storage.nbytes // dtype.itemsize * dtype.packed
    offset = checked_int(offset, "the storage offset of a tensor")
    shape, stride = check_view(shape, stride, offset, dtype.itemsize, available, m.limits.max_rank)
    m.spend(300)
    return TensorRef(storage, dtype.name, shape, stride, offset, device=storage.device)


# Lazily negated tensors are imaginary parts of conjugates.
_NEGATABLE = frozenset(
    {"float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "bcomplex32"}
)


def _set_metadata(tensor: TensorRef, metadata: Any) -> TensorRef:
    if metadata is None:
        return tensor
    if not isinstance(metadata, dict):
        raise PthFormatError(f"tensor metadata is a {type(metadata).__name__}")
    tensor.conj = _flag(metadata.get("conj", False), "the conjugation mark of a tensor")
    tensor.neg = _flag(metadata.get("neg", False), "the negation mark of a tensor")
    if (tensor.conj and "complex" not in tensor.dtype) or (tensor.neg and tensor.dtype not in _NEGATABLE):
        raise PthFormatError(f"a conjugation or negation mark on {tensor.dtype}")
    return tensor


def _tensor(m: Machine, args: tuple) -> TensorRef:
    """`_rebuild_tensor(storage, offset, size, stride)`."""
    _expect(args, 4, 4)
    return _view(m, args)


def _tensor_v2(m: Machine, args: tuple) -> TensorRef:
    """`_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata])`."""
    _expect(args, 6, 7)
    tensor = _view(m, args[:4])
    tensor.requires_grad = _flag(args[4], "requires_grad")
    return _set_metadata(tensor, args[6] if len(args) > 6 else None)


def _tensor_v3(m: Machine, args: tuple) -> TensorRef:
    """`_rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype[, metadata])`."""
    _expect(args, 7, 8)
    tensor = _view(m, args[:4], named_dtype(args[6]))
    tensor.requires_grad = _flag(args[4], "requires_grad")
    return _set_metadata(tensor, args[7] if len(args) > 7 else None)


def _as_parameter(m: Machine, data: Any, requires_grad: Any) -> Any:
    flag = _flag(requires_grad, "requires_grad")
    if type(data) is TensorRef:
        m.copy(len(data.attributes))
        return data.derive(kind="parameter", requires_grad=flag)
    if isinstance(data, TensorNode):
        data.requires_grad = flag
        return data
    return None


def _parameter(m: Machine, args: tuple) -> Any:
    """`_rebuild_parameter(data, requires_grad, hooks)`, or `Parameter(data, requires_grad)`."""
    _expect(args, 1, 3)
    m.spend(300)
    found = _as_parameter(m, args[0], args[1] if len(args) > 1 else True)
    return Opaque("torch.nn.parameter", "Parameter", args) if found is None else found


def _parameter_with_state(m: Machine, args: tuple) -> Any:
    """`_rebuild_parameter_with_state(data, requires_grad, hooks, state)`."""
    _expect(args, 4, 4)
    found = _parameter(m, args[:3])
    if isinstance(found, Opaque):
        found.state = args[3]
    else:
        set_tensor_attributes(m, found, args[3])
    return found


def _from_type(m: Machine, args: tuple) -> Any:
    """`_rebuild_from_type_v2(function, class, arguments, state)`: a tensor of a subclass."""
    _expect(args, 4, 4)
    function, kind, inner, state = args
    value = m.call(function, inner)
    if isinstance(value, (TensorRef, TensorNode)):
        if type(kind) is not GlobalRef:
            raise PthFormatError("the class of a tensor is not a class name")
        if type(value) is TensorRef and (kind.module, kind.name) != ("torch", "Tensor"):
            value.kind = "parameter" if kind.name == "Parameter" else kind.qualified_name
        set_tensor_attributes(m, value, state)
        return value
    return Opaque("torch._tensor", "_rebuild_from_type_v2", args)


def _sparse(m: Machine, args: tuple) -> SparseTensor:
    """`_rebuild_sparse_tensor(layout, data)`."""
    _expect(args, 2, 2)
    layout, data = args
    names = {
        "torch.sparse_coo": ("indices", "values"),
        "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
        "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
        "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
        "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
    }.get(layout if type(layout) is str else "")
    if names is None or type(data) is not tuple or not len(names) < len(data) <= len(names) + 2:
        raise PthFormatError(f"malformed sparse tensor of layout {shorten(layout)}")
    parts = dict(zip(names, data, strict=False))
    _check_parts(parts)
    shape = checked_sizes(data[len(names)], "the shape of a sparse tensor", m.limits.max_rank)
    coalesced = data[len(names) + 1] if len(data) > len(names) + 1 else None
    m.spend(500)
    return SparseTensor(parts, shape, layout, None if coalesced is None else _flag(coalesced, "is_coalesced"))


def _check_parts(parts: dict[str, Any]) -> None:
    for name, part in parts.items():
        if type(part) is not TensorRef:
            raise PthFormatError(f"{name} of a tensor is a {type(part).__name__}")


def _nested(m: Machine, args: tuple) -> NestedTensor:
    """`_rebuild_nested_tensor(buffer, sizes, strides, storage offsets)`."""
    _expect(args, 4, 4)
    parts = dict(zip(("buffer", "sizes", "strides", "storage_offsets"), args, strict=True))
    _check_parts(parts)
    m.spend(500)
    return NestedTensor(parts)


def _quantized(m: Machine, args: tuple) -> QuantizedTensor:
    """`_rebuild_qtensor(storage, offset, size, stride, quantizer, requires_grad, hooks)`."""
    _expect(args, 7, 7)
    integers = _view(m, args[:4])
    grad = _flag(args[5], "requires_grad")
    quantizer = args[4]
    if type(quantizer) is not tuple or not quantizer or type(quantizer[0]) is not str:
        raise PthFormatError("malformed quantiser of a tensor")
    scheme = quantizer[0]
    parts: dict[str, Any] = {"int_repr": integers}
    m.spend(500)
    if len(quantizer) == 3 and type(quantizer[1]) in (int, float) and type(quantizer[2]) is int:
        return QuantizedTensor(parts, integers.shape, scheme, quantizer[1], quantizer[2], requires_grad=grad)
    if len(quantizer) != 4:
        raise PthFormatError(f"malformed quantiser {shorten(scheme)}")
    parts.update(scales=quantizer[1], zero_points=quantizer[2])
    if type(quantizer[1]) is not tuple:
        _check_parts(parts)
    axis = checked_int(quantizer[3], "the axis of a quantiser")
    return QuantizedTensor(parts, integers.shape, scheme, axis=axis, requires_grad=grad)


def _meta(m: Machine, args: tuple) -> TensorRef:
    """`_rebuild_meta_tensor_no_storage(dtype, size, stride, requires_grad)`."""
    _expect(args, 4, 4)
    dtype = named_dtype(args[0])
    shape, stride = check_view(args[1], args[2], 0, dtype.itemsize, None, m.limits.max_rank)
    m.spend(300)
    return TensorRef(None, dtype.name, shape, stride, requires_grad=_flag(args[3], "requires_grad"), device="meta")


def _device_tensor(m: Machine, args: tuple) -> Any:
    """`_rebuild_device_tensor_from_cpu_tensor(data, dtype, device, requires_grad)`: stored as a CPU tensor."""
    if (
        len(args) == 4
        and type(args[0]) is TensorRef
        and type(args[2]) is str
        and is_text(args[1], f"torch.{args[0].dtype}")
    ):
        m.spend(300)
        m.copy(len(args[0].attributes))
        return args[0].derive(device=args[2], requires_grad=_flag(args[3], "requires_grad"))
    return Opaque("torch._utils", "_rebuild_device_tensor_from_cpu_tensor", args)


def _size(m: Machine, args: tuple) -> tuple:
    """`torch.Size((...))`: a tuple."""
    if not args:
        return ()
    return checked_sizes(args[0] if len(args) == 1 else None, "a torch.Size", m.limits.max_rank)


def _device(m: Machine, args: tuple) -> str:
    """`torch.device("cuda", 0)`: what `str` of the device gives."""
    if not 1 <= len(args) <= 2 or type(args[0]) is not str or (len(args) == 2 and type(args[1]) is not int):
        raise PthFormatError("malformed arguments of a device")
    return args[0] if len(args) == 1 else f"{args[0]}:{checked_int(args[1], 'a device index')}"


def _layout(m: Machine, args: tuple) -> str:
    """`_get_layout("torch.strided")`: the name itself."""
    if len(args) != 1 or type(args[0]) is not str:
        raise PthFormatError("malformed layout")
    return args[0]


def _list(m: Machine, args: tuple) -> list:
    """Typed lists of TorchScript: `build_intlist([...])` and the like."""
    if len(args) != 1 or type(args[0]) is not list:
        raise PthFormatError("malformed list of a TorchScript archive")
    return args[0]


def _tagged(m: Machine, args: tuple) -> Any:
    """`restore_type_tag(value, type)` of TorchScript: the value."""
    _expect(args, 2, 2)
    return args[0]


TORCH_CALLS: dict[tuple[str, str], Callable[[Machine, tuple], Any]] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter_with_state,
    ("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    ("torch._utils", "_rebuild_nested_tensor"): _nested,
    ("torch._utils", "_rebuild_qtensor"): _quantized,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _meta,
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _device_tensor,
    ("torch._tensor", "_rebuild_from_type"): _from_type,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch.tensor", "_rebuild_from_type"): _from_type,
    ("torch.nn.parameter", "Parameter"): _parameter,
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    ("torch.serialization", "_get_layout"): _layout,
    ("torch.jit._pickle", "restore_type_tag"): _tagged,
    **{("torch.jit._pickle", f"build_{kind}list"): _list for kind in ("int", "double", "bool", "tensor")},
}
