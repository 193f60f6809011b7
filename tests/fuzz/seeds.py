"""The seed corpus: small valid files of every kind, which a fuzzer takes apart and puts together."""

from __future__ import annotations

import io
import pickle
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.pth.handmade import (
    checkpoint,
    legacy,
    make_zip,
    mapping,
    name,
    numbers,
    parts,
    pickled,
    storage,
    tensor,
    text,
)


def _saved(value: Any, protocol: int, zipped: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def _values() -> dict[str, Any]:
    flat = torch.arange(12.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 1, torch.qint8)
        sparse = torch.eye(2).to_sparse()
    return {
        "views": OrderedDict(a=flat[:4], b=flat[2:8].view(2, 3).t(), c=torch.nn.Parameter(flat[8:])),
        "dtypes": [torch.ones(2, dtype=kind) for kind in (torch.bfloat16, torch.uint16, torch.bool, torch.complex64)],
        "nodes": {"q": quantised, "s": sparse, "m": torch.empty(3, device="meta")},
        "python": {"n": [1, 2**70, 2.5, None, True], ("t",): {1, "x"}, "b": b"\xff", "f": frozenset([1]), "c": 1j},
        "numpy": {"a": np.arange(3), "s": np.float64(1.5), "o": np.array([None, 1], dtype=object)},
        "module": torch.nn.Linear(2, 1),
    }


def without_checksums(data: bytes) -> bytes:
    """With all CRCs zero an archive counts as written without checksums, so that a mutated pickle is looked at."""
    raw = bytearray(data)
    for signature, field in ((b"PK\1\2", 16), (b"PK\3\4", 14)):
        at = raw.find(signature)
        while at >= 0:
            raw[at + field : at + field + 4] = bytes(4)
            at = raw.find(signature, at + 4)
    return bytes(raw)


def seed_pickles() -> dict[str, bytes]:
    """Bare pickles by name; the target puts them into an archive with one storage of six floats."""
    sparse = name("torch._utils", "_rebuild_sparse_tensor") + text("torch.sparse_coo") + b"("
    array = name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R"
    dtype = (
        name("numpy", "dtype")
        + text("f4")
        + b"\x89\x88\x87R(K\x03"
        + text("<")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    bodies = {
        "tensor": mapping(w=tensor()),
        "views": mapping(a=tensor(None, 1, (2, 2), (1, 2)), b=tensor(None, 0, (4, 3), (0, 1))),
        "sparse": sparse + tensor() + tensor() + numbers((2, 3)) + b"\x88t\x86R",
        "array": array + b"(K\x01K\x01\x85" + dtype + b"\x89C\x04abcdtb",
        "subclass": name("torch._tensor", "_rebuild_from_type_v2") + b"(" + name("torch._utils", "_rebuild_tensor")
        + name("m", "T") + b"(" + storage() + b"K\x00" + numbers((6,)) + numbers((1,)) + b"t" + mapping(a=tensor()) + b"tR",
        "opaque": name("m", "C") + b")" + mapping(k=b"N") + b"\x92" + mapping(w=tensor()) + b"b(" + text("k") + b"Nu(Ne",
        "collections": b"](" + name("collections", "OrderedDict") + b"](" + text("a") + b"K\x01\x86e\x85R"
        + name("collections", "deque") + b")K\x05\x86R" + name("builtins", "set") + b"](K\x01e\x85R"
        + name("collections", "defaultdict") + name("builtins", "list") + b"\x85Re",
    }  # fmt: skip
    pickles = {label: pickled(body) for label, body in bodies.items()}
    for protocol in (2, 4, 5):
        pickles[f"python-{protocol}"] = pickle.dumps(_values()["python"], protocol)
    return pickles


def seed_files() -> dict[str, bytes]:
    """File contents by name."""
    files = {}
    for label, value in _values().items():
        for protocol in (2, 4, 5):
            files[f"{label}-{protocol}-zip"] = _saved(value, protocol, True)
            files[f"{label}-{protocol}-legacy"] = _saved(value, protocol, False)
    deflated = parts()
    for entry in deflated:
        entry.method, entry.compressed = 8, None
        entry.__post_init__()
    files["hand-zip"] = checkpoint()
    files["hand-legacy"] = legacy()
    files["hand-zip64"] = make_zip(parts(), zip64=True, comment=b"note")
    files["hand-deflated"] = make_zip(deflated)
    files["hand-opaque"] = checkpoint(name("m", "C") + b")R" + mapping(w=tensor()) + b"b(" + text("k") + b"Nu")
    return files


def write_seeds(folder: Path) -> None:
    """Write the corpus into `folder`, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for label, data in seed_files().items():
        (folder / label).write_bytes(data)
        if data.startswith(b"PK"):
            (folder / f"{label}-unchecked").write_bytes(without_checksums(data))
    for label, data in seed_pickles().items():
        (folder / f"pickle-{label}").write_bytes(data)
