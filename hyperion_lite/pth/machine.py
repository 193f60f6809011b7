"""The pickle machine: a stack, a memo, and budgets. It builds descriptions; it imports and calls nothing."""

from __future__ import annotations

from collections.abc import Callable
from struct import error as StructError
from typing import Any

from hyperion_lite.pth.errors import PthError, PthFormatError, PthLimitError, PthTruncatedError, shorten
from hyperion_lite.pth.globals import resolve_global
from hyperion_lite.pth.limits import Limits
from hyperion_lite.pth.nesting import NestingGuard
from hyperion_lite.pth.opcodes import HANDLERS, OPCODE_NAMES
from hyperion_lite.pth.values import GlobalRef, NumpyDType, Opaque, StorageRef, TensorNode, TensorRef

_CHEAP_KEYS = frozenset({str, bytes, bool, type(None)})
_HASHABLE = (
    str, bytes, bool, float, complex, type(None), type(Ellipsis), type(NotImplemented),
    Opaque, NumpyDType, StorageRef, TensorRef, TensorNode,
)  # fmt: skip
# Integers below this are too close together to collide often, whatever a file chooses.
_SMALL_KEY = 1 << 24
_MAX_CALL_DEPTH = 8
# Any pickle may build values of this size, however short it is.
_FREE_VALUE_BYTES = 32 << 20

PersistentLoad = Callable[["Machine", Any], Any]


def refuse_persistent_id(machine: Machine, identifier: Any) -> Any:
    """For pickles in which nothing is stored outside."""
    raise PthFormatError("a persistent id where none is expected")


