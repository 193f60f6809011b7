"""Pickle instructions that push a number, a text, bytes or a constant."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hyperion_lite.pth.errors import PthFormatError, PthLimitError, PthTruncatedError, shorten
from hyperion_lite.pth.opcode_table import HANDLERS, Handler, opcode

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine

_INT32 = struct.Struct("<i")
_UINT16 = struct.Struct("<H")
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_DOUBLE = struct.Struct(">d")
# Longest line of a text argument: decimal integers cost quadratic time, names are short.
MAX_LINE = 4096


def read_line(m: Machine, pos: int) -> tuple[bytes, int]:
    end = m.data.find(b"\n", pos, pos + MAX_LINE)
    if end < 0:
        if m.size - pos < MAX_LINE:
            raise PthTruncatedError("the pickle ends inside a line")
        raise PthLimitError(f"a line of more than {MAX_LINE} bytes")
    return m.data[pos:end], end + 1


def utf8(raw: bytes) -> str:
    try:
        # Python's pickler writes lone surrogates as if they were characters.
        return str(raw, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise PthFormatError(f"text is not UTF-8: {shorten(raw, 40)}") from error


def _constant(value: Any) -> Handler:
    def push(m: Machine, pos: int) -> int:
        m.stack.append(value)
        return pos

    return push


HANDLERS[ord("N")] = _constant(None)
HANDLERS[0x88] = _constant(True)
HANDLERS[0x89] = _constant(False)
HANDLERS[ord(")")] = _constant(())


@opcode(b"K")
def _binint1(m: Machine, pos: int) -> int:
    m.stack.append(m.data[pos])
    return pos + 1


@opcode(b"M")
def _binint2(m: Machine, pos: int) -> int:
    m.stack.append(_UINT16.unpack_from(m.data, pos)[0])
    return pos + 2


@opcode(b"J")
def _binint(m: Machine, pos: int) -> int:
    m.stack.append(_INT32.unpack_from(m.data, pos)[0])
    return pos + 4


@opcode(b"\x8a")
def _long1(m: Machine, pos: int) -> int:
    length = m.data[pos]
    m.stack.append(int.from_bytes(m.take(pos + 1, length), "little", signed=True))
    return pos + 1 + length


@opcode(b"\x8b")
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


@opcode(b"I")
def _int(m: Machine, pos: int) -> int:
    line, end = read_line(m, pos)
    if line in (b"00", b"01"):
        m.stack.append(line == b"01")
    else:
        m.stack.append(_decimal(line))
    return end


@opcode(b"L")
def _long(m: Machine, pos: int) -> int:
    line, end = read_line(m, pos)
    m.stack.append(_decimal(line[:-1] if line.endswith(b"L") else line))
    return end


@opcode(b"G")
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
HANDLERS[ord("X")] = _sized(_UINT32, utf8)
HANDLERS[0x8C] = _sized(_UINT8, utf8)
HANDLERS[0x8D] = _sized(_UINT64, utf8)
HANDLERS[ord("B")] = _sized(_UINT32, bytes)
HANDLERS[ord("C")] = _sized(_UINT8, bytes)
HANDLERS[0x8E] = _sized(_UINT64, bytes)
HANDLERS[0x96] = _sized(_UINT64, bytearray)
HANDLERS[ord("T")] = _sized(_INT32, _python2_text)
HANDLERS[ord("U")] = _sized(_UINT8, _python2_text)
