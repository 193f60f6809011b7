"""Tensors: every dtype and view that torch saves, with the values that torch has."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hyperion_lite.pth import (
    Limits,
    NestedTensor,
    Opaque,
    PthFormatError,
    PthLimitError,
    PthUnsupportedError,
    QuantizedTensor,
    SparseTensor,
    StorageRef,
    open_pth,
)
from tests.pth.handmade import checkpoint, mapping, name, numbers, storage, tensor, text
from tests.pth.saving import WAYS, assert_same, assert_same_tensor, saved

DTYPES = [
    getattr(torch, kind)
    for kind in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
        "uint64", "bool", "complex64", "complex128", "complex32", "bcomplex32", "float8_e4m3fn", "float8_e5m2",
        "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "bits8", "bits16",
    )
    if hasattr(torch, kind)
]  # fmt: skip


def of_dtype(dtype: torch.dtype, count: int = 24) -> torch.Tensor:
    """Elements of any bits."""
    if dtype is torch.bool:
        return torch.arange(count) % 3 == 0
    octets = torch.randint(0, 256, (count * torch.empty(0, dtype=dtype).element_size(),), dtype=torch.uint8)
    return octets.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("zipped", [True, False])
def test_every_dtype(dtype: torch.dtype, zipped: bool) -> None:
    whole = of_dtype(dtype)
    value = {"whole": whole, "part": whole[3:7], "grid": whole.view(4, 6).t(), "steps": whole[1::5], "one": whole[5]}
    with open_pth(saved(value, zipped=zipped), verify="all") as file:
        assert_same(file, file.root, value)


@pytest.mark.parametrize(("protocol", "zipped"), WAYS)
def test_every_way_of_saving(protocol: int, zipped: bool) -> None:
    flat = torch.arange(60.0)
    shared = flat[10:30].view(4, 5)
    value: Any = OrderedDict(
        flat=flat, shared=shared, transposed=shared.t(), scalar=torch.tensor(3), none=torch.empty(0, 4),
        expanded=torch.ones(1).expand(3, 4), channels_last=torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        nested=[{"a": (torch.ones(2), None)}, torch.nn.Parameter(torch.rand(3))],
        numbers=(1, 2.5, True, "text", b"bytes", 2**63, -(2**70), 3j),
        arrays=[np.arange(6).reshape(2, 3), np.float64(1.5), np.array(["ab", "c"]), np.zeros((0, 2), np.int8)],
    )  # fmt: skip
    with open_pth(saved(value, protocol, zipped), verify="all") as file:
        assert_same(file, file.root, value)
        assert file.root["shared"].storage is file.root["flat"].storage
        assert file.metadata["protocol"] == protocol
        assert file.root["nested"][1].kind == "parameter"
        assert file.root["nested"][1].requires_grad


def test_conjugated_and_negated_views() -> None:
    numbers_ = torch.randn(5, dtype=torch.complex64)
    value = [numbers_.conj(), torch.randn(5, dtype=torch.complex128).conj().imag]
    assert value[0].is_conj()
    assert value[1].is_neg()
    with open_pth(saved(value)) as file:
        assert_same(file, file.root, value)
        assert np.array_equal(file.read_tensor("0"), value[0].resolve_conj().numpy())
        assert np.array_equal(file.read_tensor("1"), value[1].resolve_neg().numpy())
        assert file.read_torch("0").is_conj()
        assert file.read_torch("1").is_neg()


def test_unusual_storage_bytes_of_booleans_are_true() -> None:
    data = checkpoint(mapping(w=tensor(storage(count=3, kind="BoolStorage"), 0, (3,), (1,))), {"0": b"\x00\x01\x07"})
    with open_pth(data) as file:
        assert file.read_tensor("w").view(np.uint8).tolist() == [0, 1, 1]


class TestNodes:
    def test_quantised(self) -> None:
        per_tensor = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, torch.qint8)
        scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0, 1])
        per_channel = torch.quantize_per_channel(torch.randn(2, 3), scales, zeros, 0, torch.quint8)
        with open_pth(saved({"t": per_tensor, "c": per_channel})) as file:
            node = file.root["t"]
            assert type(node) is QuantizedTensor
            assert (node.scheme, node.scale, node.zero_point) == ("torch.per_tensor_affine", 0.1, 3)
            assert np.array_equal(file.read_tensor("t.int_repr"), per_tensor.int_repr().numpy())
            assert torch.equal(file.read_torch("t.int_repr"), per_tensor.int_repr())
            node = file.root["c"]
            assert node.axis == 0
            assert np.array_equal(file.read_tensor("c.int_repr"), per_channel.int_repr().numpy())
            assert file.read_tensor("c.scales").tolist() == scales.double().tolist()
            assert file.read_tensor("c.zero_points").tolist() == [0, 1]

    def test_four_bit_elements_come_as_bytes(self) -> None:
        scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0.0, 1.0])
        value = torch.quantize_per_channel(torch.randn(2, 5), scales, zeros, 0, torch.quint4x2)
        with open_pth(saved(value)) as file:
            assert file.read_tensor("int_repr").shape == (5,)
            assert bytes(file.read_tensor("int_repr")) == bytes(file.read_torch("int_repr").numpy())
            # Two elements to a byte, and a byte that torch pads the storage with.
            assert file.metadata["unreferenced_bytes"] == file.root.parts["int_repr"].storage.nbytes - 5

    @pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
    def test_sparse(self, layout: str) -> None:
        dense = torch.eye(4) * torch.arange(4.0)
        block = {"blocksize": (2, 2)} if layout.startswith("b") else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"), **block)
        with open_pth(saved({"s": value})) as file:
            node = file.root["s"]
            assert type(node) is SparseTensor
            assert node.layout == f"torch.sparse_{layout}"
            assert node.shape == (4, 4)
            stored = value._values() if layout == "coo" else value.values()
            assert np.array_equal(file.read_tensor("s.values"), stored.numpy())
            assert all(name_.startswith("s.") for name_ in file.tensors)

    def test_nested(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)])
        with open_pth(saved(value)) as file:
            assert type(file.root) is NestedTensor
            assert file.read_tensor("buffer").sum() == 6

    def test_meta(self) -> None:
        with open_pth(saved({"m": torch.empty(2**40, 8, device="meta")})) as file:
            assert file.tensors["m"].shape == (2**40, 8)
            with pytest.raises(PthUnsupportedError, match="meta"):
                file.read_tensor("m")
            with pytest.raises(PthUnsupportedError, match="meta"):
                file.read_torch("m")

    def test_storages_by_themselves(self) -> None:
        with open_pth(saved([torch.rand(5).untyped_storage(), torch.ones(3)])) as file:
            assert type(file.root[0]) is StorageRef
            assert (file.root[0].dtype.name, file.root[0].numel) == ("uint8", 20)
            assert list(file.tensors) == ["1"]
            assert file.metadata["unreferenced_bytes"] == 0


class Subclass(torch.Tensor):
    """A tensor with attributes of its own."""


class TestAttributes:
    def test_of_a_subclass(self) -> None:
        value = torch.arange(3.0).as_subclass(Subclass)
        value.note = "text"
        value.scale = torch.ones(2)
        with open_pth(saved({"w": value})) as file:
            assert file.root["w"].kind.endswith("Subclass")
            assert file.root["w"].attributes["note"] == "text"
            assert list(file.tensors) == ["w", "w.scale"]

    def test_of_a_parameter(self) -> None:
        value = torch.nn.Parameter(torch.arange(3.0), requires_grad=False)
        value.group = {"lr": 0.1}
        with open_pth(saved(value)) as file:
            assert file.root.kind == "parameter"
            assert not file.root.requires_grad
            assert file.root.attributes == {"group": {"lr": 0.1}}

    def test_metadata_of_a_state_dict(self) -> None:
        layer = torch.nn.BatchNorm1d(3)
        with open_pth(saved(layer.state_dict())) as file:
            assert file.root._metadata == layer.state_dict()._metadata


class TestNames:
    def test_whole_modules_give_all_their_tensors(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        with open_pth(saved({"model": model})) as file:
            assert type(file.root["model"]) is Opaque
            for own, value in model.state_dict().items():
                part, leaf = own.split(".")
                kind = "_buffers" if "running" in leaf or "num_" in leaf else "_parameters"
                assert_same_tensor(file, file.tensors[f"model._modules.{part}.{kind}.{leaf}"], value)
            assert len(file.tensors) == len(model.state_dict())

    def test_tensors_in_every_kind_of_container(self) -> None:
        from collections import deque

        one = torch.ones(1)
        value = {
            "list": [one, [one + 1]], "tuple": (one + 2,), 3: one + 3, ("a", 1): one + 4, "deque": deque([one + 5]),
            "slice": slice(one + 6, None), "object": np.array([one + 7, None], dtype=object)[:2],
        }  # fmt: skip
        with open_pth(saved(value)) as file:
            found = {file.read_tensor(name_).item() for name_ in file.tensors}
            assert found == {1, 2, 3, 4, 5, 6, 7, 8}

    def test_keys_that_give_one_name_are_told_apart(self) -> None:
        value = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, 1: torch.zeros(2), "1": torch.ones(2)}
        with open_pth(saved(value)) as file:
            assert list(file.tensors) == ["a.b", "a.b#2", "1", "1#2"]
            assert file.tensors.renamed == ["a.b#2", "1#2"]
            assert file.read_tensor("a.b#2").tolist() == [1]

    def test_tensor_alone(self) -> None:
        with open_pth(saved(torch.arange(3))) as file:
            assert list(file.tensors) == ["tensor"]
            assert file.read_tensor("tensor").tolist() == [0, 1, 2]

    def test_tied_weights_and_shared_storages(self) -> None:
        flat = torch.arange(10.0)
        value = {"a": flat[:4], "b": flat[4:], "tied": flat[:4], "own": torch.ones(2)}
        with open_pth(saved(value)) as file:
            (names,) = file.tensors.shared.values()
            assert names == ["a", "b", "tied"]
            assert file.tensors.duplicates == [["a", "tied"]]

    def test_a_container_reached_twice_names_its_tensors_twice(self) -> None:
        shared = {"w": torch.ones(1)}
        with open_pth(saved({"model": shared, "ema": shared})) as file:
            assert list(file.tensors) == ["model.w", "ema.w"]
            assert file.tensors["model.w"] is file.tensors["ema.w"]
            assert file.metadata["num_tensors"] == 1

    def test_cycles_end(self) -> None:
        value: dict[str, Any] = {"w": torch.ones(1)}
        value["self"] = value
        value["list"] = [value, torch.zeros(1)]
        with open_pth(saved(value)) as file:
            assert list(file.tensors) == ["w", "list.1"]

    def test_bomb_of_names_is_metadata_until_names_are_asked_for(self) -> None:
        body = b"}" + text("w") + tensor() + b"sq\x000"
        for level in range(60):
            body += b"](h" + bytes([level, ord("h"), level]) + b"eq" + bytes([level + 1]) + b"0"
        with open_pth(checkpoint(body + b"h\x3c"), limits=Limits(max_names=1000)) as file:
            assert file.metadata["num_tensors"] == 1
            with pytest.raises(PthLimitError, match="names"):
                len(file.tensors)

    def test_long_names_are_bounded_too(self) -> None:
        value = {"k" * 100_000: [torch.ones(1) for _ in range(20)]}
        with open_pth(saved(value), limits=Limits(max_name_chars=10**6)) as file, pytest.raises(PthLimitError):
            len(file.tensors)


class TestUnreferencedBytes:
    def test_slice_of_a_large_storage(self) -> None:
        with open_pth(saved({"w": torch.zeros(1000)[10:30]})) as file:
            assert file.metadata["unreferenced_bytes"] == 4 * 980

    def test_overlapping_views_count_once(self) -> None:
        flat = torch.zeros(100)
        with open_pth(saved([flat[:60], flat[40:90], flat[50:55]])) as file:
            assert file.metadata["unreferenced_bytes"] == 40


class TestHostileViews:
    @pytest.mark.parametrize(
        ("offset", "shape", "stride"),
        [(-1, (1,), (1,)), (6, (1,), (1,)), (0, (7,), (1,)), (0, (2, 3), (4, 1)), (0, (-1,), (1,)), (0, (1,), (-1,)),
         (0, (2,), (1, 1)), (2**63, (0,), (1,)), (0, (2**40, 2**40), (0, 0)), (0, (2**64,), (0,)), (2**62, (2,), (2**62,)),
         (0, (2**61,), (0,))],
    )  # fmt: skip
    def test_outside_the_storage_or_64_bits(self, offset: int, shape: tuple, stride: tuple) -> None:
        with pytest.raises(PthFormatError):
            open_pth(checkpoint(mapping(w=tensor(None, offset, shape, stride))))

    def test_giant_of_stride_zero_is_metadata_until_it_is_read(self) -> None:
        with open_pth(checkpoint(mapping(w=tensor(None, 0, (2**30, 2**20), (0, 0))))) as file:
            assert file.tensors["w"].numel == 2**50
            with pytest.raises(PthLimitError, match="repeats"):
                file.read_tensor("w")
            assert file.read_torch("w").shape == (2**30, 2**20)

    def test_expanded_tensor_within_the_budget(self) -> None:
        data = checkpoint(mapping(w=tensor(None, 2, (4, 3), (0, 1))))
        with open_pth(data) as file:
            assert file.read_tensor("w").tolist() == [[2, 3, 4]] * 4
        with open_pth(data, limits=Limits(max_expand_bytes=40)) as file, pytest.raises(PthLimitError):
            file.read_tensor("w")

    def test_empty_tensor_of_enormous_sizes(self) -> None:
        with open_pth(checkpoint(mapping(w=tensor(None, 10**9, (0, 2**62), (1, 1))))) as file:
            assert file.read_torch("w").shape == (0, 2**62)
            with pytest.raises(PthUnsupportedError):
                file.read_tensor("w")

    @pytest.mark.parametrize("source", ["bytes", "path"])
    def test_views_at_the_edges(self, source: str, tmp_path: Path) -> None:
        views = {
            "last": tensor(None, 5, (1,), (7,)), "none": tensor(None, 6, (0,), (1,)),
            "beyond": tensor(None, 99, (2, 0), (9, 9)), "single": tensor(None, 3, (), ()),
            "overlap": tensor(None, 0, (4, 3), (1, 1)), "wide": tensor(None, 0, (1, 6), (2**62, 1)),
            "column": tensor(None, 1, (1, 2), (2**62, 3)), "empty": tensor(None, 1, (0, 2), (2**62, 2**62)),
        }  # fmt: skip
        data = checkpoint(mapping(**views))
        (tmp_path / "x.pth").write_bytes(data)
        with open_pth(data if source == "bytes" else tmp_path / "x.pth") as file:
            for name_ in views:
                assert np.array_equal(file.read_torch(name_).numpy(), file.read_tensor(name_))
            assert file.read_tensor("overlap").tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
            assert file.read_tensor("single").tolist() == 3

    def test_many_dimensions(self) -> None:
        body = mapping(w=tensor(None, 0, (1,) * 40, (1,) * 40))
        with open_pth(checkpoint(body)) as file:
            try:
                assert file.read_tensor("w").ndim == 40
            except PthUnsupportedError:
                assert np.lib.NumpyVersion(np.__version__) < "2.0.0"
        with pytest.raises(PthLimitError, match="dimensions"):
            open_pth(checkpoint(mapping(w=tensor(None, 0, (1,) * 65, (1,) * 65))))

    @pytest.mark.parametrize(
        "body",
        [
            name("torch._utils", "_rebuild_tensor_v2") + b")R",
            name("torch._utils", "_rebuild_tensor_v2") + b"(NK\x00))\x89NtR",
            name("torch._utils", "_rebuild_tensor_v2") + b"(" + storage() + b"K\x00" + text("ab") + text("ab") + b"\x89NtR",
            name("torch._utils", "_rebuild_tensor_v2") + b"(" + storage() + b"K\x00))" + text("no") + b"NtR",
            name("torch._utils", "_rebuild_tensor_v3") + b"(" + storage() + b"K\x00))\x89NK\x01tR",
            name("torch._utils", "_rebuild_parameter") + b")R",
            name("torch._utils", "_rebuild_sparse_tensor") + text("torch.sparse_coo") + b")\x86R",
            name("torch._utils", "_rebuild_sparse_tensor") + text("torch.sparse_coo") + b"(NN)t\x86R",
            name("torch._utils", "_rebuild_nested_tensor") + b"(NNNNtR",
            name("torch._utils", "_rebuild_qtensor") + b"(" + storage() + b"K\x00" + numbers((1,)) * 2 + b"N\x89NtR",
            name("torch._tensor", "_rebuild_from_type_v2") + b"(K\x01NNNtR",
            tensor(extra=mapping(conj=b"\x88")),
            tensor(storage(kind="LongStorage", count=3), 0, (3,), (1,), mapping(neg=b"\x88")),
            tensor(extra=b"]"),
            name("torch", "device") + b"K\x01\x85R",
        ],
    )  # fmt: skip
    def test_malformed_calls_of_torch(self, body: bytes) -> None:
        with pytest.raises(PthFormatError) as caught:
            open_pth(checkpoint(body))
        assert caught.value.offset is not None
        assert caught.value.entry == "archive/data.pkl"

    def test_one_storage_under_two_descriptions(self) -> None:
        for second in (storage(count=5), storage(kind="IntStorage")):
            with pytest.raises(PthFormatError):
                open_pth(checkpoint(mapping(a=tensor(), b=tensor(second, 0, (1,), (1,)))))


class TestNumpyValues:
    @pytest.mark.parametrize("protocol", [2, 4, 5])
    def test_arrays_and_scalars_of_plain_dtypes(self, protocol: int) -> None:
        value = [
            np.arange(6).reshape(2, 3).astype(kind)
            for kind in ("?", "i1", "<i2", ">i4", "u8", "f2", ">f8", "c8", "S3", "U2")
        ] + [np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(3.5), np.zeros((0, 3))]
        scalars = [np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1j), np.str_("ä"), np.bytes_(b"x")]
        with open_pth(saved([value, scalars], protocol)) as file:
            assert_same(file, file.root[0], value)
            for found, expected in zip(file.root[1], scalars, strict=True):
                assert type(found) is type(expected)
                assert found == expected

    def test_arrays_of_objects_hold_inert_values(self) -> None:
        value = np.array([1, "a", None, torch.ones(2)], dtype=object)
        with open_pth(saved({"x": value})) as file:
            assert file.root["x"].dtype == object
            assert file.root["x"][:3].tolist() == [1, "a", None]
            assert list(file.tensors) == ["x.3"]

    def test_other_dtypes_do_not_stop_the_file(self) -> None:
        value = {
            "w": torch.ones(1), "fields": np.zeros(2, [("a", "i4"), ("b", "f8")]), "dtype": np.dtype("f4"),
            "dates": np.array(["2020-01-01"], "M8[D]"), "date": np.datetime64("2020-01-01"),
        }  # fmt: skip
        for protocol in (2, 5):
            with open_pth(saved(value, protocol)) as file:
                assert file.read_tensor("w").tolist() == [1]

    @pytest.mark.parametrize(
        "state",
        [b"(K\x01K\x02\x85DNC\x04abcdt", b"(K\x01J\xff\xff\xff\xff\x85D\x89C\x00t", b"(K\x01)D\x89C\x03abct",
         b"(K\x01\x8a\x08" + b"\xff" * 7 + b"\x7f\x85D\x89C\x00t", b"N", b"(K\x01K\x01\x85D\x89Nt"],
    )  # fmt: skip
    def test_states_that_contradict_themselves(self, state: bytes) -> None:
        dtype = name("numpy", "dtype") + text("f4") + b"\x89\x88\x87R"
        array = name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R"
        with pytest.raises(PthFormatError):
            open_pth(checkpoint(array + state.replace(b"D", dtype) + b"b"))
