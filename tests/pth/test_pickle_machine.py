"""Instructions: what Python's picklers write is understood, everything else is refused with its name and place."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.pth import (
    GlobalRef,
    Opaque,
    PthError,
    PthFormatError,
    PthTruncatedError,
    PthUnsupportedError,
    open_pth,
)
from tests.pth.handmade import (
    checkpoint,
    mapping,
    name,
    run,
    text,
    value_of,
)

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters(codec=None), max_size=20),
    st.binary(max_size=300),
)
_KEYS = st.recursive(_SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
_VALUES = st.recursive(
    _SCALARS | st.builds(bytearray, st.binary(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(_KEYS, inner, max_size=4),
        st.dictionaries(st.text(max_size=5), inner, max_size=4).map(OrderedDict),
        st.dictionaries(st.text(max_size=5), inner, max_size=4).map(lambda d: defaultdict(list, d)),
        st.lists(inner, max_size=4).map(lambda values: deque(values, 10)),
        st.sets(_KEYS, max_size=4),
        st.frozensets(_KEYS, max_size=4),
        st.dictionaries(st.text(max_size=5), st.integers(), max_size=3).map(Counter),
    ),
    max_leaves=12,
)


@given(_VALUES, st.integers(2, 5))
@settings(max_examples=100, deadline=None)
def test_python_values_survive(value: Any, protocol: int) -> None:
    result = run(pickle.dumps(value, protocol))
    assert result == value
    assert type(result) is type(value)
    # Equality alone would not tell 1 from True.
    assert repr(result) == repr(value) or isinstance(value, (set, frozenset, dict, list, tuple, deque))


@given(_VALUES, st.integers(2, 5), st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_pickles_raise_nothing_but_our_error(value: Any, protocol: int, data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps(value, protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        place: int | None = 0
        try:
            run(damaged)
        except PthError as error:
            place = error.offset
        assert place is not None


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_random_bytes_raise_nothing_but_our_error(raw: bytes) -> None:
    with pytest.raises(PthError) if raw[-1:] != b"." else _anything():
        run(raw)


class _anything:
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: object, trace: object) -> bool:
        return kind is None or issubclass(kind, PthError)


def test_aliases_stay_aliases_and_cycles_stay_cycles() -> None:
    shared: list[int] = [1]
    cycle: list[Any] = [shared, shared]
    cycle.append(cycle)
    loop: dict[str, Any] = {}
    loop["tuple"] = (loop, cycle)
    result = run(pickle.dumps([cycle, loop], 2))
    assert result[0][0] is result[0][1]
    assert result[0][2] is result[0]
    assert result[1]["tuple"] == (result[1], result[0])
    with open_pth(checkpoint(pickle.dumps([cycle, loop], 2)[2:-1])) as file:
        assert file.root[0][2] is file.root[0]
        assert len(file.tensors) == 0


_REFUSED = {
    b"F1.5\n": "FLOAT", b"S'a'\n": "STRING", b"Va\n": "UNICODE", b"P0\n": "PERSID", b"(ios\nsystem\n": "INST",
    b"N2": "DUP", b"Np0\n": "PUT", b"Ng0\n": "GET", b"(d": "DICT", b"(l": "LIST", b"\x82\x01": "EXT1",
    b"\x83\x01\x00": "EXT2", b"\x84\x01\x00\x00\x00": "EXT4", b"\x97": "NEXT_BUFFER", b"N\x98": "READONLY_BUFFER",
    b"\xf0": "unknown opcode 0xf0",
}  # fmt: skip


@pytest.mark.parametrize(("body", "opcode"), _REFUSED.items())
def test_other_instructions_are_refused_by_name_and_offset(body: bytes, opcode: str) -> None:
    with pytest.raises(PthUnsupportedError, match=opcode) as caught:
        value_of(body)
    assert caught.value.offset in (2, 3)


def test_long_decimal_integers_of_python_2() -> None:
    assert value_of(b"I4294967296\n") == 4294967296
    assert value_of(b"I-5\n") == -5
    assert value_of(b"L" + b"9" * 40 + b"L\n") == int("9" * 40)
    assert value_of(b"I01\n") is True
    assert value_of(b"I00\n") is False


@pytest.mark.parametrize("line", [b"I1_0\n", b"I 1\n", b"I\n", b"I--1\n", b"L1.5L\n", b"I\xd9\xa1\n"])
def test_what_python_would_also_take_for_a_number_is_refused(line: bytes) -> None:
    with pytest.raises(PthFormatError, match="decimal"):
        value_of(line)


def test_byte_strings_of_python_2_are_text_where_they_can_be() -> None:
    assert value_of(b"U\x03abc") == "abc"
    assert value_of(b"T\x02\x00\x00\x00\xc3\xa4") == "ä"
    assert value_of(b"U\x02\xff\xfe") == b"\xff\xfe"
    assert value_of(b"}(U\x01aK\x01u") == {"a": 1}


def test_old_style_instance_of_python_2_is_opaque() -> None:
    value = value_of(b"(" + name("old", "Style") + b"K\x01o}U\x01aK\x02sb")
    assert (value.module, value.name, value.args, value.state) == ("old", "Style", (1,), {"a": 2})


def test_ordered_dict_rebuilt_with_arguments() -> None:
    body = name("collections", "OrderedDict") + b"](](U\x01aK\x01e](U\x01bK\x02ee\x85R"
    assert value_of(body) == OrderedDict(a=1, b=2)
    assert type(value_of(body)) is OrderedDict


def test_attributes_of_an_ordered_dict_are_kept_but_hide_no_method() -> None:
    start = name("collections", "OrderedDict") + b")R"
    assert value_of(start + mapping(_metadata=b"K\x01") + b"b")._metadata == 1
    for attribute in ("items", "__class__", "keys", "__dict__"):
        with pytest.raises(PthFormatError, match="attribute"):
            value_of(start + mapping(**{attribute: b"K\x01"}) + b"b")


def test_python_2_module_names_are_those_of_today() -> None:
    assert value_of(name("__builtin__", "set") + b"](K\x01e\x85R") == {1}
    assert value_of(name("__builtin__", "frozenset") + b"](K\x01e\x85R") == frozenset([1])
    assert value_of(name("__builtin__", "complex") + b"G" + bytes(8) + b"K\x02\x86R") == 2j
    assert (
        value_of(name("copy_reg", "_reconstructor") + name("a", "B") + name("__builtin__", "object") + b"N\x87R").name
        == "B"
    )


class TestOpaque:
    def test_calls_are_described_and_not_made(self) -> None:
        value = value_of(name("posix", "system") + text("exit 1") + b"\x85R")
        assert (value.module, value.name, value.args) == ("posix", "system", ("exit 1",))

    def test_everything_about_an_object_is_kept(self) -> None:
        body = name("m", "C") + b"K\x01\x85" + mapping(k=b"K\x02") + b"\x92" + mapping(s=b"K\x03") + b"b"
        value = value_of(body + b"(" + text("i") + b"K\x04u(K\x05e")
        assert (value.args, value.kwargs, value.state) == ((1,), {"k": 2}, {"s": 3})
        assert (value.items, value.elements) == ([("i", 4)], [5])

    def test_calling_the_result_of_a_call(self) -> None:
        value = value_of(name("builtins", "getattr") + name("m", "C") + text("method") + b"\x86RK\x01\x85R")
        assert value.callee.name == "getattr"
        assert value.callee.args == (GlobalRef("m", "C"), "method")
        assert value.args == (1,)

    def test_bare_names_are_one_object_and_have_no_state(self) -> None:
        first, second = value_of(name("m", "C") + name("m", "C") + b"\x86")
        assert first is second
        assert first == GlobalRef("m", "C")
        with pytest.raises(PthFormatError, match=r"m\.C"):
            value_of(name("m", "C") + b"}b")

    def test_a_second_state_is_refused(self) -> None:
        with pytest.raises(PthFormatError, match="twice"):
            value_of(name("m", "C") + b")R" + mapping(a=b"N") + b"b" + mapping(a=b"N") + b"b")

    @pytest.mark.parametrize("callee", [b"K\x01", b"]", text("os.system"), b"N"])
    def test_only_names_can_be_called(self, callee: bytes) -> None:
        with pytest.raises(PthFormatError, match="called"):
            value_of(callee + b")R")

    def test_nothing_is_imported(self) -> None:
        import sys

        value_of(name("antigravity", "geohash") + b")R")
        assert "antigravity" not in sys.modules


_MALFORMED = {
    "list is no key": b"}]Ns", "array is no set element": b"\x8f(]\x90", "odd items": b"}(Nu", "append to none": b"N(Ne",
    "items of a list": b"](NNu", "add to a list": b"](N\x90", "empty stack": b"a", "reduce args": name("m", "C") + b"]R",
    "kwargs": name("m", "C") + b")]\x92", "global by number": b"K\x01K\x02\x93", "object without class": b"(o",
    "set of an int": name("builtins", "set") + b"K\x01\x85R", "state of a tuple": b")}b",
    "unhashable deep": b"}K\x01]\x86Ns", "counter of list": name("collections", "Counter") + b"]\x85R",
    "deque length": name("collections", "deque") + b"]J\xff\xff\xff\xff\x86R", "huge complex":
    name("builtins", "complex") + b"\x8a\xff" + b"\x7f" * 255 + b"K\x01\x86R", "range step": name("builtins", "range")
    + b"K\x00K\x01K\x00\x87R", "ordered pairs": name("collections", "OrderedDict") + b"](K\x01e\x85R",
    "latin1": name("_codecs", "encode") + text("Ā") + text("latin1") + b"\x86R", "bad utf-8": b"X\x01\x00\x00\x00\xff",
    "not a pickle value": b"", "mark left": b"N(", "memo": b"h\x07", "memo of nothing": b"q\x00", "memo above mark": b"N(q\x00",
    "dtype": name("torch._utils", "_rebuild_meta_tensor_no_storage") + b"(" + text("torch.float31") + b"))\x89tR",
}  # fmt: skip


@pytest.mark.parametrize("body", _MALFORMED.values(), ids=_MALFORMED)
def test_malformed_pickles_are_format_errors_with_an_offset(body: bytes) -> None:
    with pytest.raises(PthFormatError) as caught:
        value_of(body)
    assert caught.value.offset is not None


@pytest.mark.parametrize(
    "body",
    [b"X\xff\xff\xff\xff", b"\x8e" + b"\xff" * 8, b"\x8b\xff\xff\xff\x7f", b"\x95" + b"\xff" * 8, b"cmodule", b"G\x00",
     b"\x8a\x09\x01", b"K", b"J\x00", b"T\xff\xff\xff\xff"],
)  # fmt: skip
def test_arguments_past_the_end_are_truncation(body: bytes) -> None:
    with pytest.raises(PthTruncatedError):
        run(b"\x80\x02" + body)


def test_known_values_of_torch_are_plain() -> None:
    assert value_of(name("torch", "Size") + b"(K\x02K\x03t\x85R") == (2, 3)
    assert value_of(name("torch", "bfloat16")) == "torch.bfloat16"
    assert value_of(name("torch", "device") + text("cuda") + b"K\x01\x86R") == "cuda:1"
    assert value_of(name("torch.serialization", "_get_layout") + text("torch.strided") + b"\x85R") == "torch.strided"


def test_factory_of_a_defaultdict_is_native_or_forgotten() -> None:
    native = value_of(name("collections", "defaultdict") + name("builtins", "list") + b"\x85R")
    assert native["missing"] == []
    foreign = value_of(name("collections", "defaultdict") + name("os", "getcwd") + b"\x85R")
    with pytest.raises(KeyError):
        foreign["missing"]


def test_result_is_opaque_for_an_enum_called_on_its_value() -> None:
    value = value_of(name("package.module", "HeadType") + text("x-vector") + b"\x85R")
    assert isinstance(value, Opaque)
    assert value.args == ("x-vector",)
