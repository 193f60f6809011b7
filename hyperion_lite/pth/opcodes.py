"""Pickle instructions that build containers, use the memo, or call something. All known ones are in `HANDLERS`.

Known are the instructions that Python's picklers write under protocols 2 to 5, and those of Python 2 (byte strings,
long decimal integers, old-style instances). STOP gives the complement of the position after it, a negative number.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.build import apply_state
from hyperion_lite.pth.errors import PthFormatError, PthLimitError, PthTruncatedError, PthUnsupportedError
from hyperion_lite.pth.literals import MAX_LINE, read_line, utf8
from hyperion_lite.pth.opcode_table import HANDLERS, OPCODE_NAMES, Handler, opcode
from hyperion_lite.pth.values import Opaque

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine

__all__ = ["HANDLERS", "OPCODE_NAMES"]

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


@opcode(b"\x80")
def _proto(m: Machine, pos: int) -> int:
    version = m.data[pos]
    if version > 5:
        raise PthUnsupportedError(f"pickle protocol {version}; 2 to 5 are known")
    m.protocol = max(m.protocol, version)
    return pos + 1


@opcode(b"\x95")
def _frame(m: Machine, pos: int) -> int:
    (length,) = _UINT64.unpack_from(m.data, pos)
    if length > m.size - pos - 8:
        raise PthTruncatedError(f"a frame of {length} bytes where {m.size - pos - 8} are left")
    return pos + 8


@opcode(b".")
def _stop(m: Machine, pos: int) -> int:
    return ~pos


@opcode(b"(")
def _mark(m: Machine, pos: int) -> int:
    if len(m.marks) >= m.max_depth:
        raise PthLimitError(f"marks nested more than {m.max_depth} deep (Limits.max_depth)")
    m.spend(56)
    m.marks.append(m.stack)
    m.stack = []
    return pos


@opcode(b"0")
def _pop(m: Machine, pos: int) -> int:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()
    return pos


@opcode(b"1")
def _pop_mark(m: Machine, pos: int) -> int:
    m.pop_mark()
    return pos


@opcode(b"}")
def _empty_dict(m: Machine, pos: int) -> int:
    m.spend(64)
    m.stack.append({})
    return pos


@opcode(b"]")
def _empty_list(m: Machine, pos: int) -> int:
    m.spend(56)
    m.stack.append([])
    return pos


@opcode(b"\x8f")
def _empty_set(m: Machine, pos: int) -> int:
    m.spend(216)
    m.stack.append(set())
    return pos


@opcode(b"t")
def _tuple(m: Machine, pos: int) -> int:
    m.spend(48)
    values = tuple(m.pop_mark())
    m.stack.append(values)
    return pos


def _short_tuple(count: int) -> Handler:
    def push(m: Machine, pos: int) -> int:
        m.spend(48)
        stack = m.stack
        if len(stack) < count:
            raise IndexError
        stack[-count:] = [tuple(stack[-count:])]
        return pos

    return push


HANDLERS[0x85] = _short_tuple(1)
HANDLERS[0x86] = _short_tuple(2)
HANDLERS[0x87] = _short_tuple(3)


@opcode(b"\x91")
def _frozenset(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    for value in values:
        m.check_key(value)
    m.spend(216 + 16 * len(values))
    m.stack.append(frozenset(values))
    return pos


def _extend(m: Machine, target: Any, values: list[Any]) -> None:
    if type(target) is list:
        target.extend(values)
    elif type(target) is deque:
        m.nesting.add(target, values)
        target.extend(values)
    elif type(target) is Opaque:
        target.elements.extend(values)
    else:
        raise PthFormatError(f"elements appended to a {type(target).__name__}")


@opcode(b"a")
def _append(m: Machine, pos: int) -> int:
    value = m.stack.pop()
    _extend(m, m.stack[-1], [value])
    return pos


@opcode(b"e")
def _appends(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    _extend(m, m.stack[-1], values)
    return pos


def _set_items(m: Machine, target: Any, values: list[Any]) -> None:
    if len(values) % 2:
        raise PthFormatError("a key without a value")
    if isinstance(target, dict):
        if type(target) is defaultdict:
            m.nesting.add(target, values[1::2])
        for index in range(0, len(values), 2):
            key = values[index]
            if type(key) is not str:
                m.check_key(key)
            target[key] = values[index + 1]
    elif type(target) is Opaque:
        target.items.extend(zip(values[::2], values[1::2], strict=True))
    else:
        raise PthFormatError(f"items set on a {type(target).__name__}")


@opcode(b"s")
def _setitem(m: Machine, pos: int) -> int:
    value = m.stack.pop()
    key = m.stack.pop()
    m.spend(100)
    _set_items(m, m.stack[-1], [key, value])
    return pos


@opcode(b"u")
def _setitems(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    m.spend(100 + 32 * len(values))
    _set_items(m, m.stack[-1], values)
    return pos


@opcode(b"\x90")
def _additems(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    target = m.stack[-1]
    if type(target) is not set:
        raise PthFormatError(f"elements added to a {type(target).__name__}")
    for value in values:
        m.check_key(value)
    target.update(values)
    return pos


def _put_far(m: Machine, index: int) -> None:
    # Picklers count from zero; indexes from far outside could be chosen to collide.
    m.check_key(index << 32)
    if len(m.memo) > m.limits.max_memo:
        raise PthLimitError(f"more than {m.limits.max_memo} memo entries (Limits.max_memo)")


@opcode(b"q")
def _binput(m: Machine, pos: int) -> int:
    m.memo[m.data[pos]] = m.stack[-1]
    return pos + 1


@opcode(b"r")
def _long_binput(m: Machine, pos: int) -> int:
    (index,) = _UINT32.unpack_from(m.data, pos)
    m.memo[index] = m.stack[-1]
    if index > m.memo_bound:
        _put_far(m, index)
    return pos + 4


@opcode(b"\x94")
def _memoize(m: Machine, pos: int) -> int:
    m.spend(100)
    index = len(m.memo)
    m.memo[index] = m.stack[-1]
    if index > m.memo_bound:
        _put_far(m, index)
    return pos


def _missing(index: int) -> PthFormatError:
    return PthFormatError(f"memo entry {index} was never stored")


@opcode(b"h")
def _binget(m: Machine, pos: int) -> int:
    index = m.data[pos]
    if index not in m.memo:
        raise _missing(index)
    m.stack.append(m.memo[index])
    return pos + 1


@opcode(b"j")
def _long_binget(m: Machine, pos: int) -> int:
    (index,) = _UINT32.unpack_from(m.data, pos)
    if index not in m.memo:
        raise _missing(index)
    m.stack.append(m.memo[index])
    return pos + 4


@opcode(b"c")
def _global(m: Machine, pos: int) -> int:
    module, pos = read_line(m, pos)
    name, pos = read_line(m, pos)
    m.stack.append(m.global_ref(utf8(module), utf8(name)))
    return pos


@opcode(b"\x93")
def _stack_global(m: Machine, pos: int) -> int:
    name = m.stack.pop()
    module = m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise PthFormatError(f"a global named by {type(module).__name__} and {type(name).__name__}")
    if len(name) > MAX_LINE or len(module) > MAX_LINE:
        raise PthLimitError(f"a global name of more than {MAX_LINE} characters")
    m.stack.append(m.global_ref(module, name))
    return pos


@opcode(b"R")
def _reduce(m: Machine, pos: int) -> int:
    args = m.stack.pop()
    function = m.stack.pop()
    m.stack.append(m.call(function, args))
    return pos


@opcode(b"\x92")
def _newobj_ex(m: Machine, pos: int) -> int:
    kwargs = m.stack.pop()
    args = m.stack.pop()
    kind = m.stack.pop()
    m.copy(len(kwargs) if type(kwargs) is dict else 0)
    if type(kwargs) is not dict or not all(type(key) is str for key in kwargs):
        raise PthFormatError("keyword arguments are no dictionary with text keys")
    m.stack.append(m.call(kind, args, kwargs))
    return pos


# Making an object and calling its class are the same to a reader that does neither.
HANDLERS[0x81] = _reduce


@opcode(b"o")
def _obj(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    if not values:
        raise PthFormatError("an instance without a class")
    m.stack.append(m.call(values[0], tuple(values[1:])))
    return pos


@opcode(b"b")
def _build(m: Machine, pos: int) -> int:
    state = m.stack.pop()
    apply_state(m, m.stack[-1], state)
    return pos


@opcode(b"Q")
def _binpersid(m: Machine, pos: int) -> int:
    m.stack.append(m.persistent_load(m, m.stack.pop()))
    return pos
