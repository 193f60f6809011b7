"""What is fuzzed: open bytes, look at everything, read what is small; only `PthError` may come out."""

from __future__ import annotations

from hyperion_lite.pth import Limits, PthError, PthFile, open_pth
from tests.pth.handmade import make_zip, parts

# Small enough that an input within them takes milliseconds: what takes long is then a finding.
LIMITS = Limits(
    max_pickle_bytes=1 << 20,
    max_opcodes=100_000,
    max_value_bytes=16 << 20,
    max_inflate_bytes=4 << 20,
    max_expand_bytes=1 << 20,
    max_names=2000,
    max_name_chars=1 << 20,
)


def as_checkpoint(data: bytes) -> bytes:
    """A bare pickle as an archive; other input as it is."""
    bare = data.startswith(b"\x80") and b"\x8a\x0al\xfc\x9cF\xf9" not in data[:32]
    return make_zip(parts(data)) if bare else data


def exercise(data: bytes) -> None:
    """Everything that a reader of an untrusted file does."""
    try:
        with open_pth(as_checkpoint(data), limits=LIMITS, verify="all", allow_torchscript=True) as file:
            repr(file.root) if not isinstance(file.root, (list, tuple, dict, set, frozenset)) else len(file.root)
            facts = file.metadata
            assert facts["unreferenced_bytes"] >= 0
            assert 0 <= facts["storage_bytes"] <= len(data) + 1000 + LIMITS.max_inflate_bytes * facts["num_storages"]
            shared, duplicates = file.tensors.shared, file.tensors.duplicates
            assert len(shared) <= facts["num_storages"]
            assert len(duplicates) <= len(file.tensors)
            _read(file)
    except PthError as error:
        str(error)


def _read(file: PthFile) -> None:
    for tensor in list(file.tensors.values())[:50]:
        try:
            array = file.read_tensor(tensor, verify=True)
        except PthError as error:
            str(error)
            continue
        assert array.flags.c_contiguous
        assert array.size == tensor.numel or "quint" in tensor.dtype
