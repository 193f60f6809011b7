"""Archives: everything that a zip file may legally be is read, everything that contradicts itself is refused."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperion_lite.pth import (
    Limits,
    PthError,
    PthFormatError,
    PthLimitError,
    PthTruncatedError,
    PthUnsupportedError,
    open_pth,
)
from tests.pth.handmade import FLOATS, Entry, checkpoint, make_zip, mapping, name, parts, pickled, storage, tensor, text

EXPECTED = np.arange(6, dtype=np.float32).reshape(2, 3)


def read(data: bytes, **options: object) -> np.ndarray:
    with open_pth(data, verify="all", **options) as file:
        return file.read_tensor("w")


def with_storage(**changes: object) -> list[Entry]:
    """The usual entries, that of the storage with other fields."""
    entries = parts()
    index = next(i for i, entry in enumerate(entries) if entry.name.endswith(b"data/0"))
    entries[index] = Entry(**{"name": b"archive/data/0", "content": FLOATS, **changes})
    return entries


class TestReads:
    @pytest.mark.parametrize("prefix", ["", "archive/", "my model/", "a/b/c/", "ä/"])
    def test_any_prefix(self, prefix: str) -> None:
        with open_pth(make_zip(parts(prefix=prefix)), verify="all") as file:
            assert np.array_equal(file.read_tensor("w"), EXPECTED)
            assert file.metadata["prefix"] == prefix.rstrip("/")

    def test_zip64(self) -> None:
        entries = parts()
        for entry in entries:
            entry.zip64 = True
        assert np.array_equal(read(make_zip(entries, zip64=True)), EXPECTED)
        assert np.array_equal(read(make_zip(entries)), EXPECTED)

    def test_zip64_field_after_another_one(self) -> None:
        entries = parts()
        for entry in entries:
            entry.zip64 = True
            entry.central_extra = b"UT\x05\0\3" + bytes(4)
        assert np.array_equal(read(make_zip(entries)), EXPECTED)

    def test_local_sizes_of_zero_and_broken_local_extra(self) -> None:
        entries = with_storage(
            local_sizes=(0, 0, 0), flags=8, descriptor=b"PK\7\x08" + bytes(12), local_extra=b"FB\xff\xff" + bytes(30)
        )
        assert np.array_equal(read(make_zip(entries)), EXPECTED)

    def test_alignment_padding(self) -> None:
        for padding in range(4, 70, 13):
            entries = with_storage(local_extra=b"FB" + struct.pack("<H", padding - 4) + b"Z" * (padding - 4))
            assert np.array_equal(read(make_zip(entries)), EXPECTED)

    def test_gaps_between_entries(self) -> None:
        assert np.array_equal(read(make_zip(with_storage(gap=bytes(100)))), EXPECTED)

    def test_deflated_entries(self) -> None:
        entries = parts()
        for entry in entries:
            entry.method = 8
            entry.compressed = None
            entry.__post_init__()
        with open_pth(make_zip(entries), verify="all") as file:
            assert np.array_equal(file.read_tensor("w"), EXPECTED)
            assert file.metadata["compressed_entries"] == len(entries)

    @pytest.mark.parametrize("comment", [b"", b"made by hand", b"PK\5\6" + bytes(18), b"x" * 0xFFFF])
    def test_archive_comment(self, comment: bytes) -> None:
        with open_pth(make_zip(parts(), comment=comment), verify="all") as file:
            assert file.metadata["comment"] == comment
            assert np.array_equal(file.read_tensor("w"), EXPECTED)

    def test_bytes_behind_the_archive_are_reported(self) -> None:
        with open_pth(checkpoint() + b"0123456789") as file:
            assert file.metadata["trailing_bytes"] == 10

    @pytest.mark.parametrize("order", [b"little", b"big", None])
    def test_byte_order(self, order: bytes | None) -> None:
        stored = FLOATS if order != b"big" else EXPECTED.astype(">f4").tobytes()
        with open_pth(make_zip(parts(storages={"0": stored}, byteorder=order)), verify="all") as file:
            assert np.array_equal(file.read_tensor("w"), EXPECTED)
            assert file.metadata["byteorder"] == ("big" if order == b"big" else "little")
            assert np.array_equal(file.read_torch("w").numpy(), EXPECTED)

    def test_byte_order_applies_to_components(self) -> None:
        values = np.array([1 + 2j, 3 - 4j], np.complex64)
        body = mapping(w=tensor(storage(count=2, kind="ComplexFloatStorage"), 0, (2,), (1,)))
        swapped = values.astype(">c8").tobytes()
        data = make_zip(parts(pickled(body), {"0": swapped}, byteorder=b"big"))
        assert np.array_equal(read(data), values)
        strided = mapping(w=tensor(storage(count=2, kind="ComplexFloatStorage"), 0, (2, 2), (0, 1)))
        data = make_zip(parts(pickled(strided), {"0": swapped}, byteorder=b"big"))
        assert np.array_equal(read(data), np.stack([values, values]))

    def test_archive_without_checksums(self) -> None:
        entries = parts()
        for entry in entries:
            entry.crc = 0
        with open_pth(make_zip(entries), verify="all") as file:
            assert file.metadata["checksums"] is False
            assert np.array_equal(file.read_tensor("w", verify=True), EXPECTED)

    def test_unreferenced_storage_is_reported(self) -> None:
        with open_pth(checkpoint(None, {"0": FLOATS, "1": bytes(1000)})) as file:
            assert file.metadata["unreferenced_bytes"] == 1000
            assert file.metadata["unreferenced_entries"] == ["archive/data/1"]


class TestRefuses:
    @pytest.mark.parametrize("length", range(1, 700, 7))
    def test_truncation_anywhere(self, length: int) -> None:
        data = checkpoint()
        with pytest.raises(PthError):
            open_pth(data[: max(1, min(length, len(data) - 1))], verify="all")

    def test_truncation_is_called_by_its_name(self) -> None:
        with pytest.raises(PthTruncatedError, match="truncated"):
            open_pth(checkpoint()[:-30])

    def test_bytes_before_the_archive(self) -> None:
        with pytest.raises(PthFormatError, match="4 bytes before"):
            open_pth(b"junk" + checkpoint())
        with pytest.raises(PthFormatError, match="before"):
            open_pth(b"PK\3\4" + checkpoint())
        shifted = parts()
        shifted[0].gap = b"PK\3\4" + bytes(40)
        with pytest.raises(PthFormatError, match="before"):
            open_pth(make_zip(shifted))

    def test_two_entries_of_one_name(self) -> None:
        with pytest.raises(PthFormatError, match="two entries"):
            open_pth(make_zip([*parts(), Entry(b"archive/data/0", FLOATS)]))

    def test_two_pickles(self) -> None:
        with pytest.raises(PthFormatError, match=r"data\.pkl"):
            open_pth(make_zip([*parts(), Entry(b"other/data.pkl", pickled(b"N"))]))

    def test_overlapping_entries(self) -> None:
        entries = parts()
        inner = Entry(b"x", b"")
        outer = with_storage(content=FLOATS)
        data = make_zip(outer)
        position = data.index(b"PK\3\4", 10)
        inner.header = position
        entries = [*outer, inner]
        with pytest.raises(PthFormatError, match=r"overlaps|another name"):
            open_pth(make_zip(entries))

    def test_entry_that_ends_inside_the_next(self) -> None:
        entries = parts()
        entries[0].size = entries[0].compressed = len(entries[0].content) + 10
        with pytest.raises(PthFormatError, match="overlaps"):
            open_pth(make_zip(entries))

    def test_local_header_of_another_name(self) -> None:
        with pytest.raises(PthFormatError, match="another name"):
            open_pth(make_zip(with_storage(local_name=b"archive/data/1")))

    @pytest.mark.parametrize("header", [5, 10**6, 0xFFFFFFFE])
    def test_local_header_elsewhere(self, header: int) -> None:
        with pytest.raises(PthFormatError):
            open_pth(make_zip(with_storage(header=header)))

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"flags": 1}, PthUnsupportedError), ({"method": 12}, PthUnsupportedError), ({"size": 23}, PthFormatError),
            ({"compressed": 10**9, "size": 10**9}, PthFormatError), ({"content": FLOATS[:-1]}, PthFormatError),
            ({"content": FLOATS + b"1"}, PthFormatError), ({"content": FLOATS, "crc": 1}, PthFormatError),
            ({"content": FLOATS, "method": 8, "crc": 1}, PthFormatError),
        ],
    )  # fmt: skip
    def test_wrong_fields_of_a_storage(self, changes: dict, error: type) -> None:
        with pytest.raises(error, match="0"):
            open_pth(make_zip(with_storage(**changes)), verify="all")

    def test_checksum_of_a_storage_is_compared_when_asked(self) -> None:
        data = make_zip(with_storage(crc=1))
        with open_pth(data) as file:
            assert np.array_equal(file.read_tensor("w"), EXPECTED)
            for read_it in (file.read_tensor, file.read_torch):
                with pytest.raises(PthFormatError, match="CRC"):
                    read_it("w", verify=True)
            with pytest.raises(PthFormatError, match="CRC"):
                file.state_dict(verify=True)
            with pytest.raises(PthFormatError, match="CRC"):
                file.verify()

    def test_checksum_of_the_pickle_is_always_compared(self) -> None:
        entries = parts()
        entries[0].crc = 0
        with pytest.raises(PthFormatError, match="CRC"):
            open_pth(make_zip(entries))

    @pytest.mark.parametrize(
        "options",
        [
            {"count": 3}, {"count": 6}, {"count": 0xFFFF}, {"directory_size": 5}, {"directory_offset": 7},
            {"directory_offset": 0xFFFFFFF0}, {"disk": 1}, {"zip64": True, "count": 2**60},
            {"zip64": True, "directory_size": 2**63}, {"zip64": True, "directory_offset": 2**63},
        ],
    )  # fmt: skip
    def test_wrong_end_record(self, options: dict) -> None:
        with pytest.raises(PthError):
            open_pth(make_zip(parts(), **options))

    @pytest.mark.parametrize("order", [b"middle", b"", b"LITTLE", b"x" * 5000])
    def test_other_byte_orders(self, order: bytes) -> None:
        with pytest.raises(PthFormatError, match=r"byte order|word"):
            open_pth(make_zip(parts(byteorder=order)))

    def test_bytes_behind_the_pickle(self) -> None:
        with pytest.raises(PthFormatError, match="after the end"):
            open_pth(make_zip(parts(pickled(b"N") + b"N")))


class TestInflation:
    def test_bomb_is_refused_by_its_declared_ratio(self) -> None:
        entries = with_storage(content=bytes(40_000_000), method=8)
        entries[0] = Entry(b"archive/data.pkl", pickled(mapping(w=tensor(storage(count=10_000_000), 0, (1,), (1,)))))
        with open_pth(make_zip(entries)) as file, pytest.raises(PthLimitError, match="ratio"):
            file.read_tensor("w")

    def test_bomb_that_declares_less_is_cut_off(self) -> None:
        packed = with_storage(content=bytes(40_000_000), method=8, size=24, crc=zlib.crc32(bytes(24)))
        with pytest.raises(PthFormatError, match="declared"):
            open_pth(make_zip(packed), verify="all")

    @pytest.mark.parametrize("size", [23, 25])
    def test_other_size_than_declared(self, size: int) -> None:
        body = mapping(w=tensor(storage(count=size, kind="ByteStorage"), 0, (1,), (1,)))
        entries = with_storage(method=8, size=size)
        entries[0] = Entry(b"archive/data.pkl", pickled(body))
        with pytest.raises(PthFormatError, match="declared"):
            open_pth(make_zip(entries), verify="all")

    def test_damaged_stream(self) -> None:
        entries = with_storage(method=8)
        index = next(i for i, entry in enumerate(entries) if entry.name.endswith(b"data/0"))
        entries[index].stored = b"\xff" * len(entries[index].stored)
        with pytest.raises(PthFormatError, match="compressed data"):
            open_pth(make_zip(entries), verify="all")

    def test_ratio_is_a_setting(self) -> None:
        count = 3_000_000
        entries = with_storage(content=bytes(count), method=8)
        entries[0] = Entry(
            b"archive/data.pkl", pickled(mapping(w=tensor(storage(count=count, kind="ByteStorage"), 0, (3,), (1,))))
        )
        data = make_zip(entries)
        with pytest.raises(PthLimitError):
            open_pth(data, verify="all")
        assert read(data, limits=Limits(max_inflate_ratio=2000)).tolist() == [0, 0, 0]


_STORAGE_KEYS = ["../data.pkl", "a/b", "..", ".", "", "a\\b", "a\0", "x" * 300]


@pytest.mark.parametrize("key", _STORAGE_KEYS)
def test_storage_keys_are_names_and_not_paths(key: str) -> None:
    with pytest.raises(PthFormatError, match="key"):
        open_pth(make_zip(parts(pickled(mapping(w=tensor(storage(key)))))))


@pytest.mark.parametrize(
    "identifier",
    [
        text("0"),
        b"N",
        b")",
        b"(" + text("storage") + b"t",
        b"(" + text("module") + name("a", "B") + b"NNNt",
        b"](N" * 1 + b"e",
    ],
)
def test_persistent_ids_of_another_form(identifier: bytes) -> None:
    with pytest.raises(PthFormatError, match="persistent id"):
        open_pth(checkpoint(identifier + b"Q"))


@pytest.mark.parametrize(("module", "kind"), [("os", "FloatStorage"), ("torch", "SloatStorage"), ("torch", "float32")])
def test_unknown_storage_classes(module: str, kind: str) -> None:
    with pytest.raises(PthUnsupportedError, match="storage class"):
        open_pth(checkpoint(mapping(w=tensor(storage(kind=kind, module=module)))))


def test_storage_of_a_gpu_is_read_like_any_other() -> None:
    data = checkpoint(mapping(w=tensor(storage(module="torch.cuda"))))
    assert np.array_equal(read(data), EXPECTED)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_archives_raise_nothing_but_our_error(data: st.DataObject) -> None:
    entries = parts()
    for entry in entries:
        entry.zip64 = data.draw(st.booleans())
    raw = bytearray(make_zip(entries, zip64=data.draw(st.booleans()), comment=b"note"))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        with open_pth(io.BytesIO(bytes(raw)), verify="all") as file:
            for _, array in file.iter_tensors():
                assert array.nbytes <= 10**6
    except PthError:
        pass
