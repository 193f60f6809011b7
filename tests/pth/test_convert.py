from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from hyperion_lite.pth import PthError, open_pth
from hyperion_lite.pth.convert import quantize_to_safetensors, to_npz, to_safetensors
from hyperion_lite.pth.quantize import quantize_int8

ROOT = Path(__file__).resolve().parents[2]
PLAIN = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "uint8",
    "uint16", "uint32", "uint64", "bool", "complex64",
]  # fmt: skip


def _random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) * 9).to(getattr(torch, dtype))


def _bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    base = torch.arange(60.0).reshape(5, 12)
    content = {
        "model": OrderedDict(
            [
                ("conv.weight_g", torch.rand(4, 1, 1)),
                ("conv.weight_v", torch.randn(4, 3, 2)),
                ("conv.bias", torch.randn(4)),
                ("steps", torch.tensor(7)),
                ("columns", base[:, 3:7]),
                ("turned", base.T),
                ("none", torch.zeros(0, 3)),
            ]
        ),
        "epoch": 3,
        "tied": {"first": base, "second": base},
    }
    torch.save(content, tmp_path / "model.pth")
    return tmp_path / "model.pth"


def _entries(folder: Path) -> set[str]:
    return set(os.listdir(folder))


@pytest.mark.parametrize("dtype", PLAIN)
def test_every_type_of_safetensors_is_written_bit_by_bit(tmp_path, dtype):
    tensors = {"a": _random((3, 5), dtype), "scalar": _random((), dtype, 1), "empty": _random((0, 2), dtype)}
    torch.save(tensors, tmp_path / "m.pth")
    report = to_safetensors(tmp_path / "m.pth", tmp_path / "m.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert np.array_equal(_bits(loaded[name]), _bits(tensor))
    assert (report.tensors, report.nbytes) == (3, (tmp_path / "m.safetensors").stat().st_size)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    specs=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.tuples(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(PLAIN)),
        min_size=1,
        max_size=6,
    )
)
def test_any_names_shapes_and_types_survive(tmp_path, specs):
    tensors = {name: _random(shape, dtype) for name, (shape, dtype) in specs.items()}
    torch.save(tensors, tmp_path / "m.pth")
    with open_pth(tmp_path / "m.pth") as file:
        names = dict(zip(tensors, file.tensors, strict=True))
        to_safetensors(file, tmp_path / "m.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert set(loaded) == set(names.values())
    for name, tensor in tensors.items():
        assert loaded[names[name]].shape == tensor.shape and np.array_equal(_bits(loaded[names[name]]), _bits(tensor))


def test_views_are_written_as_their_values_and_elements_are_aligned(checkpoint, tmp_path):
    to_safetensors(checkpoint, tmp_path / "m.safetensors")
    loaded = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    base = np.arange(60, dtype=np.float32).reshape(5, 12)
    np.testing.assert_array_equal(loaded["model.columns"], base[:, 3:7])
    np.testing.assert_array_equal(loaded["model.turned"], base.T)
    assert loaded["model.steps"] == 7 and loaded["model.none"].shape == (0, 3)
    content = (tmp_path / "m.safetensors").read_bytes()
    assert int.from_bytes(content[:8], "little") % 8 == 0
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_names_are_chosen_by_prefix_and_globs(checkpoint, tmp_path):
    def names(**options: object) -> list[str]:
        to_safetensors(checkpoint, tmp_path / "m.safetensors", **options)
        return sorted(safetensors.numpy.load_file(tmp_path / "m.safetensors"))

    assert names(prefix="tied") == ["first", "second"]
    assert names(include="*.conv.*") == ["model.conv.bias", "model.conv.weight_g", "model.conv.weight_v"]
    assert names(include=["*bias", "*steps"], exclude="*.steps") == ["model.conv.bias"]
    assert names(prefix="model", include="model.conv.*", fuse_weight_norm=True) == ["conv.bias", "conv.weight"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": "nothing*"}, "no tensor name matches 'nothing"),
        ({"exclude": "*"}, "no tensor is selected"),
        ({"prefix": "mode"}, "begins with 'mode.'"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
    ],
)
def test_a_selection_of_nothing_is_an_error(checkpoint, tmp_path, options, message):
    before = _entries(tmp_path)
    with pytest.raises(ValueError, match=message):
        to_safetensors(checkpoint, tmp_path / "m.safetensors", **options)
    assert _entries(tmp_path) == before


def test_weight_norm_is_fused_on_the_way(checkpoint, tmp_path):
    report = to_safetensors(checkpoint, tmp_path / "m.safetensors", fuse_weight_norm=True)
    loaded = safetensors.torch.load_file(tmp_path / "m.safetensors")
    model = torch.load(checkpoint, weights_only=True)["model"]
    reference = torch._weight_norm(model["conv.weight_v"], model["conv.weight_g"], 0)
    torch.testing.assert_close(loaded["model.conv.weight"], reference, rtol=1e-6, atol=1e-6)
    assert report.fused == ("model.conv.weight",) and "model.conv.weight_g" not in loaded


def test_only_floating_point_tensors_are_cast(checkpoint, tmp_path):
    to_safetensors(checkpoint, tmp_path / "m.safetensors", dtype="bfloat16")
    loaded = safetensors.torch.load_file(tmp_path / "m.safetensors")
    model = torch.load(checkpoint, weights_only=True)["model"]
    assert loaded["model.steps"].dtype == torch.int64
    assert torch.equal(loaded["model.conv.weight_v"], model["conv.weight_v"].to(torch.bfloat16))


@pytest.mark.parametrize(("dtype", "value"), [("float16", 1e5), ("float8_e4m3fn", 500.0), ("float32", 1e39)])
def test_a_value_beyond_the_target_type_is_an_error_and_infinity_is_kept(tmp_path, dtype, value):
    torch.save({"w": torch.tensor([1.0, value], dtype=torch.float64)}, tmp_path / "m.pth")
    with pytest.raises(ValueError, match=f"'w' holds magnitudes up to .*, beyond the range of {dtype}"):
        to_safetensors(tmp_path / "m.pth", tmp_path / "m.safetensors", dtype=dtype)
    assert _entries(tmp_path) == {"m.pth"}
    torch.save({"w": torch.tensor([1.0, float("inf"), float("nan")])}, tmp_path / "m.pth")
    to_safetensors(tmp_path / "m.pth", tmp_path / "m.safetensors", dtype="float16")
    loaded = safetensors.numpy.load_file(tmp_path / "m.safetensors")["w"]
    np.testing.assert_array_equal(loaded, np.array([1, np.inf, np.nan], np.float16))


def test_tied_tensors_are_written_twice_or_once(checkpoint, tmp_path):
    to_safetensors(checkpoint, tmp_path / "m.safetensors", prefix="tied")
    assert set(safetensors.numpy.load_file(tmp_path / "m.safetensors")) == {"first", "second"}
    report = to_safetensors(checkpoint, tmp_path / "m.safetensors", prefix="tied", tied="once")
    assert report.tied == {"second": "first"} and set(safetensors.numpy.load_file(tmp_path / "m.safetensors")) == {
        "first"
    }
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "second": "first"}


