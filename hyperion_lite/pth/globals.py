"""What known names and calls stand for. A file chooses from these tables; nothing is imported by name."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.checks import is_text
from hyperion_lite.pth.dtypes import DTYPES
from hyperion_lite.pth.errors import PthFormatError
from hyperion_lite.pth.numpy_calls import NUMPY_CALLS
from hyperion_lite.pth.rebuild import TORCH_CALLS
from hyperion_lite.pth.values import GlobalRef, Opaque

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine

Call = Callable[["Machine", tuple], Any]

# Where Python 2 (and Python 3 under protocol 2) keeps what is elsewhere now.
_RENAMED_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "__main__": "__main__"}
_MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
_TORCH_NAMES = {
    **{("torch", name): f"torch.{name}" for name in DTYPES},
    **{
        ("torch", name): f"torch.{name}"
        for name in (
            "per_tensor_affine", "per_channel_affine", "per_tensor_symmetric", "per_channel_symmetric",
            "per_channel_affine_float_qparams", "strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr",
            "sparse_bsc", "jagged", *_MEMORY_FORMATS,
        )
    },
}  # fmt: skip
_CONSTANTS: dict[tuple[str, str], Any] = {
    ("builtins", "Ellipsis"): Ellipsis,
    ("builtins", "NotImplemented"): NotImplemented,
    **{("torch._utils", f"torch.{name}"): f"torch.{name}" for name in _MEMORY_FORMATS},
    **_TORCH_NAMES,
}
_FACTORIES = {
    kind.__name__: kind for kind in (list, dict, set, tuple, int, float, complex, bool, str, bytes, frozenset)
}


def resolve_global(module: str, name: str) -> Any:
    """The value of a bare name: a plain one for dtypes and the like, otherwise a `GlobalRef`."""
    module = _RENAMED_MODULES.get(module, module)
    constant = _CONSTANTS.get((module, name))
    return GlobalRef(module, name, KNOWN_CALLS.get((module, name))) if constant is None else constant


def _one(args: tuple, *kinds: type) -> Any:
    if len(args) != 1 or type(args[0]) not in kinds:
        shown = ", ".join(type(arg).__name__ for arg in args)
        raise PthFormatError(f"expected one {' or '.join(kind.__name__ for kind in kinds)}, found ({shown})")
    return args[0]


def _check_elements(m: Machine, values: Any) -> None:
    m.copy(len(values))
    m.spend(216 + 32 * len(values))
    for value in values:
        m.check_key(value)


def _set(m: Machine, args: tuple) -> set:
    values = _one(args, list, tuple) if args else ()
    _check_elements(m, values)
    return set(values)


def _frozenset(m: Machine, args: tuple) -> frozenset:
    values = _one(args, list, tuple) if args else ()
    _check_elements(m, values)
    return frozenset(values)


def _update(m: Machine, target: dict, pairs: Any) -> None:
    m.copy(len(pairs))
    m.spend(400 + 100 * len(pairs))
    for pair in pairs:
        if type(pair) not in (tuple, list) or len(pair) != 2:
            raise PthFormatError("an item of a dictionary is not a pair")
        m.check_key(pair[0])
        target[pair[0]] = pair[1]


def _ordered_dict(m: Machine, args: tuple) -> OrderedDict:
    result: OrderedDict = OrderedDict()
    if not args:
        m.spend(400)
        return result
    items = _one(args, list, tuple, dict, OrderedDict)
    _update(m, result, list(items.items()) if isinstance(items, dict) else items)
    return result


def _dict(m: Machine, args: tuple) -> dict:
    result: dict = {}
    items = _one(args, list, tuple, dict, OrderedDict) if args else ()
    _update(m, result, list(items.items()) if isinstance(items, dict) else items)
    return result


def _counter(m: Machine, args: tuple) -> Counter:
    result: Counter = Counter()
    _update(m, result, list(_one(args, dict, OrderedDict).items()) if args else ())
    return result


def _defaultdict(m: Machine, args: tuple) -> defaultdict:
    if len(args) > 2:
        raise PthFormatError(f"{len(args)} arguments of a defaultdict")
    factory = None
    if args and type(args[0]) is GlobalRef and args[0].module == "builtins":
        factory = _FACTORIES.get(args[0].name)
    elif args and args[0] is not None and not isinstance(args[0], Opaque):
        raise PthFormatError(f"a {type(args[0]).__name__} makes the values of a defaultdict")
    # A factory of the file's own is forgotten: it will not be called.
    result: defaultdict = defaultdict(factory)
    _update(m, result, list(_one(args[1:], dict, OrderedDict).items()) if len(args) == 2 else ())
    m.nesting.add(result, result.values())
    return result


def _deque(m: Machine, args: tuple) -> deque:
    values = args[0] if args else ()
    bound = args[1] if len(args) > 1 else None
    if type(values) not in (list, tuple) or len(args) > 2:
        raise PthFormatError("malformed arguments of a deque")
    if bound is not None and not (type(bound) is int and 0 <= bound < 2**63):
        raise PthFormatError("malformed maximum length of a deque")
    m.copy(len(values))
    m.spend(650 + 8 * len(values))
    result = deque(values, bound)
    m.nesting.add(result, result)
    return result


def _list(m: Machine, args: tuple) -> list:
    values = _one(args, list, tuple) if args else ()
    m.copy(len(values))
    m.spend(56 + 8 * len(values))
    return list(values)


def _tuple(m: Machine, args: tuple) -> tuple:
    return tuple(_list(m, args))


def _complex(m: Machine, args: tuple) -> complex:
    if len(args) != 2 or not all(type(arg) in (int, float) for arg in args):
        raise PthFormatError("a complex number is not two floats")
    try:
        return complex(args[0], args[1])
    except OverflowError as error:
        raise PthFormatError("a part of a complex number is no float") from error


def _range(m: Machine, args: tuple) -> Any:
    if not 1 <= len(args) <= 3 or not all(type(arg) is int for arg in args) or (len(args) == 3 and args[2] == 0):
        raise PthFormatError("malformed arguments of a range")
    return range(*args)


def _slice(m: Machine, args: tuple) -> slice:
    if not 1 <= len(args) <= 3:
        raise PthFormatError("malformed arguments of a slice")
    result = slice(*args)
    m.nesting.add(result, args)
    return result


def _latin1(m: Machine, text: Any, encoding: Any) -> bytes:
    if type(text) is not str or not is_text(encoding, "latin1", "latin-1"):
        raise PthFormatError("bytes written other than as latin1 text")
    m.copy(len(text))
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise PthFormatError("bytes written as text with characters above 255") from error


def _codecs_encode(m: Machine, args: tuple) -> Any:
    if len(args) == 2 and type(args[0]) is str and is_text(args[1], "latin1", "latin-1"):
        return _latin1(m, *args)
    return Opaque("_codecs", "encode", args)


def _bytes(m: Machine, args: tuple) -> bytes:
    if not args:
        return b""
    if len(args) == 2:
        return _latin1(m, *args)
    raw = _one(args, bytes)
    return raw


def _bytearray(m: Machine, args: tuple) -> bytearray:
    raw = _bytes(m, args)
    m.copy(len(raw))
    return bytearray(raw)


def _type(m: Machine, args: tuple) -> GlobalRef | Opaque:
    # `type(None)` and the like are written as a call.
    names = {type(None): "NoneType", type(Ellipsis): "ellipsis", type(NotImplemented): "NotImplementedType"}
    if len(args) == 1 and type(args[0]) in names:
        return GlobalRef("builtins", names[type(args[0])])
    return Opaque("builtins", "type", args)


def _newobj(m: Machine, args: tuple) -> Any:
    """`copyreg.__newobj__(class, *arguments)`: what NEWOBJ does, written as a call."""
    if not args:
        raise PthFormatError("an object without a class")
    m.copy(len(args))
    return m.call(args[0], args[1:])


def _reconstructor(m: Machine, args: tuple) -> Any:
    """`copyreg._reconstructor(class, base, base state)`: objects written under protocols 0 and 1."""
    if len(args) != 3 or type(args[0]) is not GlobalRef:
        return Opaque("copyreg", "_reconstructor", args)
    return Opaque(args[0].module, args[0].name, () if args[2] is None else args[2:])


_PYTHON_CALLS: dict[tuple[str, str], Call] = {
    ("builtins", "set"): _set,
    ("builtins", "frozenset"): _frozenset,
    ("builtins", "dict"): _dict,
    ("builtins", "list"): _list,
    ("builtins", "tuple"): _tuple,
    ("builtins", "bytes"): _bytes,
    ("builtins", "bytearray"): _bytearray,
    ("builtins", "complex"): _complex,
    ("builtins", "range"): _range,
    ("builtins", "xrange"): _range,
    ("builtins", "slice"): _slice,
    ("builtins", "type"): _type,
    ("_codecs", "encode"): _codecs_encode,
    ("copyreg", "__newobj__"): _newobj,
    ("copyreg", "_reconstructor"): _reconstructor,
    ("collections", "OrderedDict"): _ordered_dict,
    ("collections", "Counter"): _counter,
    ("collections", "defaultdict"): _defaultdict,
    ("collections", "deque"): _deque,
}

KNOWN_CALLS: dict[tuple[str, str], Call] = {**_PYTHON_CALLS, **NUMPY_CALLS, **TORCH_CALLS}