class Machine:
    """Interprets one pickle.

    Args:
        data: the bytes; the pickle may end before them.
        limits: what it may cost.
        persistent_load: maps a persistent id to its value.
        start: where the pickle begins in `data`.
    """

    __slots__ = (
        "call_depth",
        "copy_budget",
        "data",
        "globals",
        "limits",
        "marks",
        "max_depth",
        "memo",
        "memo_bound",
        "nesting",
        "persistent_load",
        "protocol",
        "size",
        "stack",
        "start",
        "value_budget",
        "wide_keys_left",
    )  # fmt: skip

    def __init__(
        self,
        data: bytes,
        limits: Limits,
        persistent_load: PersistentLoad = refuse_persistent_id,
        start: int = 0,
    ) -> None:
        self.data = data
        self.size = len(data)
        self.start = start
        self.limits = limits
        self.persistent_load = persistent_load
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.protocol = 0
        self.globals: dict[tuple[str, str], Any] = {}
        self.max_depth = limits.max_depth
        length = self.size - start
        self.memo_bound = min(256 + self.size, limits.max_memo)
        self.value_budget = min(limits.max_value_bytes, _FREE_VALUE_BYTES + limits.max_value_ratio * length)
        # A pickler writes each element once; a call that copies a memoised list again and again is an attack.
        self.copy_budget = 1024 + 4 * length
        self.wide_keys_left = limits.max_wide_keys
        self.call_depth = 0
        self.nesting = NestingGuard()

    def run(self) -> tuple[Any, int]:
        """Execute up to STOP.

        Returns:
            The value, and the position after STOP.

        Raises:
            PthError: anything else than a well-formed pickle of the known instructions, with offset and opcode name.
        """
        data = self.data
        handlers = HANDLERS
        position = opcode_at = self.start
        try:
            for _ in range(self.limits.max_opcodes):
                opcode_at = position
                position = handlers[data[position]](self, position + 1)
                if position < 0:
                    return self._result(), ~position
        except PthError as error:
            error.locate(offset=opcode_at)
            if opcode_at < self.size:
                error.message = f"{OPCODE_NAMES[data[opcode_at]]}: {error.message}"
            raise
        except (IndexError, StructError) as error:
            if opcode_at >= self.size:
                raise PthTruncatedError("the pickle ends without STOP", offset=opcode_at) from error
            name = OPCODE_NAMES[data[opcode_at]]
            if isinstance(error, StructError) or opcode_at + 1 >= self.size:
                raise PthTruncatedError(f"{name}: the pickle ends inside its argument", offset=opcode_at) from error
            raise PthFormatError(f"{name}: needs more values than are on the stack", offset=opcode_at) from error
        raise PthLimitError(f"more than {self.limits.max_opcodes} pickle instructions", offset=opcode_at)

    def _result(self) -> Any:
        if self.marks:
            raise PthFormatError(f"{len(self.marks)} marks left over at the end")
        if not self.stack:
            raise PthFormatError("the pickle ends without a value")
        # Values below the last one are dropped, as every unpickler does.
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        """The values above the topmost mark."""
        if not self.marks:
            raise PthFormatError("no MARK on the stack")
        values = self.stack
        self.stack = self.marks.pop()
        return values

    def take(self, position: int, length: int) -> bytes:
        """`length` bytes from `position`, which must all be there."""
        if length > self.size - position or length < 0:
            raise PthTruncatedError(f"an argument of {length} bytes where {self.size - position} are left")
        return self.data[position : position + length]

    def spend(self, count: int) -> None:
        """Account for `count` bytes of memory of a new value."""
        self.value_budget -= count
        if self.value_budget < 0:
            raise PthLimitError(
                "the values need more memory than the limits allow (Limits.max_value_bytes, max_value_ratio)"
            )

    def copy(self, count: int) -> None:
        """Account for a call that copies `count` elements or bytes of its argument."""
        self.copy_budget -= count
        if self.copy_budget < 0:
            raise PthLimitError("the pickle copies its own values many times over")

    def check_key(self, key: Any) -> None:
        """Make sure that hashing and comparing `key` is possible, and cheap; iterative, since tuples nest."""
        kind = type(key)
        if kind in _CHEAP_KEYS or (kind is int and -_SMALL_KEY < key < _SMALL_KEY):
            return
        self.wide_keys_left -= 1
        if self.wide_keys_left < 0:
            raise PthLimitError(
                f"more than {self.limits.max_wide_keys} dictionary keys or set elements that are neither strings nor "
                "small integers (Limits.max_wide_keys)"
            )
        level = [key]
        depth = 0
        while level:
            depth += 1
            if depth > 64:
                raise PthLimitError("a dictionary key or set element nested more than 64 deep")
            below: list[Any] = []
            for item in level:
                if type(item) in (tuple, frozenset):
                    self.copy(len(item))
                    below.extend(item)
                elif type(item) is int:
                    # The hash of an integer is not kept: it costs its length each time.
                    self.copy(item.bit_length() >> 3)
                elif not (isinstance(item, _HASHABLE) or _is_numpy_scalar(item)):
                    raise PthFormatError(f"unhashable {type(item).__name__} as a dictionary key or set element")
            level = below

    def global_ref(self, module: str, name: str) -> Any:
        """The value of a bare name; the same object for each mention."""
        key = (module, name)
        found = self.globals.get(key)
        if found is None:
            self.spend(200)
            found = self.globals[key] = resolve_global(module, name)
        return found

    def call(self, function: Any, args: Any, kwargs: dict[str, Any] | None = None) -> Any:
        """What calling `function` stands for: a plain value for what is known, an inert `Opaque` otherwise."""
        if type(args) is not tuple:
            raise PthFormatError(f"arguments of a call are a {type(args).__name__}, not a tuple")
        if type(function) is GlobalRef:
            known = function.known
            if known is not None and not kwargs:
                # Some known calls make another one that is named among their arguments.
                if self.call_depth >= _MAX_CALL_DEPTH:
                    raise PthLimitError(f"calls within calls more than {_MAX_CALL_DEPTH} deep")
                self.call_depth += 1
                try:
                    value = known(self, args)
                except PthError as error:
                    error.message = f"call of {shorten(function.qualified_name)}: {error.message}"
                    raise
                self.call_depth -= 1
                return value
            self.spend(300)
            return Opaque(function.module, function.name, args, kwargs=kwargs)
        if isinstance(function, Opaque):
            self.spend(300)
            return Opaque(function.module, function.name, args, kwargs=kwargs, callee=function)
        raise PthFormatError(f"a {type(function).__name__} is called")


def _is_numpy_scalar(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "numpy" and hasattr(kind, "dtype") and kind.__hash__ is not None
