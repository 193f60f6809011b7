"""Where a running extraction puts its results, so that an interrupted job goes on where it was."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from hyperion_lite.core.atomic import atomic_file, remove_temporaries
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.extras import require
from hyperion_lite.extraction.embedding_files import (
    Embeddings,
    check_kaldi_ids,
    join_embeddings,
    output_path,
    read_embeddings,
    write_embeddings,
)
from hyperion_lite.extraction.policy import EmbeddingPolicy

if sys.platform != "win32":
    import fcntl
else:
    fcntl = None

_PARTS_SUFFIX = ".parts"
_POLICY_FILE = "policy.json"
_MOST_SECONDS = 20.0
"""After which embeddings go to the disk even if they do not fill a part: what a killed job can lose."""
_LOCK_FILE = "lock"


class EmbeddingStore:
    """Context manager that collects embeddings in numbered part files beside the output, and joins them at the end.

    Args:
        specification: ``out.npz``, ``out.parquet`` or ``ark,scp:out``.
        policy: how the embeddings are made.
        overwrite: forget what an earlier job left.
        part_size: embeddings that are written at a time.

    Raises:
        ConfigError: the output or its parts were made under another policy, or another job is writing them.
        FileNotFoundError: the folder of the output does not exist.
    """

    def __init__(
        self, specification: str, policy: EmbeddingPolicy, overwrite: bool = False, part_size: int = 512
    ) -> None:
        self.specification = specification
        self.policy = policy
        self.path = output_path(specification)
        self.parts_folder = self.path.with_name(self.path.name + _PARTS_SUFFIX)
        self._part_size = part_size
        self._ids: list[str] = []
        self._vectors: list[np.ndarray] = []
        self._flushed = time.monotonic()
        if self.path.exists() and not self.path.is_file():
            raise FileExistsError(f"cannot write {self.path}: it exists and is no file")
        if self.path.suffix == ".ark":
            require("kaldiio", "kaldi", "Kaldi archives")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")
        self.parts_folder.mkdir(exist_ok=True)
        self._lock = _lock(self.parts_folder / _LOCK_FILE)
        if overwrite:
            for part in self._part_files():
                part.unlink()
        self._earlier: list[Embeddings] = [] if overwrite else self._read_earlier()
        self._prepare_parts_folder()

    def _part_files(self) -> list[Path]:
        return sorted(self.parts_folder.glob("part-*.npz"))

    def _read_earlier(self) -> list[Embeddings]:
        earlier = []
        if self.path.is_file():
            finished = read_embeddings(self.path)
            self._check_policy(finished.policy, self.path)
            earlier.append(finished)
        record = self.parts_folder / _POLICY_FILE
        if record.is_file():
            try:
                policy = EmbeddingPolicy.from_dict(json.loads(record.read_text(encoding="utf-8")))
            except ValueError as error:
                raise ConfigError(f"{record} is damaged ({error}); start anew with --overwrite") from error
            self._check_policy(policy, self.parts_folder)
            earlier.extend(read_embeddings(path) for path in self._part_files())
        return earlier

    def _check_policy(self, policy: EmbeddingPolicy | None, where: Path) -> None:
        differences = ["no record of how they were made"] if policy is None else self.policy.differences(policy)
        if differences:
            raise ConfigError(
                f"{where} holds embeddings that were made differently (this job / there: {'; '.join(differences)}); "
                "give another output, or --overwrite"
            )

    def _prepare_parts_folder(self) -> None:
        remove_temporaries(self.parts_folder)
        with atomic_file(self.parts_folder / _POLICY_FILE) as temporary:
            temporary.write_text(json.dumps(self.policy.to_dict()), encoding="utf-8")

    def check_ids(self, ids: Iterable[str]) -> None:
        """Raise :class:`ConfigError` for ids that the output cannot hold, before anything is computed."""
        if self.path.suffix == ".ark":
            check_kaldi_ids(ids)

    def done(self) -> set[str]:
        """Ids that an earlier job has written."""
        return {i for part in self._earlier for i in part.ids}

    def add(self, ids: Sequence[str], vectors: np.ndarray) -> None:
        """Take (len(ids), embed_dim) vectors; every ``part_size`` of them go to the disk."""
        self._ids.extend(ids)
        self._vectors.extend(np.asarray(vectors, np.float32))
        if len(self._ids) >= self._part_size or time.monotonic() - self._flushed > _MOST_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory to a part file."""
        if not self._ids:
            return
        number = len(self._part_files())
        part = Embeddings(self._ids, np.stack(self._vectors), self.policy)
        write_embeddings(str(self.parts_folder / f"part-{number:06d}.npz"), part)
        self._earlier.append(part)
        self._ids, self._vectors = [], []
        self._flushed = time.monotonic()

    def finish(self, order: Sequence[str]) -> int:
        """Join everything into the output, in the given order of ids (earlier ids that are not in it follow), and remove the parts.

        Returns:
            Number of embeddings in the output.
        """
        self.flush()
        known = set(order)
        rest = [i for part in self._earlier for i in part.ids if i not in known]
        joined = join_embeddings(self._earlier, [*order, *dict.fromkeys(rest)], self.policy)
        write_embeddings(self.specification, joined)
        shutil.rmtree(self.parts_folder, ignore_errors=True)
        return len(joined.ids)

    def __enter__(self) -> EmbeddingStore:
        return self

    def __exit__(self, *error: object) -> None:
        """Keep what was computed, whatever ended the job, and let go of the output."""
        try:
            self.flush()
        finally:
            self._lock.close()


def _lock(path: Path) -> IO[str]:
    """Hold ``path`` for this process; the system lets go of it when the process ends, however it does.

    Raises:
        ConfigError: another process holds it.
    """
    stream = path.open("a", encoding="utf-8")
    if fcntl is not None:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.close()
            raise ConfigError(
                f"another job is writing to {path.parent}; wait for it, or give another output"
            ) from error
    return stream
