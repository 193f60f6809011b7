"""Files of the time before zip: read whole, and refused when counts, keys and bytes do not agree."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.pth import (
    GlobalRef,
    PthError,
    PthFormatError,
    PthTruncatedError,
    PthUnsupportedError,
    legacy_container,
    open_pth,
)
from tests.pth.handmade import FLOATS, integer, legacy, mapping, name, pickled, storage, tensor, text

EXPECTED = np.arange(6, dtype=np.float32).reshape(2, 3)


def view(key: str, view_key: str, offset: int, count: int) -> bytes:
    whole = storage(key).removesuffix(b"tQ")
    return whole + b"(" + text(view_key) + integer(offset) + integer(count) + b"ttQ"


def test_tensor_and_metadata() -> None:
    with open_pth(legacy(), verify="all") as file:
        assert np.array_equal(file.read_tensor("w", verify=True), EXPECTED)
        assert np.array_equal(file.read_torch("w").numpy(), EXPECTED)
        assert file.metadata["format"] == "legacy"
        assert file.metadata["unreferenced_bytes"] == 0
        assert file.metadata["checksums"] is False


def test_views_of_storages() -> None:
    first = tensor(view("0", "v1", 1, 4), 1, (3,), (1,))
    body = pickled(mapping(a=first, b=tensor(view("0", "v1", 1, 4), 0, (2, 2), (1, 2))))
    with open_pth(legacy(body)) as file:
        assert file.read_tensor("a").tolist() == [2, 3, 4]
        assert file.read_tensor("b").tolist() == [[1, 3], [2, 4]]
        assert file.read_torch("b").tolist() == [[1, 3], [2, 4]]
        assert file.tensors.shared == {"0": ["a", "b"]}
        assert file.metadata["unreferenced_bytes"] == 8


def test_class_with_its_source_text_is_its_name() -> None:
    body = pickled(b"(" + text("module") + name("net", "Net") + text("net.py") + text("class Net: ...") + b"tQ")
    with open_pth(legacy(body, {})) as file:
        assert file.root == GlobalRef("net", "Net")


def test_pickles_longer_than_the_first_window(monkeypatch: pytest.MonkeyPatch) -> None:
    for window in (1, 7, 64, 200):
        monkeypatch.setattr(legacy_container, "_FIRST_WINDOW", window)
        with open_pth(legacy()) as file:
            assert np.array_equal(file.read_tensor("w"), EXPECTED)


def test_storage_of_no_elements() -> None:
    body = pickled(mapping(w=tensor(storage("0", 0).removesuffix(b"tQ") + b"NtQ", 0, (0, 3), (3, 1))))
    with open_pth(legacy(body, {"0": (0, b"")})) as file:
        assert file.read_tensor("w").shape == (0, 3)


_REFUSED = {
    "other magic": legacy(magic=pickled(b"K\x07")),
    "array as magic": legacy(magic=pickled(name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray")
                                           + b"K\x00\x85U\x01b\x87R")),
    "count too small": legacy(storages={"0": (5, FLOATS)}),
    "count too large": legacy(storages={"0": (7, FLOATS)}),
    "count negative": legacy(storages={"0": (-1, FLOATS)}),
    "count huge": legacy(storages={"0": (2**62, FLOATS)}),
    "key unknown": legacy(keys=text("0") + text("7")),
    "key twice": legacy(keys=text("0") + text("0")),
    "key missing": legacy(keys=b""),
    "key no text": legacy(keys=b"]"),
    "bytes behind": legacy() + b"x",
    "bytes missing": legacy()[:-1],
    "view too long": legacy(pickled(mapping(w=tensor(view("0", "v", 3, 4), 0, (1,), (1,))))),
    "view negative": legacy(pickled(mapping(w=tensor(view("0", "v", -1, 4), 0, (1,), (1,))))),
    "view in two ways": legacy(pickled(mapping(a=tensor(view("0", "v", 0, 4), 0, (1,), (1,)),
                                               b=tensor(view("0", "v", 1, 4), 0, (1,), (1,))))),
    "tensor past its view": legacy(pickled(mapping(w=tensor(view("0", "v", 0, 3), 0, (4,), (1,))))),
}  # fmt: skip


@pytest.mark.parametrize("data", _REFUSED.values(), ids=_REFUSED)
def test_contradictions_are_refused(data: bytes) -> None:
    with pytest.raises(PthFormatError):
        open_pth(data)


def test_other_versions_are_refused() -> None:
    with pytest.raises(PthUnsupportedError, match="1002"):
        open_pth(legacy().replace(b"M\xe9\x03", b"M\xea\x03"))


@pytest.mark.parametrize("length", range(2, len(legacy()), 5))
def test_truncation_is_called_by_its_name(length: int) -> None:
    with pytest.raises(PthTruncatedError, match="truncated"):
        open_pth(legacy()[:length])


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_files_raise_nothing_but_our_error(data: st.DataObject) -> None:
    raw = bytearray(legacy())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        with open_pth(bytes(raw)) as file:
            for _, array in file.iter_tensors():
                assert array.nbytes <= 10**6
    except PthError:
        pass


def test_counts_are_little_endian() -> None:
    data = legacy()
    swapped = data.replace(struct.pack("<q", 6) + FLOATS, struct.pack(">q", 6) + FLOATS)
    with pytest.raises(PthFormatError, match="elements"):
        open_pth(swapped)
