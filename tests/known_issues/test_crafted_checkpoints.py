"""Crafted files got a KeyError, an IndexError, a TypeError or a RecursionError out of the reader, or killed the process.

Right: one class of error, which says at which byte the reader stopped. Nothing in the file runs, nothing large is allocated.
"""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from hyperion_lite.pth import Opaque, PthError, open_pth
from tests.pth.handmade import checkpoint, integer, legacy, mapping, name, storage, tensor, text

BODIES = {
    "memo that was never filled": b"h\x07",
    "pop of an empty stack": b"0",
    "mark that is not there": b"t",
    "items set on a number": integer(1) + b"(" + text("a") + integer(2) + b"u",
    "unhashable key": b"}(]" + integer(1) + b"u",
    "call of a number": integer(3) + b")R",
    "nested without end": b"]" * 20_000 + b"a" * 19_999,
    "tuple in tuple without end": b")" + b"\x85" * 20_000,
    "text of two gigabytes": b"X" + struct.pack("<I", 2**31 - 1) + b"abc",
    "memo of four billion": b")0j" + struct.pack("<I", 2**32 - 1),
    "negative shape": mapping(w=tensor(shape=(-2, 3))),
    "elements without number": mapping(w=tensor(shape=(2**40, 2**40))),
    "offset behind the end": mapping(w=tensor(offset=2**62)),
    "stride behind the end": mapping(w=tensor(stride=(2**40, 1))),
    "tensor of a number": mapping(w=tensor(integer(5))),
    "storage that is not there": mapping(w=tensor(storage("77"))),
    "storage of two to the sixty": mapping(w=tensor(storage(count=2**60))),
    "argument of another type": name("torch._utils", "_rebuild_tensor_v2") + integer(2) + b"\x85R",
    "unknown operation": b"\xff",
}


def refuse(data: bytes) -> PthError:
    tracemalloc.start()
    try:
        with pytest.raises(PthError) as caught, open_pth(data) as file:
            for found in file.tensors:
                file.read_tensor(found)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    return caught.value


@pytest.mark.parametrize("case", BODIES)
def test_one_error_class_with_the_place(case: str) -> None:
    whole = checkpoint(BODIES[case])
    error = refuse(whole)
    assert type(error).__module__.startswith("hyperion_lite.pth")
    # how deep values are nested, and what a storage lacks, is known at the end only
    assert error.offset is not None or "nested" in error.message or "storage" in error.message, error


def test_random_damage() -> None:
    rng = random.Random(0)
    for good in (checkpoint(), legacy(), checkpoint(mapping(a=tensor(), b=b"](" + integer(2**70) + text("x") + b"e"))):
        for _ in range(150):
            data = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                with open_pth(bytes(data)) as file:
                    for found in file.tensors:
                        file.read_tensor(found)
            except PthError:
                continue


def test_commands_do_not_run() -> None:
    for module, function in (("os", "system"), ("builtins", "eval"), ("subprocess", "call")):
        body = name(module, function) + b"(" + text("exit(1)") + b"tR"
        with open_pth(checkpoint(body)) as file:
            assert isinstance(file.root, Opaque)
            assert (file.root.module, file.root.name) == (module, function)
