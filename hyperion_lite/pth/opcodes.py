"""One function for each pickle instruction: takes the machine and the position after the opcode, gives the next position.

Known are the instructions that Python's picklers write under protocols 2 to 5, and those of Python 2 (byte strings,
long decimal integers, old-style instances). STOP gives the complement of the position after it, a negative number.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.build import apply_state
from hyperion_lite.pth.errors import PthFormatError, PthLimitError, PthTruncatedError, PthUnsupportedError, shorten
from hyperion_lite.pth.values import Opaque

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine

Handler = Callable[["Machine", int], int]

_INT32 = struct.Struct("<i")
_UINT16 = struct.Struct("<H")
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_DOUBLE = struct.Struct(">d")
# Longest line of a text argument: decimal integers cost quadratic time, names are short.
_MAX_LINE = 4096


def _name_opcodes() -> list[str]:
    """Names of all 256 instructions, known or not, for messages."""
    names = [f"unknown opcode 0x{code:02x}" for code in range(256)]
    for code, name in {
        b"(": "MARK", b".": "STOP", b"0": "POP", b"1": "POP_MARK", b"2": "DUP", b"F": "FLOAT", b"I": "INT",
        b"J": "BININT", b"K": "BININT1", b"L": "LONG", b"M": "BININT2", b"N": "NONE", b"P": "PERSID",
        b"Q": "BINPERSID", b"R": "REDUCE", b"S": "STRING", b"T": "BINSTRING", b"U": "SHORT_BINSTRING",
        b"V": "UNICODE", b"X": "BINUNICODE", b"a": "APPEND", b"b": "BUILD", b"c": "GLOBAL", b"d": "DICT",
        b"}": "EMPTY_DICT", b"e": "APPENDS", b"g": "GET", b"h": "BINGET", b"i": "INST", b"j": "LONG_BINGET",
        b"l": "LIST", b"]": "EMPTY_LIST", b"o": "OBJ", b"p": "PUT", b"q": "BINPUT", b"r": "LONG_BINPUT",
        b"s": "SETITEM", b"t": "TUPLE", b")": "EMPTY_TUPLE", b"u": "SETITEMS", b"G": "BINFLOAT", b"\x80": "PROTO",
        b"\x81": "NEWOBJ", b"\x82": "EXT1", b"\x83": "EXT2", b"\x84": "EXT4", b"\x85": "TUPLE1", b"\x86": "TUPLE2",
        b"\x87": "TUPLE3", b"\x88": "NEWTRUE", b"\x89": "NEWFALSE", b"\x8a": "LONG1", b"\x8b": "LONG4",
        b"B": "BINBYTES", b"C": "SHORT_BINBYTES", b"\x8c": "SHORT_BINUNICODE", b"\x8d": "BINUNICODE8",
        b"\x8e": "BINBYTES8", b"\x8f": "EMPTY_SET", b"\x90": "ADDITEMS", b"\x91": "FROZENSET", b"\x92": "NEWOBJ_EX",
        b"\x93": "STACK_GLOBAL", b"\x94": "MEMOIZE", b"\x95": "FRAME", b"\x96": "BYTEARRAY8",
        b"\x97": "NEXT_BUFFER", b"\x98": "READONLY_BUFFER",
    }.items():  # fmt: skip
        names[code[0]] = name
    return names


OPCODE_NAMES = _name_opcodes()


def _unsupported(m: Machine, pos: int) -> int:
    raise PthUnsupportedError("not an instruction of a torch.save file")


HANDLERS: list[Handler] = [_unsupported] * 256


def _opcode(code: bytes) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS[code[0]] = handler
        return handler

    return register


def _line(m: Machine, pos: int) -> tuple[bytes, int]:
    end = m.data.find(b"\n", pos, pos + _MAX_LINE)
    if end < 0:
        if m.size - pos < _MAX_LINE:
            raise PthTruncatedError("the pickle ends inside a line")
        raise PthLimitError(f"a line of more than {_MAX_LINE} bytes")
    return m.data[pos:end], end + 1


def _utf8(raw: bytes) -> str:
    try:
        # Python's pickler writes lone surrogates as if they were characters.
        return str(raw, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise PthFormatError(f"text is not UTF-8: {shorten(raw, 40)}") from error


@_opcode(b"\x80")
def _proto(m: Machine, pos: int) -> int:
    version = m.data[pos]
    if version > 5:
        raise PthUnsupportedError(f"pickle protocol {version}; 2 to 5 are known")
    m.protocol = max(m.protocol, version)
    return pos + 1


@_opcode(b"\x95")
def _frame(m: Machine, pos: int) -> int:
    (length,) = _UINT64.unpack_from(m.data, pos)
    if length > m.size - pos - 8:
        raise PthTruncatedError(f"a frame of {length} bytes where {m.size - pos - 8} are left")
    return pos + 8


@_opcode(b".")
def _stop(m: Machine, pos: int) -> int:
    return ~pos


@_opcode(b"(")
def _mark(m: Machine, pos: int) -> int:
    if len(m.marks) >= m.max_depth:
        raise PthLimitError(f"marks nested more than {m.max_depth} deep (Limits.max_depth)")
    m.spend(56)
    m.marks.append(m.stack)
    m.stack = []
    return pos


@_opcode(b"0")
def _pop(m: Machine, pos: int) -> int:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()
    return pos


@_opcode(b"1")
def _pop_mark(m: Machine, pos: int) -> int:
    m.pop_mark()
    return pos


def _constant(value: Any) -> Handler:
    def push(m: Machine, pos: int) -> int:
        m.stack.append(value)
        return pos

    return push


HANDLERS[ord("N")] = _constant(None)
HANDLERS[0x88] = _constant(True)
HANDLERS[0x89] = _constant(False)
HANDLERS[ord(")")] = _constant(())


@_opcode(b"K")
def _binint1(m: Machine, pos: int) -> int:
    m.stack.append(m.data[pos])
    return pos + 1


@_opcode(b"M")
def _binint2(m: Machine, pos: int) -> int:
    m.stack.append(_UINT16.unpack_from(m.data, pos)[0])
    return pos + 2


@_opcode(b"J")
def _binint(m: Machine, pos: int) -> int:
    m.stack.append(_INT32.unpack_from(m.data, pos)[0])
    return pos + 4


@_opcode(b"\x8a")
def _long1(m: Machine, pos: int) -> int:
    length = m.data[pos]
    m.stack.append(int.from_bytes(m.take(pos + 1, length), "little", signed=True))
    return pos + 1 + length


@_opcode(b"\x8b")
def _long4(m: Machine, pos: int) -> int:
    (length,) = _INT32.unpack_from(m.data, pos)
    m.stack.append(int.from_bytes(m.take(pos + 4, length), "little", signed=True))
    return pos + 4 + length


def _decimal(text: bytes) -> int:
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    # int() would also take spaces, underscores and digits of other scripts.
    if not digits.isdigit():
        raise PthFormatError(f"not a decimal integer: {shorten(text, 40)}")
    return int(text)


@_opcode(b"I")
def _int(m: Machine, pos: int) -> int:
    line, end = _line(m, pos)
    if line in (b"00", b"01"):
        m.stack.append(line == b"01")
    else:
        m.stack.append(_decimal(line))
    return end


@_opcode(b"L")
def _long(m: Machine, pos: int) -> int:
    line, end = _line(m, pos)
    m.stack.append(_decimal(line[:-1] if line.endswith(b"L") else line))
    return end


@_opcode(b"G")
def _binfloat(m: Machine, pos: int) -> int:
    m.stack.append(_DOUBLE.unpack_from(m.data, pos)[0])
    return pos + 8


def _sized(header: struct.Struct, convert: Callable[[bytes], Any]) -> Handler:
    """A handler of a value that follows its length."""
    width = header.size

    def push(m: Machine, pos: int) -> int:
        (length,) = header.unpack_from(m.data, pos)
        m.stack.append(convert(m.take(pos + width, length)))
        return pos + width + length

    return push


def _python2_text(raw: bytes) -> str | bytes:
    """A Python 2 byte string: text where it can be, as `torch.load` has it, else bytes."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


