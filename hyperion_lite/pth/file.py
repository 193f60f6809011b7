"""`open_pth` and what it gives."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from hyperion_lite.pth.container import Container
from hyperion_lite.pth.dtypes import DTYPES
from hyperion_lite.pth.errors import PthError
from hyperion_lite.pth.legacy_container import LegacyContainer
from hyperion_lite.pth.limits import DEFAULT_LIMITS, Limits
from hyperion_lite.pth.sniff import HEAD_BYTES, describe
from hyperion_lite.pth.source import Source, open_source
from hyperion_lite.pth.tree import Survey, TensorMap, name_tensors
from hyperion_lite.pth.values import TensorRef
from hyperion_lite.pth.zip_container import ZipContainer

if TYPE_CHECKING:
    import numpy as np
    import torch

Verify = Literal["pickle", "all"]


class PthFile:
    """An open checkpoint: its values at once, its tensors on demand. A context manager; reads are thread-safe.

    Attributes:
        root: what was saved: plain Python values, `TensorRef` for tensors, `Opaque` for objects of other classes.
        path: name of the file, or None.
    """

    def __init__(self, container: Container, path: str | None) -> None:
        self._container = container
        self._lock = threading.RLock()
        self._survey = Survey(container.root, container.limits)
        self._tensors: TensorMap | None = None
        self._metadata: dict[str, Any] | None = None
        self._torch_storages: dict[str, Any] = {}
        self.path = path

    @property
    def root(self) -> Any:
        """What was saved."""
        return self._container.root

    @property
    def tensors(self) -> TensorMap:
        """All tensors by dotted name; one that is reached in several ways has several names.

        Raises:
            PthLimitError: more names than the limits allow.
        """
        with self._lock:
            if self._tensors is None:
                with _named_errors(self.path):
                    names, renamed = name_tensors(self.root, self._survey, self._container.limits)
                self._tensors = TensorMap(names, renamed)
            return self._tensors

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts about the file.

        Always there: `format` (`zip`, `legacy`, `torchscript`), `byteorder`, `protocol`, `version`, `checksums` (whether
        there are any), `file_bytes`, `pickle_bytes`, `num_tensors` (distinct), `num_parameters` (their elements),
        `num_storages`, `storage_bytes`, `trailing_bytes` (behind the archive), and `unreferenced_bytes`: bytes of
        storages that no tensor looks into.
        Zip archives besides: `prefix`, `entries`, `compressed_entries`, `comment`, `unreferenced_entries`.
        """
        with self._lock:
            if self._metadata is None:
                self._metadata = self._collect_metadata()
            return dict(self._metadata)

    def _collect_metadata(self) -> dict[str, Any]:
        container = self._container
        facts = dict(container.facts)
        unused = facts.pop("unreferenced_entry_bytes", 0)
        storages = container.storages.values()
        return {
            "format": container.format,
            "byteorder": container.byteorder,
            "protocol": container.protocol,
            "file_bytes": container.source.size,
            "num_tensors": len(self._survey.tensors),
            "num_parameters": sum(tensor.numel for tensor in self._survey.tensors),
            "num_storages": len(storages),
            "storage_bytes": sum(storage.nbytes for storage in storages),
            "unreferenced_bytes": unused + self._unreferenced_bytes(),
            **facts,
        }

    def _unreferenced_bytes(self) -> int:
        """Bytes of the storages outside the spans of all tensors."""
        spans: dict[str, list[tuple[int, int]]] = {key: [] for key in self._container.storages}
        for storage in self._survey.storages:
            start = storage.base_offset * storage.dtype.itemsize
            spans[storage.base.key].append((start, start + storage.nbytes))
        for tensor in self._survey.tensors:
            if tensor.storage is not None:
                start = tensor.storage.base_offset * tensor.storage.dtype.itemsize
                size, packed = tensor.itemsize, DTYPES[tensor.dtype].packed
                first, last = tensor.span
                spans[tensor.storage.base.key].append(
                    (start + first // packed * size, start - (-last // packed) * size)
                )
        unused = 0
        for key, storage in self._container.storages.items():
            end = covered = 0
            for first, last in sorted(spans[key]):
                last = min(last, storage.nbytes)
                if last > end:
                    covered += last - max(first, end)
                    end = last
            unused += storage.nbytes - covered
        return unused

    def _find(self, name: str | TensorRef) -> TensorRef:
        if isinstance(name, TensorRef):
            storage = name.storage
            if storage is not None and self._container.storages.get(storage.base.key) is not storage.base:
                raise ValueError(f"{name!r} is a tensor of another file")
            return name
        found = self.tensors.get(name)
        if found is None:
            import difflib

            candidates = [known for known in self.tensors if len(known) < 300] if len(name) < 300 else []
            near = difflib.get_close_matches(name, candidates, 3, 0.5) if len(candidates) <= 10_000 else []
            hint = f"; the nearest are {', '.join(near)}" if near else f"; there are {len(self.tensors)} tensors"
            raise KeyError(f"no tensor {name!r} in {self.path or 'the file'}{hint}")
        return found

    def read_tensor(self, name: str | TensorRef, out: Any = None, verify: bool = False) -> np.ndarray:
        """The elements of one tensor.

        A contiguous tensor is one bounded read; another view is gathered out of the smallest enclosing span.

        Args:
            name: dotted name, or a `TensorRef` out of this file.
            out: memory to fill instead of new one: an array of the right shape and dtype, or any writeable buffer of
                at least as many bytes.
            verify: compare the CRC of the storage (which means reading all of it, once).

        Returns:
            Contiguous row-major array of the tensor's shape. bfloat16 and float8 have the dtypes of `ml_dtypes`;
            complex32 comes as complex64; quantised integers as plain ones; sub-byte types as their bytes, flat.
            Conjugation and negation are applied.

        Raises:
            KeyError: no such tensor.
            ValueError: `out` does not fit, or a tensor of another file.
            PthError: damaged, without data, or larger than the limits allow.
        """
        from hyperion_lite.pth.reading import read_array

        tensor = self._find(name)
        with _named_errors(self.path):
            return read_array(self._container, tensor, out, verify)

    def read_torch(self, name: str | TensorRef, verify: bool = False) -> torch.Tensor:
        """One tensor for torch: a view of the memory-mapped file where possible, with the shape and stride it was saved with.

        Writing to it changes neither the file nor what other readers see, but other tensors of this `PthFile` that
        share its storage. It is no `Parameter` and does not require gradients, whatever the file says.

        Args, Raises: as in `read_tensor`; ImportError without torch.
        """
        from hyperion_lite.pth.torch_bridge import read_torch

        tensor = self._find(name)
        with self._lock, _named_errors(self.path):
            return read_torch(self._container, tensor, self._torch_storages, verify)

    def iter_tensors(self, verify: bool = False) -> Iterator[tuple[str, np.ndarray]]:
        """Each name with its array, one at a time, in the order of the file."""
        for name, tensor in self.tensors.items():
            yield name, self.read_tensor(tensor, verify=verify)

    def state_dict(self, prefix: str = "", *, as_torch: bool = False, verify: bool = False) -> dict[str, Any]:
        """The tensors below `prefix` (a dotted name; all of them by default), their names without it.

        Nothing else of the file is read. Names of one tensor get one array.

        Args:
            prefix: such as `model_state_dict`.
            as_torch: torch tensors as from `read_torch` instead of numpy arrays.
            verify: compare the CRCs of the storages that are used.

        Raises:
            KeyError: no tensor below `prefix`.
        """
        start = f"{prefix}." if prefix else ""
        chosen = {name[len(start) :]: tensor for name, tensor in self.tensors.items() if name.startswith(start)}
        if prefix and not chosen:
            raise KeyError(f"no tensors below {prefix!r} in {self.path or 'the file'}")
        read = self.read_torch if as_torch else self.read_tensor
        done: dict[int, Any] = {}
        for tensor in chosen.values():
            if id(tensor) not in done:
                done[id(tensor)] = read(tensor, verify=verify)
        return {name: done[id(tensor)] for name, tensor in chosen.items()}

    def verify(self) -> None:
        """Compare every entry of the archive with its CRC. (Files before torch 1.6 have none.)

        Raises:
            PthFormatError: the first damaged entry.
        """
        with _named_errors(self.path):
            if isinstance(self._container, ZipContainer):
                self._container.verify_all()

    def close(self) -> None:
        """Release the file. Tensors of `read_torch` stay valid."""
        with self._lock:
            self._torch_storages.clear()
            self._container.source.close()

    def __enter__(self) -> PthFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PthFile {self.path or 'in memory'}: {self._container.format}, {len(self._survey.tensors)} tensors>"


class _named_errors:
    """Adds the file's name to a `PthError` that passes."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, PthError):
            error.locate(path=self._path)


def _open_container(source: Source, limits: Limits, allow_torchscript: bool) -> Container:
    """Content decides what a file is, never its name."""
    head = source.read(0, min(HEAD_BYTES, source.size))
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return ZipContainer(source, limits, allow_torchscript)
    if len(head) >= 2 and head[0] == 0x80 and head[1] <= 32:
        return LegacyContainer(source, limits)
    raise describe(head, source.size)


def open_pth(
    file: str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO,
    *,
    limits: Limits = DEFAULT_LIMITS,
    verify: Verify = "pickle",
    allow_torchscript: bool = False,
) -> PthFile:
    """Open a file written by `torch.save`, without executing anything in it.

    Args:
        file: a path, the bytes themselves, or a binary file object (read from its current position to its end).
        limits: bounds on time and memory.
        verify: `pickle` compares the CRC of the values; `all` also that of every storage, which reads the whole file.
        allow_torchscript: read the parameters of a TorchScript archive as data instead of refusing it.

    Returns:
        The open file; close it, or use it in a `with` statement.

    Raises:
        PthFormatError: damaged, contradictory, or no checkpoint (the message says what it is instead).
        PthUnsupportedError: a kind of checkpoint or archive that is not read.
        PthLimitError: would cost more than `limits`.
        OSError: the path cannot be opened.
    """
    if verify not in ("pickle", "all"):
        raise ValueError(f"verify must be 'pickle' or 'all', not {verify!r}")
    source = open_source(file, limits)
    done = False
    try:
        with _named_errors(source.name):
            opened = PthFile(_open_container(source, limits, allow_torchscript), source.name)
            if verify == "all":
                opened.verify()
        done = True
    finally:
        if not done:
            source.close()
    return opened