def test_a_conjugate_is_not_the_same_tensor(tmp_path):
    base = torch.tensor([1 + 2j])
    torch.save({"a": base, "b": base.conj()}, tmp_path / "m.pth")
    report = to_safetensors(tmp_path / "m.pth", tmp_path / "m.safetensors", tied="once")
    assert report.tied == {} and safetensors.numpy.load_file(tmp_path / "m.safetensors")["b"].tolist() == [1 - 2j]


@pytest.mark.parametrize("dtype", [*PLAIN, "complex128", "float8_e4m3fnuz", "float8_e8m0fnu"])
def test_npz_holds_every_value(tmp_path, dtype):
    tensor = (torch.rand(4, 3) + 1).to(getattr(torch, dtype))
    torch.save({"a": tensor, "b.c": tensor[:, 1], "e": tensor[:0]}, tmp_path / "m.pth")
    to_npz(tmp_path / "m.pth", tmp_path / "m.npz")
    loaded = np.load(tmp_path / "m.npz", allow_pickle=False)
    assert loaded.files == ["a", "b.c", "e"]
    widened = dtype == "bfloat16" or dtype.startswith("float8")
    expected = tensor.float().numpy() if widened else tensor.numpy()
    assert loaded["a"].dtype == expected.dtype
    np.testing.assert_array_equal(loaded["a"], expected)
    np.testing.assert_array_equal(loaded["b.c"], expected[:, 1])