_UINT8 = struct.Struct("<B")
HANDLERS[ord("X")] = _sized(_UINT32, _utf8)
HANDLERS[0x8C] = _sized(_UINT8, _utf8)
HANDLERS[0x8D] = _sized(_UINT64, _utf8)
HANDLERS[ord("B")] = _sized(_UINT32, bytes)
HANDLERS[ord("C")] = _sized(_UINT8, bytes)
HANDLERS[0x8E] = _sized(_UINT64, bytes)
HANDLERS[0x96] = _sized(_UINT64, bytearray)
HANDLERS[ord("T")] = _sized(_INT32, _python2_text)
HANDLERS[ord("U")] = _sized(_UINT8, _python2_text)


@_opcode(b"}")
def _empty_dict(m: Machine, pos: int) -> int:
    m.spend(64)
    m.stack.append({})
    return pos


@_opcode(b"]")
def _empty_list(m: Machine, pos: int) -> int:
    m.spend(56)
    m.stack.append([])
    return pos


@_opcode(b"\x8f")
def _empty_set(m: Machine, pos: int) -> int:
    m.spend(216)
    m.stack.append(set())
    return pos


@_opcode(b"t")
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


@_opcode(b"\x91")
def _frozenset(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    for value in values:
        m.check_key(value)
    m.spend(216 + 16 * len(values))
    m.stack.append(frozenset(values))
    return pos


def _extend(target: Any, values: list[Any]) -> None:
    if isinstance(target, (list, deque)):
        target.extend(values)
    elif type(target) is Opaque:
        target.elements.extend(values)
    else:
        raise PthFormatError(f"elements appended to a {type(target).__name__}")


@_opcode(b"a")
def _append(m: Machine, pos: int) -> int:
    value = m.stack.pop()
    _extend(m.stack[-1], [value])
    return pos


@_opcode(b"e")
def _appends(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    _extend(m.stack[-1], values)
    return pos


def _set_items(m: Machine, target: Any, values: list[Any]) -> None:
    if len(values) % 2:
        raise PthFormatError("a key without a value")
    if isinstance(target, dict):
        for index in range(0, len(values), 2):
            key = values[index]
            if type(key) is not str:
                m.check_key(key)
            target[key] = values[index + 1]
    elif type(target) is Opaque:
        target.items.extend(zip(values[::2], values[1::2], strict=True))
    else:
        raise PthFormatError(f"items set on a {type(target).__name__}")


@_opcode(b"s")
def _setitem(m: Machine, pos: int) -> int:
    value = m.stack.pop()
    key = m.stack.pop()
    m.spend(100)
    _set_items(m, m.stack[-1], [key, value])
    return pos


@_opcode(b"u")
def _setitems(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    m.spend(100 + 32 * len(values))
    _set_items(m, m.stack[-1], values)
    return pos


@_opcode(b"\x90")
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


@_opcode(b"q")
def _binput(m: Machine, pos: int) -> int:
    m.memo[m.data[pos]] = m.stack[-1]
    return pos + 1


@_opcode(b"r")
def _long_binput(m: Machine, pos: int) -> int:
    (index,) = _UINT32.unpack_from(m.data, pos)
    m.memo[index] = m.stack[-1]
    if index > m.memo_bound:
        _put_far(m, index)
    return pos + 4


@_opcode(b"\x94")
def _memoize(m: Machine, pos: int) -> int:
    m.spend(40)
    index = len(m.memo)
    m.memo[index] = m.stack[-1]
    if index > m.memo_bound:
        _put_far(m, index)
    return pos


def _missing(index: int) -> PthFormatError:
    return PthFormatError(f"memo entry {index} was never stored")


@_opcode(b"h")
def _binget(m: Machine, pos: int) -> int:
    index = m.data[pos]
    if index not in m.memo:
        raise _missing(index)
    m.stack.append(m.memo[index])
    return pos + 1


@_opcode(b"j")
def _long_binget(m: Machine, pos: int) -> int:
    (index,) = _UINT32.unpack_from(m.data, pos)
    if index not in m.memo:
        raise _missing(index)
    m.stack.append(m.memo[index])
    return pos + 4


@_opcode(b"c")
def _global(m: Machine, pos: int) -> int:
    module, pos = _line(m, pos)
    name, pos = _line(m, pos)
    m.stack.append(m.global_ref(_utf8(module), _utf8(name)))
    return pos


@_opcode(b"\x93")
def _stack_global(m: Machine, pos: int) -> int:
    name = m.stack.pop()
    module = m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise PthFormatError(f"a global named by {type(module).__name__} and {type(name).__name__}")
    if len(name) > _MAX_LINE or len(module) > _MAX_LINE:
        raise PthLimitError(f"a global name of more than {_MAX_LINE} characters")
    m.stack.append(m.global_ref(module, name))
    return pos


@_opcode(b"R")
def _reduce(m: Machine, pos: int) -> int:
    args = m.stack.pop()
    function = m.stack.pop()
    m.stack.append(m.call(function, args))
    return pos


@_opcode(b"\x92")
def _newobj_ex(m: Machine, pos: int) -> int:
    kwargs = m.stack.pop()
    args = m.stack.pop()
    kind = m.stack.pop()
    if type(kwargs) is not dict or not all(type(key) is str for key in kwargs):
        raise PthFormatError("keyword arguments are no dictionary with text keys")
    m.stack.append(m.call(kind, args, kwargs))
    return pos


# Making an object and calling its class are the same to a reader that does neither.
HANDLERS[0x81] = _reduce


@_opcode(b"o")
def _obj(m: Machine, pos: int) -> int:
    values = m.pop_mark()
    if not values:
        raise PthFormatError("an instance without a class")
    m.stack.append(m.call(values[0], tuple(values[1:])))
    return pos


@_opcode(b"b")
def _build(m: Machine, pos: int) -> int:
    state = m.stack.pop()
    apply_state(m, m.stack[-1], state)
    return pos


@_opcode(b"Q")
def _binpersid(m: Machine, pos: int) -> int:
    m.stack.append(m.persistent_load(m, m.stack.pop()))
    return pos
