"""Hostile pickles: whatever they ask for, time, memory and the C stack stay bounded."""

from __future__ import annotations

import pickle
import struct
import time
from collections import defaultdict, deque
from typing import Any

import pytest

from hyperion_lite.pth import PthError, PthFormatError, PthLimitError, open_pth
from tests.pth.handmade import (
    checkpoint,
    integer,
    make_zip,
    name,
    parts,
    pickled,
    run,
    storage,
    tensor,
    text,
    value_of,
)


def freed_recursively(kind: str, outer_first: bool) -> bytes:
    """A chain of 2,000 containers of one kind, each in the one before; filled from one end or the other."""
    length = 2_000
    empty = {
        "deque": name("collections", "deque") + b")R",
        "defaultdict": name("collections", "defaultdict") + b")R",
        "array": name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R",
    }
    objects = name("numpy", "dtype") + text("O8") + b"\x85R"
    fill = {"deque": b"%ba", "defaultdict": b"N%bs", "array": b"(K\x01K\x01\x85" + objects + b"\x89]%batb"}
    if kind == "slice":
        return name("builtins", "slice") + b"q\x00" + b"N" + b"r\xff\0\0\0" + b"".join(
            b"h\x00j\xff\0\0\0\x85Rr\xff\0\0\0" for _ in range(length)
        )  # fmt: skip
    if kind == "mixed":
        kinds = ["deque", "defaultdict"] * (length // 2)
    else:
        kinds = [kind] * length
    memo = [struct.pack("<I", i) for i in range(length)]
    body = b"".join(empty[one] + b"r" + index + b"0" for one, index in zip(kinds, memo, strict=True))
    order = range(length - 1) if outer_first else range(length - 2, -1, -1)
    return (
        body + b"".join(b"j" + memo[i] + fill[kinds[i]].replace(b"%b", b"j" + memo[i + 1]) + b"0" for i in order) + b"N"
    )


class TestLimits:
    def test_memo_bomb_is_harmless_until_it_is_hashed(self) -> None:
        doubled = (b"h" + bytes([i, ord("h"), i]) + b"\x86q" + bytes([i + 1]) + b"0" for i in range(90))
        body = b"(K\x01tq\x000" + b"".join(doubled)
        assert type(value_of(body + b"h\x5a")) is tuple
        with pytest.raises(PthLimitError):
            value_of(body + b"}h\x5aNs")

    def test_deeply_nested_key(self) -> None:
        with pytest.raises(PthLimitError, match="nested"):
            value_of(b"})" + b"\x85" * 100_000 + b"Ns")

    @pytest.mark.parametrize("opening", [b"(", b"]"])
    def test_deep_nesting(self, opening: bytes) -> None:
        closing = b"t" if opening == b"(" else b"a"
        body = opening * 5000 + closing * (5000 if opening == b"(" else 4999)
        with pytest.raises(PthLimitError, match="deep"):
            open_pth(checkpoint(body))

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_nesting_as_deep_as_a_pickler_writes_is_read(self, protocol: int) -> None:
        value: list[Any] = []
        for _ in range(150):
            value = [value, {"a": (value,)}]
        with open_pth(make_zip(parts(pickle.dumps(value, protocol)))) as file:
            assert len(file.root) == 2

    def test_cheap_values_cannot_fill_the_memory(self) -> None:
        with pytest.raises(PthLimitError, match="memory"):
            value_of(b"\x8f" * 300_000)

    def test_copying_one_list_again_and_again(self) -> None:
        again = name("builtins", "set") + b"q\x01" + b"](" + b"K\x01" * 5000 + b"eq\x00" + b"0h\x01h\x00\x85R" * 1000
        with pytest.raises(PthLimitError, match="copies"):
            value_of(again)

    def test_many_keys_that_could_collide(self) -> None:
        keys = b"".join(integer((2**61 - 1) * k) + b"N" for k in range(12_000))
        with pytest.raises(PthLimitError, match="max_wide_keys"):
            value_of(b"}(" + keys + b"u")

    def test_memo_indexes_from_far_outside(self) -> None:
        assert value_of(b"Nr\xff\xff\xff\xff") is None
        body = b"N" + b"".join(b"r" + struct.pack("<I", 2**31 + k) for k in range(12_000))
        with pytest.raises(PthLimitError, match="keys"):
            value_of(body)

    def test_calls_within_calls(self) -> None:
        body = name("copyreg", "__newobj__") + b"(" + name("copyreg", "__newobj__") * 50 + b"tR"
        with pytest.raises(PthLimitError, match="calls"):
            value_of(body)

    @pytest.mark.parametrize("outer_first", [True, False])
    @pytest.mark.parametrize("kind", ["deque", "defaultdict", "slice", "array", "mixed"])
    def test_chains_of_containers_that_are_freed_recursively(self, kind: str, outer_first: bool) -> None:
        """Some 100,000 links would end the process when they are freed; these are few enough to fail in peace."""
        with pytest.raises(PthLimitError, match="inside each other"):
            value_of(freed_recursively(kind, outer_first))

    def test_ordinary_nesting_of_those_is_read(self) -> None:
        value = defaultdict(list, {i: deque([slice(i), deque([i])], 5) for i in range(150)})
        assert run(pickle.dumps(value, 4)) == value

    def test_instruction_count(self) -> None:
        with pytest.raises(PthLimitError, match="instructions"):
            run(pickled(b"N0" * 100 + b"N"), max_opcodes=50)

    def test_long_line(self) -> None:
        with pytest.raises(PthLimitError, match="line"):
            value_of(b"I" + b"1" * 10_000 + b"\n")

    def test_messages_are_bounded_whatever_the_value(self) -> None:
        with pytest.raises(PthFormatError) as caught:
            value_of(name("torch", "Size") + b"(" + integer(2**1000) + b"t\x85R")
        assert len(str(caught.value)) < 300
        with pytest.raises(PthFormatError) as caught:
            value_of(name("m" * 3000, "n" * 3000) + b"}b")
        assert len(str(caught.value)) < 400


class TestTimeIsBounded:
    """Inputs of a few hundred kilobytes whose cost would be the square of their length."""

    @pytest.mark.parametrize(
        "attack",
        [
            # One long integer hashed again and again.
            b"\x8b" + struct.pack("<i", 100_000) + b"\x7f" * 100_000 + b"q\x000" + b"}h\x00Ns" * 50_000,
            # One large dictionary as the state, the keywords or the attributes of many objects.
            b"}(" + b"".join(text(str(i)) + b"N" for i in range(20_000)) + b"uq\x000"
            + name("collections", "OrderedDict") + b")R" + b"h\x00b" * 50_000,
            b"}(" + b"".join(text(str(i)) + b"N" for i in range(20_000)) + b"uq\x000"
            + name("m", "C") + b"q\x010" + b"h\x01)h\x00\x92" * 50_000,
            # One long tuple as the arguments of many.
            b"(" + b"N" * 50_000 + b"tq\x000" + name("copyreg", "__newobj__") + b"q\x010" + b"h\x01h\x00R0" * 20_000,
            # One array of text looked at again and again.
            b"B" + struct.pack("<I", 400_000) + b"a\0\0\0" * 100_000 + b"q\x000" + name("numpy", "dtype") + text("U1")
            + b"\x85Rq\x010" + name("numpy._core.numeric", "_frombuffer") + b"q\x02"
            + b"(h\x00h\x01\x8a\x04\xa0\x86\x01\x00\x85" + text("C") + b"tq\x030" + b"h\x02h\x03R0" * 20_000,
        ],
        ids=["integer", "state", "keywords", "arguments", "text array"],
    )  # fmt: skip
    def test_repeated_use_of_one_large_value(self, attack: bytes) -> None:
        start = time.process_time()
        with pytest.raises(PthError):
            value_of(attack)
        assert time.process_time() - start < 2

    def test_many_tensors_of_one_name(self) -> None:
        one = b"h\x00h\x01"
        body = (
            text("k")
            + b"q\x000"
            + storage()
            + b"q\x020"
            + tensor(b"h\x02")
            + b"q\x010"
            + name("m", "C")
            + b")R("
            + one * 50_000
        )
        start = time.process_time()
        with open_pth(checkpoint(body + b"u")) as file:
            assert len(file.tensors) == 50_000
            assert file.tensors.renamed[-1] == "k#50000"
        assert time.process_time() - start < 3
