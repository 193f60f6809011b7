"""What a file really is, told from its first bytes, for error messages."""

from __future__ import annotations

import os
from pathlib import Path

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git-LFS pointer (run `git lfs pull`)"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"\xfd7zXZ", "xz-compressed data"),
    (b"(\xb5/\xfd", "zstandard-compressed data"),
    (b"PK\x03\x04", "a ZIP archive (also .npz, .pth, .docx)"),
    (b"7z\xbc\xaf'\x1c", "a 7-Zip archive"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x7fELF", "a program (ELF)"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"PAR1", "a Parquet table"),
    (b"ARROW1", "an Arrow table"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM video, which libsndfile does not read (convert it first)"),
    (b"#!AMR", "AMR audio, which libsndfile does not read (convert it first)"),
    (b"ajkg", "Shorten audio, which libsndfile does not read (convert it first)"),
    (b"MAC ", "Monkey's Audio, which libsndfile does not read (convert it first)"),
    (b"wvpk", "WavPack audio, which libsndfile does not read (convert it first)"),
    (b"0&\xb2u\x8ef\xcf\x11", "Windows Media, which libsndfile does not read (convert it first)"),
    (b"RIFF", "a RIFF (WAV) file"),
    (b"RIFX", "a big-endian RIFF (WAV) file"),
    (b"RF64", "an RF64 (WAV) file"),
    (b"fLaC", "a FLAC file"),
    (b"OggS", "an Ogg file"),
    (b"ID3", "an MP3 file with an ID3 tag"),
    (b"FORM", "an AIFF file"),
    (b".snd", "an AU file"),
    (b"NIST_1A", "a NIST SPHERE file"),
    (b"\x00B", "a Kaldi matrix or vector (name it as file.ark:offset)"),
)
_SHORTEN_HINT = b"shorten"


def describe_file(path: str | os.PathLike[str]) -> str:
    """A phrase that says what the file at ``path`` is: "empty", "an HTML page", "gzip-compressed data", ..."""
    target = Path(path)
    if target.is_dir():
        return "a folder"
    try:
        with open(target, "rb") as file:
            head = file.read(4096)
        size = target.stat().st_size
    except OSError as error:
        return f"unreadable ({error.strerror or error})"
    return describe_bytes(head, size)


def describe_bytes(head: bytes, size: int) -> str:
    """As :func:`describe_file` from the first bytes and the size of a file."""
    if size == 0:
        return "empty (0 bytes)"
    if not head.strip(b"\x00"):
        return f"only zero bytes at its start ({size} bytes in all)"
    if head.startswith(b"NIST_1A") and _SHORTEN_HINT in head:
        return "a NIST SPHERE file compressed with shorten, which libsndfile does not read (convert it with sph2pipe)"
    if head.startswith(b"RIFF") and head[8:12] not in (b"WAVE", b""):
        return f"a RIFF file of kind {head[8:12].decode('latin-1')!r}, not WAVE"
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[4:8] == b"ftyp":
        return "an MP4 or M4A (AAC) file, which libsndfile does not read (convert it first)"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "MPEG audio"
    return _describe_text(head, size)


def _describe_text(head: bytes, size: int) -> str:
    # a character cut at the end of the excerpt is no reason to call a text binary
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return f"unknown data of {size} bytes, beginning with {head[:8].hex(' ')}"
        text = head[: error.start].decode("utf-8")
    if sum(c.isprintable() or c in "\r\n\t\f" for c in text) < 0.95 * len(text):
        return f"unknown data of {size} bytes, beginning with {head[:8].hex(' ')}"
    start = text.lstrip("\ufeff \r\n\t").lower()
    if start.startswith(("<!doctype html", "<html", "<head", "<body")):
        return "an HTML page (a failed download?)"
    if start.startswith(("<?xml", "<error")):
        return "an XML document (a failed download?)"
    if start.startswith(("{", "[")):
        return "JSON text"
    first = text.strip().splitlines()[0][:40] if text.strip() else ""
    return f"text, beginning with {first!r}"
