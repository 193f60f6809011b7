"""Files and directories that appear complete or not at all.

Both helpers write to a sibling with a temporary name, flush it to the disk and rename it over the target. After an error (a full
disk, a killed process) the target is what it was before; only the sibling, recognisable by :data:`TEMPORARY_MARK`, can stay behind.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY_MARK = ".hl-tmp-"
"""Part of the name of every temporary sibling; whoever lists a directory of results skips such names."""


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    flags = os.O_RDONLY | (os.O_DIRECTORY if path.is_dir() and hasattr(os, "O_DIRECTORY") else 0)
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write; on success it becomes ``path``.

    Raises:
        FileNotFoundError: the parent directory does not exist.
        FileExistsError: ``path`` is a directory, a device or a pipe.
    """
    target = _behind_link(path)
    if target.exists() and not target.is_file():
        kind = "a directory" if target.is_dir() else "no regular file"
        raise FileExistsError(f"cannot write {target}: it is {kind}, and a finished file would replace it")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the directory {target.parent} does not exist")
    _remove_abandoned(target)
    descriptor, name = tempfile.mkstemp(prefix=_prefix(target), dir=target.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        fsync_path(temporary)
        os.chmod(temporary, _usual_file_mode(target))
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    fsync_path(target.parent)


def _prefix(target: Path) -> str:
    return f"{target.name}{TEMPORARY_MARK}{socket.gethostname()}-{os.getpid()}-"


def _remove_abandoned(target: Path) -> None:
    """Remove temporaries of ``target`` whose process, on this machine, is gone: it was killed while it wrote."""
    start = f"{target.name}{TEMPORARY_MARK}{socket.gethostname()}-"
    for entry in target.parent.iterdir():
        if entry.name.startswith(start):
            number = entry.name[len(start) :].split("-")[0]
            if number.isdigit() and not _is_running(int(number)):
                _remove(entry)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            entry.unlink()


def _behind_link(path: str | os.PathLike[str]) -> Path:
    # a link (to the best model, to a larger disk) keeps pointing where it did
    target = Path(path)
    return target.resolve() if target.is_symlink() else target


def _usual_file_mode(target: Path) -> int:
    # mkstemp makes files that only their owner can read; a saved model should be as readable as any other file
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def atomic_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary directory to fill; on success it becomes ``path``, replacing what was there.

    A directory cannot be renamed over a full one. Where the system can swap two names in one step, that is done; elsewhere the old
    one is moved aside first and removed last, and put back if the second rename fails.
    """
    target = _behind_link(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    temporary = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    try:
        yield temporary
        _fsync_tree(temporary)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o777 & ~mask)
        _publish_directory(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_path(target.parent)


def _fsync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for name in files:
            fsync_path(Path(folder) / name)
        fsync_path(Path(folder))


def _publish_directory(temporary: Path, target: Path) -> None:
    if not target.exists():
        os.rename(temporary, target)
        return
    if _exchange(temporary, target):
        # the old content now has the temporary name
        shutil.rmtree(temporary, ignore_errors=True)
        return
    aside = Path(tempfile.mkdtemp(prefix=f"{target.name}{TEMPORARY_MARK}old-", dir=target.parent))
    os.rename(target, aside / target.name)
    try:
        os.rename(temporary, target)
    except OSError:
        os.rename(aside / target.name, target)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directories in one step, so that a process killed in between loses neither. False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    at_working_directory, exchange = -100, 2
    names = (os.fsencode(first.absolute()), os.fsencode(second.absolute()))
    return bool(renameat2(at_working_directory, names[0], at_working_directory, names[1], exchange) == 0)


def is_temporary(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` has the name of an unfinished or abandoned temporary sibling."""
    return TEMPORARY_MARK in Path(path).name


def remove_temporaries(folder: str | os.PathLike[str]) -> list[str]:
    """Remove the temporary siblings left in ``folder`` by killed processes and return their names."""
    removed = []
    for entry in sorted(Path(folder).iterdir()):
        if is_temporary(entry):
            _remove(entry)
            removed.append(entry.name)
    return removed
