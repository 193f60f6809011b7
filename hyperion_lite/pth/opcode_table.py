"""The table of pickle instructions: their names, and the functions that carry them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hyperion_lite.pth.errors import PthUnsupportedError

if TYPE_CHECKING:
    from hyperion_lite.pth.machine import Machine

# Takes the machine and the position after the opcode; gives the position of the next one.
Handler = Callable[["Machine", int], int]


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


def opcode(code: bytes) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS[code[0]] = handler
        return handler

    return register
