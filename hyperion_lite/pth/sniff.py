"""What a file is, by its first bytes, when it is not a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hyperion_lite.pth.errors import PthError, PthFormatError, PthUnsupportedError

HEAD_BYTES = 1024

_SIGNATURES = (
    (b"\x1f\x8b", "a gzip file: unpack it first (gunzip)"),
    (b"7z\xbc\xaf'\x1c", "a 7z archive: unpack it first"),
    (b"\xfd7zXZ\x00", "an xz file: unpack it first"),
    (b"BZh", "a bzip2 file: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first"),
    (b"\x04\x22\x4d\x18", "an lz4 file: unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive: unpack it first"),
    (b"version https://git-lfs", "a Git-LFS pointer, not the file itself: run `git lfs pull`, or download the file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras?)"),
    (b"GGUF", "a GGUF file"),
    (b"ggml", "a GGML file"),
    (b"lmgg", "a GGML file"),
    (b"\x93NUMPY", "a numpy .npy file: use numpy.load"),
    (b"%PDF-", "a PDF document"),
    (b"\x7fELF", "a program or library (ELF)"),
    (b"\x89PNG", "a PNG image"),
    (b"RIFF", "a RIFF file (WAV audio?)"),
    (b"fLaC", "a FLAC audio file"),
    (b"OggS", "an Ogg audio file"),
    (b"ID3", "an MP3 audio file"),
)
_TAR_PARTS = (b"sys_info", b"pickle", b"storages", b"tensors")


def describe(head: bytes, size: int) -> PthError:
    """The error that names a file beginning with `head` (at most `HEAD_BYTES`) of `size` bytes in all."""
    if size == 0:
        return PthFormatError("an empty file")
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return PthFormatError(f"{name}; it is no torch.save file")
    if head[257:262] == b"ustar" or head[:100].rstrip(b"\0").removeprefix(b"./") in _TAR_PARTS:
        return _describe_tar(head)
    if head[4:8] == b"TFL3":
        return PthFormatError("a TensorFlow Lite model; it is no torch.save file")
    if len(head) >= 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= max(size - 8, 0):
        return PthFormatError("a safetensors file: read it with the safetensors package")
    if _is_onnx(head):
        return PthFormatError("an ONNX model; it is no torch.save file")
    if not any(head):
        return PthFormatError(f"the file begins with {len(head)} zero bytes: an unfinished download or a damaged disk")
    archive = head.find(b"PK\3\4")
    if archive > 0:
        return PthFormatError(f"{archive} bytes before a zip archive, beginning with {head[:16]!r}")
    return _describe_text(head) or PthFormatError(f"no torch.save file: it begins with {head[:16]!r}")


def _describe_tar(head: bytes) -> PthError:
    if head[:100].rstrip(b"\0").removeprefix(b"./").split(b"/")[0] in _TAR_PARTS:
        return PthUnsupportedError(
            "a tar checkpoint of an early torch; load and save it with a torch that still reads it"
        )
    return PthFormatError("a tar archive: unpack it first; it is no torch.save file")


def _describe_text(head: bytes) -> PthError | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lowered = text[:512].lower()
    if lowered.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) or b"<html" in lowered:
        return PthFormatError("an HTML page, not the file itself: the download link led to a web page")
    if text.startswith(b"<?xml") or re.match(rb"<[A-Za-z]+>", text):
        return PthFormatError("an XML text (an error message of a file server?); it is no torch.save file")
    if text.startswith((b"{", b"[")) and _is_text(text):
        return PthFormatError("a JSON text; it is no torch.save file")
    if _is_text(text):
        line = text.splitlines()[0][:60].decode("utf-8", "replace") if text else ""
        return PthFormatError(f"a text file, beginning with {line!r}; it is no torch.save file")
    return None


def _is_text(head: bytes) -> bool:
    return len(head) >= 4 and not re.search(rb"[\x00-\x08\x0e-\x1f\x7f-\xff]", head)


def _is_onnx(head: bytes) -> bool:
    # Protobuf: field 1 (IR version) as a small integer, then a text field (producer), an import or the graph.
    if len(head) < 4 or head[0] != 0x08 or not 1 <= head[1] <= 32:
        return False
    producer = head[4 : 4 + head[3]]
    return head[2] in (0x3A, 0x42) or (head[2] == 0x12 and producer.isascii() and len(producer) == head[3])


def describe_archive(entries: Mapping[str, Any], read_head: Callable[[Any], bytes]) -> PthError:
    """The error that names a zip archive without `data.pkl`."""
    if not entries:
        return PthFormatError("an empty zip archive")
    names = list(entries)
    if _any_ends(names, (".data/extern_modules", ".data/python_version")):
        return PthUnsupportedError("a torch.package archive: it holds code; only its author's program can read it")
    if _any_ends(names, ("constants.pkl", ".py")) and _any_ends(names, ("model.json", ".debug_pkl", "version")):
        return PthUnsupportedError("a TorchScript archive of an unknown layout")
    if _any_ends(names, ("archive_format",)):
        return PthUnsupportedError("an exported program (torch.export): it holds a graph, not a checkpoint")
    if all(name.endswith(".npy") for name in names):
        return PthFormatError("a numpy .npz archive: use numpy.load")
    for name in names[:16]:
        head = read_head(entries[name])
        if head.startswith(b"PK\3\4") or (
            len(names) == 1 and _any_ends(names, (".pt", ".pth", ".ckpt", ".bin", ".zip"))
        ):
            return PthFormatError("a zip archive within a zip archive: unpack the outer one first", entry=name)
        if head.startswith(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9"):
            return PthFormatError("a zipped checkpoint: unpack the archive first", entry=name)
    return PthFormatError(
        f"a zip archive without data.pkl (its first entry is {names[0][:80]!r}); it is no torch.save file"
    )


def _any_ends(names: Iterable[str], ends: tuple[str, ...]) -> bool:
    return any(name.endswith(ends) for name in names)
