"""What a checkpoint holds besides plain Python values: inert descriptions, never live objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hyperion_lite.pth.dtypes import DTYPES, DType
from hyperion_lite.pth.errors import shorten


class Opaque:
    """An object of a class this reader does not know, as the pickle describes it. Nothing was imported or called.

    Attributes:
        module, name: the class or function as the file names it (for a call of a call's result: of the inner one).
        args: positional arguments of its construction.
        kwargs: keyword arguments of its construction, or None.
        state: what the object's `__setstate__` (or `__dict__`) would have received, or None.
        items: (key, value) pairs that a mapping subclass holds.
        elements: values that a list subclass holds.
        callee: the `Opaque` that was called, when it was not a plain global.
    """

    __slots__ = ("__weakref__", "args", "callee", "elements", "items", "kwargs", "module", "name", "state")

    def __init__(
        self,
        module: str,
        name: str,
        args: tuple[Any, ...] = (),
        state: Any = None,
        items: list[tuple[Any, Any]] | None = None,
        *,
        kwargs: dict[str, Any] | None = None,
        elements: list[Any] | None = None,
        callee: Opaque | None = None,
    ) -> None:
        self.module = module
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.state = state
        self.items = [] if items is None else items
        self.elements = [] if elements is None else elements
        self.callee = callee

    @property
    def qualified_name(self) -> str:
        """`module.name`, for people."""
        return f"{self.module}.{self.name}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shorten(self.qualified_name)} ({len(self.args)} arguments)>"


class GlobalRef(Opaque):
    """A bare class or function name that a file mentions; equal to any other with the same module and name.

    Attributes:
        known: what stands for a call of it, for the names that the reader knows.
    """

    __slots__ = ("known",)

    def __init__(self, module: str, name: str, known: Callable[[Any, tuple], Any] | None = None) -> None:
        super().__init__(module, name)
        self.known = known

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GlobalRef):
            return NotImplemented
        return self.module == other.module and self.name == other.name

    def __hash__(self) -> int:
        return hash((self.module, self.name))

    def __repr__(self) -> str:
        return f"<GlobalRef {shorten(self.qualified_name)}>"


class NumpyDType:
    """A numpy dtype as the file spells it: `spec` such as `f8`, `order` one of `<`, `>`, `=`, `|`."""

    __slots__ = ("order", "plain", "spec")

    def __init__(self, spec: str, order: str = "=", plain: bool = True) -> None:
        self.spec = spec
        self.order = order
        self.plain = plain

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NumpyDType):
            return NotImplemented
        return (self.spec, self.order, self.plain) == (other.spec, other.order, other.plain)

    def __hash__(self) -> int:
        # The byte order is set after construction, so it must not take part.
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"NumpyDType({shorten(self.spec)}, {shorten(self.order)})"


class StorageRef:
    """One run of equal elements in the file, which tensors are views of.

    Attributes:
        key: the file's name for it.
        dtype: element type (untyped storages: uint8).
        numel: elements that this storage (or view of a storage) spans.
        device: where it lived when it was saved; without effect on reading.
        base: the storage that this one is a view of (files before torch 1.6), or itself.
        base_offset: first element of the view in `base`.
    """

    __slots__ = ("__weakref__", "base", "base_offset", "device", "dtype", "key", "numel")

    def __init__(
        self, key: str, dtype: DType, numel: int, device: str, base: StorageRef | None = None, base_offset: int = 0
    ) -> None:
        self.key = key
        self.dtype = dtype
        self.numel = numel
        self.device = device
        self.base: StorageRef = self if base is None else base
        self.base_offset = base_offset

    @property
    def nbytes(self) -> int:
        """Size of the storage in bytes."""
        return self.numel * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"<StorageRef {shorten(self.key)} {self.dtype.name}[{self.numel}]>"


class TensorRef:
    """A tensor's description; `PthFile.read_tensor` reads its elements.

    Element `i` of the tensor is element `offset + sum(i[axis] * stride[axis])` of its storage.

    Attributes:
        storage: where the elements are, or None for a tensor without data (device `meta`).
        dtype: torch's name of the element type, such as `float32`.
        shape, stride: sizes and steps, both in elements.
        offset: storage element of the first tensor element.
        requires_grad: as saved.
        kind: `tensor`, `parameter`, or the qualified name of a tensor subclass.
        device: where the tensor lived when it was saved.
        conj, neg: whether the stored elements are to be conjugated or negated.
        attributes: Python attributes saved with a parameter or subclass.
    """

    __slots__ = (
        "__weakref__",
        "attributes",
        "conj",
        "device",
        "dtype",
        "kind",
        "neg",
        "offset",
        "requires_grad",
        "shape",
        "storage",
        "stride",
    )  # fmt: skip

    def __init__(
        self,
        storage: StorageRef | None,
        dtype: str,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int = 0,
        requires_grad: bool = False,
        kind: str = "tensor",
        device: str = "cpu",
        conj: bool = False,
        neg: bool = False,
        attributes: dict[Any, Any] | None = None,
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.shape = shape
        self.stride = stride
        self.offset = offset
        self.requires_grad = requires_grad
        self.kind = kind
        self.device = device
        self.conj = conj
        self.neg = neg
        self.attributes = {} if attributes is None else attributes

    def derive(self, **changes: Any) -> TensorRef:
        """Another tensor over the same elements, with some attributes changed."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "__weakref__"}
        fields["attributes"] = dict(self.attributes)
        fields.update(changes)
        return TensorRef(**fields)

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element."""
        return DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the elements laid out contiguously, as stored."""
        return -(-self.numel // DTYPES[self.dtype].packed) * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        if 0 in self.shape:
            return True
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    @property
    def span(self) -> tuple[int, int]:
        """First storage element used and one past the last: (offset, offset) for an empty tensor."""
        if 0 in self.shape:
            return self.offset, self.offset
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return self.offset, self.offset + last + 1

    def __repr__(self) -> str:
        return f"<TensorRef {self.dtype} {list(self.shape)}{'' if self.kind == 'tensor' else ' ' + shorten(self.kind)}>"


class TensorNode:
    """A tensor made of several plain ones.

    Attributes:
        parts: the plain tensors by role.
        shape: of the whole, where the file states it.
        attributes: Python attributes saved with it.
    """

    __slots__ = ("__weakref__", "attributes", "parts", "requires_grad", "shape")

    def __init__(
        self, parts: dict[str, Any], shape: tuple[int, ...] | None = None, requires_grad: bool = False
    ) -> None:
        self.parts = parts
        self.shape = shape
        self.requires_grad = requires_grad
        self.attributes: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {None if self.shape is None else list(self.shape)} of {list(self.parts)}>"


class QuantizedTensor(TensorNode):
    """Value = (integer - zero_point) * scale.

    Attributes:
        parts: `int_repr`, and `scales`, `zero_points` when they are per channel.
        scheme: such as `torch.per_tensor_affine`.
        scale, zero_point: of a per-tensor scheme, else None.
        axis: of a per-channel scheme, else None.
    """

    __slots__ = ("axis", "scale", "scheme", "zero_point")

    def __init__(
        self,
        parts: dict[str, Any],
        shape: tuple[int, ...],
        scheme: str,
        scale: float | None = None,
        zero_point: int | None = None,
        axis: int | None = None,
        requires_grad: bool = False,
    ) -> None:
        super().__init__(parts, shape, requires_grad)
        self.scheme = scheme
        self.scale = scale
        self.zero_point = zero_point
        self.axis = axis


class SparseTensor(TensorNode):
    """Only some elements are stored.

    Attributes:
        parts: `indices` and `values` (COO); `crow_indices`/`ccol_indices`, `col_indices`/`row_indices` and `values`
            (compressed layouts).
        layout: such as `torch.sparse_coo`.
        is_coalesced: as saved, or None where the file does not say.
    """

    __slots__ = ("is_coalesced", "layout")

    def __init__(
        self, parts: dict[str, Any], shape: tuple[int, ...], layout: str, is_coalesced: bool | None = None
    ) -> None:
        super().__init__(parts, shape)
        self.layout = layout
        self.is_coalesced = is_coalesced


class NestedTensor(TensorNode):
    """Tensors of different sizes in one buffer; parts: `buffer`, `sizes`, `strides`, `storage_offsets`."""

    __slots__ = ()
