"""`open_pth` and `PthFile`: sources, reading into the caller's memory, verification, threads, imports, memory."""

from __future__ import annotations

import gc
import io
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from hyperion_lite.pth import (
    Limits,
    PthError,
    PthFormatError,
    PthLimitError,
    PthTruncatedError,
    open_pth,
)
from tests.helpers import shared_path
from tests.pth.handmade import Entry, checkpoint, make_zip, mapping, parts, pickled, storage, tensor
from tests.pth.saving import assert_same, raw_bytes, saved

_ROOT = Path(__file__).resolve().parents[2]
VALUE = {
    "model": {"weight": torch.arange(12.0).view(3, 4), "bias": torch.ones(3)},
    "optimizer": {"state": {0: {"step": torch.tensor(5), "exp_avg": torch.zeros(3, 4)}}},
    "epoch": 7,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(VALUE, tmp_path / "model.pth")
    return tmp_path / "model.pth"


class TestSources:
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize(
        "kind", ["str", "path", "bytes", "bytearray", "memoryview", "BytesIO", "file", "raw", "pipe"]
    )
    def test_all_give_the_same(self, tmp_path: Path, kind: str, zipped: bool) -> None:
        data = saved(VALUE, zipped=zipped)
        target = tmp_path / "x.pth"
        target.write_bytes(data)

        class Pipe(io.RawIOBase):
            def __init__(self) -> None:
                self._rest = io.BytesIO(data)

            def readable(self) -> bool:
                return True

            def read(self, size: int = -1) -> bytes:
                return self._rest.read(size)

        source = {
            "str": lambda: str(target), "path": lambda: target, "bytes": lambda: data, "pipe": Pipe,
            "bytearray": lambda: bytearray(data), "memoryview": lambda: memoryview(data),
            "BytesIO": lambda: io.BytesIO(data), "file": lambda: open(target, "rb"),  # noqa: SIM115
            "raw": lambda: open(target, "rb", buffering=0),  # noqa: SIM115
        }[kind]()  # fmt: skip
        with open_pth(source, verify="all") as file:
            assert_same(file, file.root, VALUE)

    def test_file_object_is_read_from_its_position(self) -> None:
        stream = io.BytesIO(b"header" + checkpoint())
        stream.seek(6)
        with open_pth(stream) as file:
            assert file.read_tensor("w").shape == (2, 3)

    @pytest.mark.parametrize("wrong", [None, 5, [b"x"], io.StringIO("x")])
    def test_other_things_are_type_errors(self, wrong: object) -> None:
        with pytest.raises(TypeError):
            open_pth(wrong)

    def test_endless_stream_is_cut_off(self) -> None:
        class Endless(io.RawIOBase):
            def read(self, size: int = -1) -> bytes:
                return bytes(1 << 16)

        with pytest.raises(PthLimitError, match="stream"):
            open_pth(Endless(), limits=Limits(max_stream_bytes=1 << 20))

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a Unix thing")
    def test_named_pipe_does_not_hang(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.pth")
        with pytest.raises(PthFormatError, match="pipe"):
            open_pth(tmp_path / "pipe.pth")

    def test_file_that_shrinks_while_it_is_open(self, path: Path) -> None:
        with open_pth(path) as file:
            os.truncate(path, 100)
            with pytest.raises(PthTruncatedError, match="shorter"):
                file.read_tensor("model.weight")

    def test_descriptor_is_closed_after_a_refusal(self, tmp_path: Path) -> None:
        bad = tmp_path / "bad.pth"
        bad.write_bytes(b"nothing at all")
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        for _ in range(5):
            with pytest.raises(PthError):
                open_pth(bad)
        after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        assert after == before

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors through /proc")
    def test_forgotten_files_leak_no_descriptor(self, path: Path) -> None:
        gc.collect()  # what other tests left behind
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            assert len(open_pth(path).tensors) == 4
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_closed_file_says_so(self, path: Path) -> None:
        with open_pth(path) as file:
            pass
        with pytest.raises(ValueError, match="closed"):
            file.read_tensor("model.weight")

    def test_wrong_verify(self, path: Path) -> None:
        with pytest.raises(ValueError, match="verify"):
            open_pth(path, verify="everything")


class TestReadInto:
    def test_array_of_the_right_kind_is_filled_and_returned(self, path: Path) -> None:
        out = np.full((3, 4), np.nan, np.float32)
        with open_pth(path) as file:
            assert file.read_tensor("model.weight", out=out) is out
        assert np.array_equal(out, np.arange(12).reshape(3, 4))

    @pytest.mark.parametrize("make", [bytearray, lambda n: np.zeros(n, np.uint8), lambda n: memoryview(bytearray(n))])
    def test_buffer_is_reused_for_any_tensor(self, path: Path, make: object) -> None:
        memory = make(100)
        with open_pth(path) as file:
            weight = file.read_tensor("model.weight", out=memory)
            assert np.array_equal(weight, np.arange(12).reshape(3, 4))
            step = file.read_tensor("optimizer.state.0.step", out=memory)
            assert (step.shape, int(step)) == ((), 5)
            assert np.shares_memory(step, np.frombuffer(memory, np.uint8))

    def test_strided_and_converted_tensors_fill_it_too(self) -> None:
        value = [torch.arange(6.0).view(2, 3).t(), torch.randn(4, dtype=torch.complex32)]
        with open_pth(saved(value)) as file:
            memory = bytearray(64)
            assert np.array_equal(file.read_tensor("0", out=memory), value[0].numpy())
            assert np.array_equal(file.read_tensor("1", out=memory), value[1].to(torch.complex64).numpy())

    @pytest.mark.parametrize(
        "out",
        [np.zeros((4, 3), np.float32), np.zeros((3, 4)), np.zeros((4, 3), np.float32).T, bytearray(47), bytes(48)],
    )
    def test_memory_that_does_not_fit(self, path: Path, out: object) -> None:
        with open_pth(path) as file, pytest.raises(ValueError, match="out"):
            file.read_tensor("model.weight", out=out)


class TestNamesAndParts:
    def test_unknown_name_tells_the_nearest(self, path: Path) -> None:
        with open_pth(path) as file, pytest.raises(KeyError, match=r"model\.weight"):
            file.read_tensor("model.weigth")

    def test_tensor_of_another_file(self, path: Path) -> None:
        with open_pth(path) as one, open_pth(path) as other, pytest.raises(ValueError, match="another file"):
            one.read_tensor(other.tensors["model.weight"])

    def test_state_dict_has_the_names_below_its_prefix(self, path: Path) -> None:
        with open_pth(path) as file:
            arrays = file.state_dict("model", verify=True)
            assert list(arrays) == ["weight", "bias"]
            tensors = file.state_dict("model", as_torch=True)
            assert torch.equal(tensors["weight"], VALUE["model"]["weight"])
            assert len(file.state_dict()) == 4
            with pytest.raises(KeyError, match="mode"):
                file.state_dict("mode")

    def test_state_dict_reads_nothing_else(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        with open_pth(bytes(data)) as file:
            entry = file._container.entries[
                f"{file.metadata['prefix']}/data/{file.tensors['optimizer.state.0.exp_avg'].storage.key}"
            ]
        data[entry.data] ^= 1
        with open_pth(bytes(data)) as file:
            file.state_dict("model", verify=True)
            with pytest.raises(PthFormatError, match="CRC"):
                file.state_dict("optimizer", verify=True)

    def test_tied_weights_stay_one_object(self) -> None:
        weight = torch.ones(2, 2)
        with open_pth(saved({"a": weight, "b": weight})) as file:
            arrays = file.state_dict()
            assert arrays["a"] is arrays["b"]


class TestTorch:
    def test_views_of_one_storage_share_memory_and_not_the_file(self, tmp_path: Path) -> None:
        flat = torch.arange(10.0)
        torch.save([flat[2:6], flat[4:]], tmp_path / "x.pth")
        before = (tmp_path / "x.pth").read_bytes()
        with open_pth(tmp_path / "x.pth") as file:
            first, second = file.read_torch("0"), file.read_torch("1")
        first[2] = -1
        assert second[0] == -1
        assert (tmp_path / "x.pth").read_bytes() == before

    def test_tensors_outlive_the_file(self, path: Path) -> None:
        with open_pth(path) as file:
            weight = file.read_torch("model.weight")
        path.unlink()
        assert weight.sum() == 66

    def test_unaligned_storages_of_old_files(self, tmp_path: Path) -> None:
        value = {"a": torch.arange(3, dtype=torch.int8), "b": torch.randn(5, dtype=torch.float64)}
        torch.save(value, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
        with open_pth(tmp_path / "x.pth") as file:
            for name in value:
                assert raw_bytes(file.read_torch(name)) == raw_bytes(value[name])


def test_reads_of_many_threads(tmp_path: Path) -> None:
    value = {str(i): torch.full((1000,), float(i)) for i in range(50)}
    torch.save(value, tmp_path / "x.pth")
    packed = make_zip(
        [Entry(b"data.pkl", pickled(mapping(w=tensor(storage(count=50_000), 0, (50_000,), (1,))))),
         Entry(b"data/0", np.arange(50_000, dtype="f4").tobytes(), method=8)]
    )  # fmt: skip
    for source in (
        tmp_path / "x.pth",
        (tmp_path / "x.pth").read_bytes(),
        io.BytesIO((tmp_path / "x.pth").read_bytes()),
    ):
        with open_pth(source) as file, open_pth(packed) as deflated, ThreadPoolExecutor(8) as pool:
            barrier = threading.Barrier(8)

            def work(number: int, file: object = file, deflated: object = deflated, barrier: object = barrier) -> bool:
                barrier.wait()
                right = all((file.read_tensor(name) == float(name)).all() for name in value)
                return right and np.array_equal(deflated.read_tensor("w"), np.arange(50_000))

            assert all(pool.map(work, range(8)))


def test_large_sparse_view_does_not_read_its_span(tmp_path: Path) -> None:
    whole = torch.arange(3_000_000, dtype=torch.float32)
    torch.save({"w": whole[::500_000]}, tmp_path / "x.pth")
    with open_pth(tmp_path / "x.pth") as file:
        file.read_tensor("w")
        tracemalloc.start()
        try:
            assert file.read_tensor("w").tolist() == whole[::500_000].tolist()
            assert tracemalloc.get_traced_memory()[1] < 200_000
        finally:
            tracemalloc.stop()
    with open_pth((tmp_path / "x.pth").read_bytes()) as file:
        assert file.read_tensor("w").tolist() == whole[::500_000].tolist()


def test_errors_survive_a_process_boundary() -> None:
    with pytest.raises(PthError) as caught:
        open_pth(checkpoint(b"h\x05"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert str(copy) == str(caught.value)
    assert copy.offset == 2
    assert copy.entry == "archive/data.pkl"
    assert isinstance(copy, ValueError)


def test_limits_are_settings() -> None:
    data = make_zip(parts())
    for limits in (Limits(max_entries=2), Limits(max_pickle_bytes=50), Limits(max_opcodes=10), Limits(max_depth=1)):
        with pytest.raises(PthLimitError, match=r"Limits|instructions"):
            open_pth(data, limits=limits)


def test_repr_is_short_even_for_strange_contents() -> None:
    with open_pth(checkpoint(mapping(w=tensor()))) as file:
        assert "1 tensors" in repr(file)
        assert "float32" in repr(file.tensors["w"])


def _fresh(code: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.strip()


def test_reading_imports_no_torch_and_no_pickle(path: Path) -> None:
    code = (
        "import sys\nfrom hyperion_lite.pth import open_pth\n"
        "assert 'numpy' not in sys.modules\n"
        "file = open_pth(sys.argv[1], verify='all')\nlist(file.tensors); file.metadata\n"
        "assert 'numpy' not in sys.modules\n"
        "assert file.read_tensor('model.weight').sum() == 66\n"
        "print([name for name in ('torch', 'hyperion_lite.core', 'ml_dtypes') if name in sys.modules])"
    )
    assert _fresh(code, str(path)) == "[]"
    sources = (_ROOT / "hyperion_lite" / "pth").glob("*.py")
    assert not [source.name for source in sources if "import pickle" in source.read_text()]


def test_listing_a_checkpoint_of_half_a_thousand_tensors_takes_little_memory() -> None:
    import json

    rows = json.loads(shared_path("fixtures/kokoro_shape.json").read_text())
    value: dict[str, dict[str, torch.Tensor]] = {}
    for part, name, shape, _, _ in rows:
        # One element stands for all: memory of listing does not depend on the numbers.
        value.setdefault(part, {})[name] = torch.zeros(1).expand(shape) if shape else torch.zeros(())
    with tempfile.TemporaryDirectory() as folder:
        torch.save(value, f"{folder}/x.pth")
        tracemalloc.start()
        try:
            with open_pth(f"{folder}/x.pth") as file:
                assert len(file.tensors) == len(rows) == 548
                assert file.metadata["num_parameters"] == 81_763_410
            assert tracemalloc.get_traced_memory()[1] < 20e6
        finally:
            tracemalloc.stop()
