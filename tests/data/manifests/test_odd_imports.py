"""Folders, Kaldi directories and lhotse manifests that are not quite what they should be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests.hyper_dataset import HyperDataset

RECORDING: dict[str, Any] = {
    "id": "r",
    "sources": [{"type": "file", "channels": [0], "source": "a.wav"}],
    "sampling_rate": 8000,
    "num_samples": 16000,
    "duration": 2.0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "a.wav", np.zeros(16000), 8000)
    return tmp_path


@pytest.mark.parametrize(
    "line", ["u a 1 0.5", "u a 1 1", "u a -1 1", "u a nan 1", "u a 0 nan", "u a 0 inf", "u a 1 -2"]
)
def test_times_of_kaldi_segments_are_checked(folder: Path, line: str) -> None:
    (folder / "wav.scp").write_text("a a.wav\n")
    (folder / "segments").write_text(f"v a 0 -1\n{line}\n")
    with pytest.raises(ManifestError, match=r"segments:2: segment 'u'"):
        HyperDataset.from_kaldi(folder, progress=False)


@pytest.mark.parametrize(("scp", "segments"), [("", None), ("\n\n", None), ("a a.wav\n", "")])
def test_an_empty_kaldi_folder_is_an_error(folder: Path, scp: str, segments: str | None) -> None:
    (folder / "wav.scp").write_text(scp)
    if segments is not None:
        (folder / "segments").write_text(segments)
    with pytest.raises(ManifestError, match="no usable segment"):
        HyperDataset.from_kaldi(folder, progress=False)


@pytest.mark.parametrize(
    "change",
    [
        {"sources": None},
        {"sources": ["a.wav"]},
        {"sources": [{"type": "file", "source": None}]},
        {"sources": [{"type": "file", "source": "a.wav", "channels": 3}]},
    ],
)
def test_lhotse_recordings_of_another_shape_are_named(folder: Path, change: dict[str, Any]) -> None:
    (folder / "r.jsonl").write_text(json.dumps(RECORDING) + "\n" + json.dumps({**RECORDING, "id": "s", **change}))
    with pytest.raises(ManifestError, match=r"r.jsonl:2"):
        HyperDataset.from_lhotse(folder / "r.jsonl")


@pytest.mark.parametrize("change", [{"start": "x"}, {"supervisions": [3]}, {"recording": "r"}, {"supervisions": 1}])
def test_lhotse_cuts_of_another_shape_are_named(folder: Path, change: dict[str, Any]) -> None:
    cut = {"id": "c", "start": 0.5, "duration": 1.0, "channel": 0, "recording": RECORDING, "supervisions": []}
    (folder / "c.jsonl").write_text(json.dumps(cut) + "\n" + json.dumps({**cut, "id": "d", **change}))
    with pytest.raises(ManifestError, match=r"c.jsonl:2"):
        HyperDataset.from_lhotse(folder / "c.jsonl")


def test_damaged_gzip_is_an_error_of_ours(folder: Path) -> None:
    import gzip

    packed = bytearray(gzip.compress(json.dumps(RECORDING).encode()))
    packed[12:20] = b"\xff" * 8
    (folder / "r.jsonl.gz").write_bytes(packed)
    with pytest.raises(ManifestError, match="is no JSON"):
        HyperDataset.from_lhotse(folder / "r.jsonl.gz")


def test_file_names_that_are_not_utf8_are_named(folder: Path) -> None:
    (folder / "corpus" / "spk").mkdir(parents=True)
    name = os.fsencode(folder / "corpus" / "spk") + b"/b\xff.wav"
    try:
        with open(name, "wb") as file:
            file.write((folder / "a.wav").read_bytes())
    except OSError:
        pytest.skip("the file system takes no such names")
    with pytest.raises(ManifestError, match="is not UTF-8"):
        HyperDataset.from_folder(folder / "corpus", progress=False)
