"""Memory-mapped copies of large manifests, with the index of their ids.

A large table in CSV or Parquet is converted once; afterwards opening it maps the copy, and all processes share it. The copy of
``data/segments.parquet`` is the folder ``data/.hyperion_lite_cache/segments.parquet-SegmentSet-<key>``. Where ``data`` cannot be
written, it is a folder of that name in ``<user cache>/hyperion_lite/manifests``, the user cache being ``$XDG_CACHE_HOME`` or
``~/.cache``. With ``$HYPERION_LITE_CACHE`` set it is always in ``$HYPERION_LITE_CACHE/manifests``. The key is made of the size and the
modification time of the file, of a checksum over samples of its bytes, and of the version of this format: a file that has changed has
another key, its copy is made anew, and earlier copies of it are removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from hyperion_lite.core.atomic import TEMPORARY_MARK, fsync_path, is_temporary
from hyperion_lite.data.manifests.arrow_tools import to_numpy
from hyperion_lite.data.manifests.id_index import HASH_FILE, ROW_FILE, IdIndex, hash_text
from hyperion_lite.data.manifests.row_reader import CAN_READ_ROWS, RowReader

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "HYPERION_LITE_CACHE"
FOLDER_NAME = ".hyperion_lite_cache"
FORMAT_VERSION = 1
BATCH_ROWS = 1 << 19
TABLE_FILE, DONE_FILE = "table.arrow", "complete.json"
_SAMPLES, _SAMPLE_BYTES = 16, 4096
_TAIL_BYTES = 1 << 16
_LEFTOVER_AGE = 24 * 3600.0
UNREADABLE = (OSError, ValueError, KeyError, pa.ArrowException)
"""Errors of opening a copy that is damaged."""


class FileMaps:
    """Read-only maps of files, whose pages can be given back.

    The touched pages of a mapped file count as resident memory of a process, though they are shared and the system can take them back;
    after :meth:`release` that count starts from zero again, and the data stays in the page cache.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def open(self, path: Path) -> mmap.mmap:
        """Map a file."""
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        return mapped

    def array(self, path: Path) -> np.ndarray:
        """Map a ``.npy`` file; the array is read-only."""
        mapped = self.open(path)
        version = np.lib.format.read_magic(mapped)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(mapped)
        return np.frombuffer(mapped, dtype, offset=mapped.tell()).reshape(shape)

    def release(self) -> None:
        """Give the touched pages back to the system, where it can take them."""
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if advice is not None:
            for mapped in self._maps:
                mapped.madvise(advice)


@dataclass
class CachedTable:
    """A mapped table.

    Attributes:
        folder: where the copy lies.
        table: mapped rows.
        numbers: mapped numeric columns, one array each.
        index: mapped index of the ids.
        maps: the maps behind all of these.
        rows: reader of single rows, where the system has positioned reads.
        distinct: no two ids have the same hash, so that none can occur twice; spares a pass over the index.
    """

    folder: Path
    table: pa.Table
    numbers: dict[str, np.ndarray]
    index: IdIndex
    maps: FileMaps
    rows: RowReader | None
    distinct: bool


