"""A file that is no checkpoint is named for what it is, by its content."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hyperion_lite.pth import PthError, PthFormatError, PthUnsupportedError, open_pth
from tests.pth.handmade import Entry, checkpoint, make_zip, parts


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    return buffer.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


_NAMED = {
    "empty": (b"", "empty"),
    "html": (b"<!DOCTYPE html>\n<html><head><title>Sign in</title>", "HTML"),
    "html with a mark": (b"\xef\xbb\xbf  <HTML lang=en>", "HTML"),
    "xml": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "Git-LFS"),
    "gzip": (gzip.compress(checkpoint()), "gzip"),
    "bzip2": (bz2.compress(checkpoint()), "bzip2"),
    "xz": (lzma.compress(checkpoint()), "xz"),
    "7z": (b"7z\xbc\xaf'\x1c\x00\x04" + bytes(40), "7z"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd"),
    "safetensors": (safetensors(), "safetensors"),
    "onnx": (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:\x8f\x01", "ONNX"),
    "json": (b'{"error": "Repository not found"}', "JSON"),
    "text": (b"Not Found\nplease log in", "text"),
    "zeros": (bytes(4096), "zero bytes"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", "npy"),
    "npz": (npz(), "npz"),
    "gguf": (b"GGUF\x03\x00\x00\x00", "GGUF"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
    "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(40), "TensorFlow Lite"),
    "zip in zip": (zipped(**{"model.pth": checkpoint()}), "within a zip"),
    "zip in deflated zip": (make_zip([Entry(b"model.pth", checkpoint(), method=8)]), "within a zip"),
    "other zip": (zipped(**{"word/document.xml": b"<a/>"}), r"without data\.pkl"),
    "empty zip": (zipped(), "empty zip"),
    "tar": (tarred(**{"model.pth": checkpoint()}), "tar"),
    "something before": (b"HTTP/1.1 200 OK\r\n\r\n" + checkpoint(), "19 bytes before a zip archive"),
    "plain pickle": (pickle.dumps({"a": 1}, 4), "not one of torch.save"),
    "old pickle": (pickle.dumps({"a": 1}, 0), "text"),
    "noise": (bytes(range(128, 256)) * 3, "no torch.save file"),
}


@pytest.mark.parametrize(("data", "message"), _NAMED.values(), ids=_NAMED)
def test_other_files_are_named(data: bytes, message: str) -> None:
    with pytest.raises(PthFormatError, match=message):
        open_pth(data)


_KINDS = {
    "tar checkpoint": (tarred(sys_info=b"1", pickle=b"2", storages=b"3", tensors=b"4"), "tar checkpoint"),
    "torch.package": (zipped(**{"m/.data/extern_modules": b"torch", "m/.data/version": b"6"}), r"torch\.package"),
    "package with data.pkl": (
        make_zip([*parts(), Entry(b"archive/.data/extern_modules", b"torch"), Entry(b"archive/.data/version", b"6")]),
        r"torch\.package",
    ),
    "exported program": (
        zipped(
            **{"m/archive_format": b"pt2", "m/data/sample_inputs/model.pt": checkpoint(), "m/models/model.json": b"{}"}
        ),
        "exported program",
    ),
    "torchscript": (make_zip([*parts(), Entry(b"archive/constants.pkl", b"\x80\x02).")]), "TorchScript"),
    "torchscript by its code": (make_zip([*parts(), Entry(b"archive/code/__torch__/x.py", b"")]), "TorchScript"),
}


@pytest.mark.parametrize(("data", "message"), _KINDS.values(), ids=_KINDS)
def test_other_kinds_of_checkpoint_are_unsupported(data: bytes, message: str) -> None:
    with pytest.raises(PthUnsupportedError, match=message):
        open_pth(data)


def test_content_decides_and_the_message_names_the_file(tmp_path: Path) -> None:
    good = tmp_path / "model.txt"
    good.write_bytes(checkpoint())
    with open_pth(good) as file:
        assert list(file.tensors) == ["w"]
    bad = tmp_path / "model.pth"
    bad.write_bytes(b"<html>")
    with pytest.raises(PthError, match=r"model\.pth"):
        open_pth(bad)


def test_folder_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PthFormatError, match="folder"):
        open_pth(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_pth(tmp_path / "none.pth")