def test_the_same_tensors_give_the_same_npz(checkpoint, tmp_path):
    to_npz(checkpoint, tmp_path / "a.npz")
    to_npz(checkpoint, tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize("name", ["../up", "/root", "a\0b", "back\\slash"])
def test_a_name_that_would_leave_the_folder_is_not_an_npz_entry(tmp_path, name):
    torch.save({name: torch.zeros(1)}, tmp_path / "m.pth")
    with pytest.raises(ValueError, match="cannot name an entry"):
        to_npz(tmp_path / "m.pth", tmp_path / "m.npz")
    assert _entries(tmp_path) == {"m.pth"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"__metadata__": torch.zeros(1)}, "__metadata__"),
        ({"a\ud800": torch.zeros(1)}, "not valid Unicode"),
        ({"z": torch.zeros(1, dtype=torch.complex128)}, "no type for complex128"),
        ({"m": torch.empty(2, device="meta")}, "meta"),
        ({"no": 1}, "holds no tensor"),
        ({"c.weight_g": torch.ones(3, 1), "c.weight_v": torch.ones(2, 2)}, r"c\.weight"),
        (
            {"c.weight_g": torch.ones(2, 1), "c.weight_v": torch.ones(2, 2), "c.weight": torch.ones(2, 2)},
            "beside its weight-normalised",
        ),
    ],
)
def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path, content, message):
    torch.save(content, tmp_path / "m.pth")
    with pytest.raises(ValueError, match=message):
        to_safetensors(tmp_path / "m.pth", tmp_path / "m.safetensors", fuse_weight_norm=True)
    assert _entries(tmp_path) == {"m.pth"}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantised_tensor_is_refused_rather_than_stripped_of_its_scale(tmp_path):
    torch.save({"q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, tmp_path / "m.pth")
    with pytest.raises(PthError, match="qint8"):
        to_npz(tmp_path / "m.pth", tmp_path / "m.npz")
    assert _entries(tmp_path) == {"m.pth"}


def test_a_failure_keeps_the_older_output(tmp_path, checkpoint):
    target = tmp_path / "m.safetensors"
    target.write_bytes(b"older")
    damaged = tmp_path / "damaged.pth"
    content = bytearray(checkpoint.read_bytes())
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(PthError):
        to_safetensors(damaged, target)
    (tmp_path / "no").mkdir()
    before = _entries(tmp_path)

    def fails(name: str, nbytes: int) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        to_safetensors(checkpoint, target, progress=fails)
    assert target.read_bytes() == b"older" and _entries(tmp_path) == before


@pytest.mark.parametrize("writer", [to_safetensors, to_npz, quantize_to_safetensors])
def test_a_flipped_bit_is_found_while_writing(tmp_path, writer):
    torch.save({"w": torch.arange(64.0).reshape(8, 8)}, tmp_path / "m.pth")
    content = bytearray((tmp_path / "m.pth").read_bytes())
    content[content.index(np.arange(64, dtype="<f4").tobytes()) + 17] ^= 4
    (tmp_path / "m.pth").write_bytes(content)
    with pytest.raises(PthError, match="CRC"):
        writer(tmp_path / "m.pth", tmp_path / "out")
    assert _entries(tmp_path) == {"m.pth"}
    assert writer(tmp_path / "m.pth", tmp_path / "out", verify=False).tensors >= 1


def test_unusable_targets_are_refused(checkpoint, tmp_path):
    before = checkpoint.read_bytes()
    with pytest.raises(ValueError, match="it is the checkpoint"):
        to_safetensors(checkpoint, checkpoint)
    os.link(checkpoint, tmp_path / "link.safetensors")
    with pytest.raises(ValueError, match="it is the checkpoint"):
        to_safetensors(checkpoint, tmp_path / "link.safetensors")
    with pytest.raises(ValueError, match="directory"):
        to_safetensors(checkpoint, tmp_path)
    with pytest.raises(FileNotFoundError):
        to_safetensors(checkpoint, tmp_path / "missing" / "m.safetensors")
    assert checkpoint.read_bytes() == before


def test_an_output_behind_a_symbolic_link_is_replaced_in_place(checkpoint, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "m.safetensors").symlink_to(tmp_path / "real" / "there.safetensors")
    to_safetensors(checkpoint, tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").is_symlink() and (tmp_path / "real" / "there.safetensors").exists()
    assert _entries(tmp_path / "real") == {"there.safetensors"}


def test_an_open_file_stays_open(checkpoint, tmp_path):
    with open_pth(checkpoint.read_bytes()) as file:
        to_safetensors(file, tmp_path / "a.safetensors")
        to_npz(file, tmp_path / "a.npz")
        assert file.read_tensor("model.steps") == 7


def test_int8_and_scales_are_those_of_quantize_int8(checkpoint, tmp_path):
    report = quantize_to_safetensors(checkpoint, tmp_path / "q.safetensors", keep="tied.*", axes={"*.turned": 1})
    loaded = safetensors.numpy.load_file(tmp_path / "q.safetensors")
    assert report.quantized == ("model.conv.weight", "model.columns", "model.turned")
    turned = np.arange(60, dtype=np.float32).reshape(5, 12).T
    values, scales = quantize_int8(turned, axis=1)
    np.testing.assert_array_equal(loaded["model.turned"], values)
    np.testing.assert_array_equal(loaded["model.turned_scale"], scales)
    assert loaded["model.conv.weight"].dtype == np.int8 and loaded["model.conv.weight_scale"].shape == (4,)
    assert loaded["model.conv.bias"].dtype == loaded["tied.first"].dtype == np.float32
    assert loaded["model.none"].shape == (0, 3) and "model.none_scale" not in loaded
    with safe_open(tmp_path / "q.safetensors", "np") as file:
        assert file.metadata()["int8_axis:model.turned"] == "1"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ({"w": torch.full((2, 2), float("nan"))}, {}, "'w': channel 0 holds NaN"),
        ({"w": torch.ones(2, 2)}, {"axis": 2}, "'w': there is no channel axis 2"),
        ({"w": torch.ones(2, 2), "w_scale": torch.ones(2)}, {}, "'w_scale' is in the file already"),
    ],
)
def test_weights_that_cannot_be_quantised_are_named(tmp_path, content, options, message):
    torch.save(content, tmp_path / "m.pth")
    with pytest.raises(ValueError, match=message):
        quantize_to_safetensors(tmp_path / "m.pth", tmp_path / "q.safetensors", **options)
    assert _entries(tmp_path) == {"m.pth"}


_MEMORY = """
import sys, tracemalloc
from hyperion_lite.pth.convert import quantize_to_safetensors, to_npz, to_safetensors
import ml_dtypes, numpy
assert "torch" not in sys.modules
writers = {"safetensors": to_safetensors, "npz": to_npz, "int8": quantize_to_safetensors}
tracemalloc.start()
for writer, options in (("safetensors", {}), ("npz", {}), ("safetensors", {"fuse_weight_norm": True}), ("int8", {})):
    tracemalloc.reset_peak()
    writers[writer](sys.argv[1], sys.argv[2], **options)
    print(tracemalloc.get_traced_memory()[1])
"""


def test_memory_is_bounded_by_the_largest_tensor(tmp_path):
    largest = 1 << 20
    tensors: dict[str, torch.Tensor] = {f"layer{i}.kernel": torch.rand(512, 512) for i in range(24)}
    tensors |= {"n.weight_v": torch.rand(512, 512), "n.weight_g": torch.rand(512, 1)}
    torch.save(tensors, tmp_path / "m.pth")
    command = [sys.executable, "-c", _MEMORY, str(tmp_path / "m.pth"), str(tmp_path / "out.safetensors")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    plain, npz, fused, int8 = map(int, done.stdout.split())
    # the values as read, and as written where they change; quantisation works in float64 blocks of 2 MB
    assert max(plain, npz) < 2.5 * largest and fused < 3 * largest and int8 < 2.5 * largest + 3 * (2 << 20)


def test_eight_bit_floats_are_a_target_too(tmp_path):
    torch.save({"w": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}, tmp_path / "m.pth")
    to_safetensors(tmp_path / "m.pth", tmp_path / "m.safetensors", dtype="float8_e5m2")
    loaded = safetensors.torch.load_file(tmp_path / "m.safetensors")["w"]
    assert loaded.dtype == torch.float8_e5m2 and loaded.float().tolist() == [1.5, -2.0]