def cache_name(source: Path, kind: str) -> str:
    """Name of the copy of ``source`` read as ``kind`` (such as ``"SegmentSet"``); its key changes with the file."""
    stat = source.stat()
    digest = hashlib.sha256(f"{FORMAT_VERSION}|{kind}|{stat.st_size}|{stat.st_mtime_ns}".encode())
    with open(source, "rb") as file:
        for i in range(_SAMPLES):
            file.seek(stat.st_size * i // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, stat.st_size - _TAIL_BYTES))
        digest.update(file.read(_TAIL_BYTES))
    return f"{source.name}-{kind}-{digest.hexdigest()[:20]}"


def user_cache() -> Path:
    """The folder for copies that cannot lie beside their source."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hyperion_lite" / "manifests"


def cache_folders(source: Path) -> list[Path]:
    """Folders where the copy of ``source`` may lie, in the order in which they are tried."""
    forced = os.environ.get(CACHE_VARIABLE)
    if forced:
        return [Path(forced) / "manifests"]
    return [source.parent / FOLDER_NAME, user_cache()]


def find_cached(source: Path, kind: str) -> CachedTable | None:
    """Map the copy of ``source``, if there is one that is not stale."""
    name = cache_name(source, kind)
    for folder in cache_folders(source):
        found = _open_intact(folder / name)
        if found is not None:
            return found
    return None


def _open_intact(folder: Path) -> CachedTable | None:
    # a copy that was cut or overwritten is as good as none: the manifest is there to make another one
    if not (folder / DONE_FILE).is_file():
        return None
    try:
        return open_cached(folder)
    except FileNotFoundError:
        # another process is removing it as stale; or a part of it is missing
        return None
    except UNREADABLE as error:
        logger.warning("the memory-mapped copy %s is damaged and will be made again: %s", folder, error)
        return None


def open_cached(folder: Path) -> CachedTable:
    """Map a copy.

    Raises:
        FileNotFoundError: it was removed. Any other of :data:`UNREADABLE`: it is damaged.
    """
    description = json.loads((folder / DONE_FILE).read_text())
    maps = FileMaps()
    buffer = pa.py_buffer(maps.open(folder / TABLE_FILE))
    table = pa.ipc.open_file(pa.BufferReader(buffer)).read_all()
    numbers = {name: maps.array(folder / file) for name, file in description["numbers"].items()}
    index = IdIndex(maps.array(folder / HASH_FILE), maps.array(folder / ROW_FILE))
    files = (folder / TABLE_FILE, table, buffer.address, folder / HASH_FILE, folder / ROW_FILE)
    rows = RowReader(*files, index.hashes, index.rows) if CAN_READ_ROWS else None
    return CachedTable(folder, table, numbers, index, maps, rows, bool(description["distinct"]))


def build_cached(
    source: Path, kind: str, make_batches: Callable[[], Iterable[pa.Table]], num_rows: int
) -> CachedTable | None:
    """Make the copy of ``source``.

    Of several processes that do so at once, one works and the others wait for it; where files cannot be locked, the first to finish wins.

    Args:
        source: the manifest.
        kind: class it is read as.
        make_batches: gives its normalised rows.
        num_rows: their number.

    Returns:
        The mapped copy, or ``None`` where no folder can take it.
    """
    name = cache_name(source, kind)
    for parent in cache_folders(source):
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with _lock(parent / f".{name}.lock") as locked:
                _remove_leftovers(parent, name, locked)
                if _open_intact(parent / name) is None:
                    logger.info("making a memory-mapped copy of %s in %s", source, parent / name)
                    if (parent / name).exists():
                        shutil.rmtree(parent / name)
                    _publish(parent / name, make_batches(), num_rows, source)
                _remove_stale(parent, name)
        except OSError as error:
            # read-only, over quota, full
            logger.info("cannot keep a copy of %s in %s: %s", source, parent, error)
            continue
        pa.default_memory_pool().release_unused()
        return open_cached(parent / name)
    return None


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    # gives whether this process alone holds the lock: some file systems, and some platforms, have none
    file = open(path, "w")  # noqa: SIM115 - closed below
    try:
        locked = False
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                break
            with suppress(FileNotFoundError):
                locked = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            if locked:
                break
            # whoever held it has removed the file meanwhile: a lock on that holds nobody off
            file.close()
            file = open(path, "w")  # noqa: SIM115
        try:
            yield locked
        finally:
            with suppress(OSError):
                path.unlink()
    finally:
        file.close()


def _remove_leftovers(parent: Path, name: str, locked: bool) -> None:
    # of processes that were killed while they made a copy of this file; who holds the lock knows that nobody is making this one
    prefix = name.rpartition("-")[0] + "-"
    for entry in list(parent.iterdir()):
        if not (is_temporary(entry) and entry.name.startswith(prefix)):
            continue
        with suppress(OSError):
            if (locked and entry.name.startswith(name)) or time.time() - entry.stat().st_mtime > _LEFTOVER_AGE:
                shutil.rmtree(entry, ignore_errors=True)


def _publish(target: Path, batches: Iterable[pa.Table], num_rows: int, source: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}{TEMPORARY_MARK}", dir=target.parent))
    try:
        _write(temporary, batches, num_rows, source)
        for file in temporary.iterdir():
            fsync_path(file)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)
        try:
            # a full folder is never replaced: another process that was faster keeps its copy, which others may have mapped
            temporary.rename(target)
        except OSError:
            if not (target / DONE_FILE).is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _ColumnFile:
    """A ``.npy`` file of known length that is written piece by piece."""

    def __init__(self, path: Path, dtype: np.dtype, num_rows: int) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._dtype = dtype
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (num_rows,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def write(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)

    def close(self) -> None:
        self._file.close()


def _write(folder: Path, batches: Iterable[pa.Table], num_rows: int, source: Path) -> None:
    hashes = np.empty(num_rows, np.uint64)
    numbers: dict[str, _ColumnFile] = {}
    incomplete: set[str] = set()
    row = 0
    with ExitStack() as files:
        writer: pa.ipc.RecordBatchFileWriter | None = None
        for batch in batches:
            if writer is None:
                writer = files.enter_context(pa.ipc.new_file(str(folder / TABLE_FILE), batch.schema))
                for i, field in enumerate(batch.schema):
                    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                        file = _ColumnFile(folder / f"column_{i}.npy", np.dtype(field.type.to_pandas_dtype()), num_rows)
                        files.callback(file.close)
                        numbers[field.name] = file
            writer.write_table(batch, max_chunksize=BATCH_ROWS)
            hashes[row : row + len(batch)] = hash_text(batch.column("id"))
            for name, file in numbers.items():
                if batch.column(name).null_count:
                    # no array of integers has a place for a missing one: such a column is read from the table
                    incomplete.add(name)
                if name not in incomplete:
                    file.write(to_numpy(batch.column(name)))
            row += len(batch)
        names = list(batch.schema.names)
    assert row == num_rows, f"{source}: {row} rows, {num_rows} expected"
    index = IdIndex.from_hashes(hashes)
    index.save(folder)
    description = {
        "source": str(source),
        "rows": num_rows,
        "numbers": {name: f"column_{names.index(name)}.npy" for name in numbers if name not in incomplete},
        "distinct": bool((index.hashes[1:] != index.hashes[:-1]).all()),
    }
    (folder / DONE_FILE).write_text(json.dumps(description))


def _remove_stale(parent: Path, current: str) -> None:
    # in the user cache a file of the same name may belong to another folder: only copies of the same source are removed
    with suppress(OSError, ValueError):
        mine = json.loads((parent / current / DONE_FILE).read_text())["source"]
        for entry in list(parent.iterdir()):
            same_kind = entry.name.rpartition("-")[0] == current.rpartition("-")[0] and entry.name != current
            if not same_kind or is_temporary(entry) or not (entry / DONE_FILE).is_file():
                continue
            if json.loads((entry / DONE_FILE).read_text())["source"] == mine:
                shutil.rmtree(entry, ignore_errors=True)
