"""Hand-made hostile files and published checkpoints: each opens or is refused as the fixture folder says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hyperion_lite.pth import Opaque, PthError, PthUnsupportedError, open_pth
from tests.helpers import have_shared, shared_folder, shared_path

_ROOT = Path(__file__).resolve().parents[2]
# The readings of one file in a fresh process: seconds and bytes beyond what an idle interpreter has.
_MEASURE = """
import json, resource, sys, time
import numpy
import hyperion_lite.pth as pth
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
result = {}
for path in sys.argv[1:]:
    before, start = peak(), time.perf_counter()
    try:
        with pth.open_pth(path, verify="all") as file:
            len(file.tensors), file.metadata
            for tensor in file.tensors.values():
                file.read_tensor(tensor)
        outcome = "open"
    except pth.PthError:
        outcome = "refuse"
    result[path] = (outcome, time.perf_counter() - start, peak() - before)
print(json.dumps(result))
"""


def _cases(folder: str) -> list[str]:
    if not have_shared():
        return []
    return sorted(json.loads((shared_folder() / "fixtures" / folder / "expected.json").read_text()))


def _inert(value: object) -> bool:
    """Whether a value holds nothing but plain data and inert descriptions."""
    if isinstance(value, (list, tuple)):
        return all(map(_inert, value))
    return isinstance(value, (Opaque, bytes, str, int, float, type(None)))


@pytest.mark.parametrize("case", _cases("pth"))
def test_outcome_of_hand_made_file(case: str) -> None:
    path = shared_path(f"fixtures/pth/{case}")
    expected = json.loads(shared_path("fixtures/pth/expected.json").read_text())[case]["expect"]
    values: dict[str, np.ndarray] = {}
    message = ""
    try:
        with open_pth(path, verify="all") as file:
            outcome = "open"
            values = {name: file.read_tensor(name) for name in file.tensors} if expected == "open" else {}
            if expected == "inert-or-refuse":
                assert _inert(file.root)
    except PthError as error:
        outcome, message = "refuse", str(error)
    assert outcome == "open" or case in message
    assert outcome in expected or expected == "inert-or-refuse"
    for array in values.values():
        assert array.dtype == np.float32
        # All hand-made files count up in bytes (zip) or in floats (legacy), or view such a storage.
        flat = array.reshape(-1)
        counting = np.frombuffer(bytes(range(24)), "<f4")
        assert np.array_equal(flat, counting[: flat.size]) or np.array_equal(np.diff(flat), np.ones(flat.size - 1))


def test_each_hand_made_file_takes_less_than_two_seconds_and_200_megabytes() -> None:
    if not _cases("pth"):
        shared_path("fixtures/pth/expected.json")
    paths = [str(shared_path(f"fixtures/pth/{case}")) for case in _cases("pth")]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run([sys.executable, "-c", _MEASURE, *paths], capture_output=True, env=environment, check=True)
    for path, (_, seconds, memory) in json.loads(done.stdout).items():
        assert seconds < 2, path
        assert memory < 200e6, path


@pytest.mark.parametrize("case", _cases("pth_real"))
@pytest.mark.parametrize("verify", ["pickle", "all"])
def test_published_checkpoint_has_the_right_tensors(case: str, verify: str) -> None:
    table = json.loads(shared_path("fixtures/pth_real/expected.json").read_text())[case]["table"]
    with open_pth(shared_path(f"fixtures/pth_real/{case}"), verify=verify) as file:
        assert list(file.tensors) == list(table)
        for name, array in file.iter_tensors():
            reference = table[name]
            assert file.tensors[name].dtype == reference["dtype"]
            assert list(array.shape) == reference["shape"]
            assert hashlib.sha256(array.tobytes()).hexdigest() == reference["sha256"]


def test_torchscript_archive_is_named_and_read_as_data_on_request() -> None:
    path = shared_path("fixtures/pth_real/silero_vad__data__silero_vad.jit")
    with pytest.raises(PthUnsupportedError, match="TorchScript"):
        open_pth(path)
    with open_pth(path, verify="all", allow_torchscript=True) as file:
        assert file.metadata["format"] == "torchscript"
        assert file.tensors["_model.stft.forward_basis_buffer"].shape == (258, 1, 256)
        import torch

        reference = torch.jit.load(str(path)).state_dict()
        for name, value in reference.items():
            if name in file.tensors:
                assert np.array_equal(file.read_tensor(name), value.numpy()), name
        assert sum(name in file.tensors for name in reference) >= len(reference) - 2
