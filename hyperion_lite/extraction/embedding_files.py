"""Files of embeddings: ``.npz``, ``.parquet`` and Kaldi archives, each with the record of how they were made."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ConfigError, HyperionLiteError
from hyperion_lite.core.extras import require
from hyperion_lite.extraction.policy import EmbeddingPolicy

_KALDI_PREFIXES = ("ark,scp:", "ark:")
_POLICY_KEY = b"hyperion_lite.policy"


class EmbeddingFileError(HyperionLiteError, ValueError):
    """A file of embeddings cannot be read."""


@dataclass(frozen=True)
class Embeddings:
    """Embeddings by id.

    Attributes:
        ids: one id a row.
        vectors: (len(ids), embed_dim) float32.
        policy: how they were made; ``None`` for files of other tools.
    """

    ids: list[str]
    vectors: np.ndarray
    policy: EmbeddingPolicy | None

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.ids):
            raise EmbeddingFileError(f"{len(self.ids)} ids, but vectors of shape {self.vectors.shape}")


def output_path(specification: str) -> Path:
    """The main file that an output specification (``out.npz``, ``out.parquet``, ``ark,scp:out``) stands for.

    Raises:
        ConfigError: unknown kind; lists the known ones.
    """
    for prefix in _KALDI_PREFIXES:
        if specification.startswith(prefix):
            first = specification[len(prefix) :].split(",")[0]
            return Path(first if first.endswith(".ark") else f"{first}.ark")
    path = Path(specification)
    if path.suffix not in (".npz", ".parquet"):
        raise ConfigError(f"unknown kind of output {specification!r}; expected out.npz, out.parquet or ark,scp:out")
    return path


def _scp_path(specification: str, ark: Path) -> Path | None:
    if specification.startswith("ark:"):
        return None
    names = specification.split(":", 1)[1].split(",")
    return Path(names[1]) if len(names) > 1 else ark.with_suffix(".scp")


def write_embeddings(specification: str, embeddings: Embeddings) -> None:
    """Write ``embeddings`` atomically in the form that ``specification`` names (see :func:`output_path`)."""
    path = output_path(specification)
    if path.suffix == ".npz":
        _write_npz(path, embeddings)
    elif path.suffix == ".parquet":
        _write_parquet(path, embeddings)
    else:
        _write_kaldi(path, _scp_path(specification, path), embeddings)


def read_embeddings(path: str | Path) -> Embeddings:
    """Read what :func:`write_embeddings` wrote; Kaldi archives by their ``.scp`` or ``.ark``.

    Raises:
        FileNotFoundError: nothing there.
        EmbeddingFileError: not such a file.
    """
    text = str(path)
    target = output_path(text) if text.startswith(_KALDI_PREFIXES) else Path(text.removeprefix("scp:"))
    if not target.is_file():
        raise FileNotFoundError(f"there are no embeddings at {target}")
    readers = {".npz": _read_npz, ".parquet": _read_parquet, ".ark": _read_kaldi, ".scp": _read_kaldi}
    if target.suffix not in readers:
        raise EmbeddingFileError(f"{target}: expected a file ending in {', '.join(readers)}")
    return readers[target.suffix](target)


def _policy_text(policy: EmbeddingPolicy | None) -> str:
    return json.dumps(policy.to_dict() if policy is not None else {})


def _policy_from(text: str) -> EmbeddingPolicy | None:
    document = json.loads(text)
    return EmbeddingPolicy.from_dict(document) if document else None


def _write_npz(path: Path, embeddings: Embeddings) -> None:
    with atomic_file(path) as temporary, temporary.open("wb") as stream:
        np.savez(
            stream,
            ids=np.asarray(embeddings.ids, dtype=np.str_),
            embeddings=embeddings.vectors,
            policy=np.asarray(_policy_text(embeddings.policy)),
        )


def _read_npz(path: Path) -> Embeddings:
    try:
        with np.load(path, allow_pickle=False) as content:
            policy = _policy_from(str(content["policy"])) if "policy" in content else None
            return Embeddings([str(i) for i in content["ids"]], np.asarray(content["embeddings"], np.float32), policy)
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        # a TypeError: the file is a single array
        raise EmbeddingFileError(f"{path} is no file of embeddings: {error}") from error


def _write_parquet(path: Path, embeddings: Embeddings) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    dim = embeddings.vectors.shape[1] if embeddings.vectors.size else 0
    values = pa.array(np.ascontiguousarray(embeddings.vectors, np.float32).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(values, dim) if dim else pa.array([], pa.list_(pa.float32()))
    table = pa.table({"id": pa.array(embeddings.ids, pa.string()), "embedding": column})
    table = table.replace_schema_metadata({_POLICY_KEY: _policy_text(embeddings.policy)})
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary)


def _read_parquet(path: Path) -> Embeddings:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        ids = table["id"].to_pylist()
        column = table["embedding"].combine_chunks()
    except (pa.ArrowException, KeyError, OSError) as error:
        raise EmbeddingFileError(f"{path} is no file of embeddings: {error}") from error
    vectors = np.asarray(column.flatten(), np.float32).reshape(len(ids), -1) if ids else np.zeros((0, 0), np.float32)
    metadata = table.schema.metadata or {}
    return Embeddings(ids, vectors, _policy_from(metadata.get(_POLICY_KEY, b"{}").decode()))


def _kaldi_policy_path(path: Path) -> Path:
    return path.with_suffix(".policy.json")


def check_kaldi_ids(ids: Iterable[str]) -> None:
    """Raise :class:`ConfigError` for the first id that a Kaldi archive cannot hold."""
    for id in ids:
        if not id or any(c.isspace() for c in id):
            raise ConfigError(
                f"ids in a Kaldi archive cannot be empty or hold spaces, as {id!r}; write .npz or .parquet"
            )


def _write_kaldi(path: Path, scp: Path | None, embeddings: Embeddings) -> None:
    kaldiio = require("kaldiio", "kaldi", "Kaldi archives")
    check_kaldi_ids(embeddings.ids)
    lines = []
    with atomic_file(path) as temporary:
        with temporary.open("wb") as stream:
            for key, vector in zip(embeddings.ids, embeddings.vectors, strict=True):
                lines.append(f"{key} {path}:{stream.tell() + len(key.encode()) + 1}\n")
                kaldiio.save_ark(stream, {key: np.asarray(vector, np.float32)})
        with atomic_file(_kaldi_policy_path(path)) as policy_file:
            policy_file.write_text(_policy_text(embeddings.policy) + "\n", encoding="utf-8")
    if scp is not None:
        with atomic_file(scp) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")


def _read_kaldi(path: Path) -> Embeddings:
    kaldiio = require("kaldiio", "kaldi", "Kaldi archives")
    try:
        if path.suffix == ".scp":
            pairs = list(kaldiio.load_scp_sequential(str(path)))
        else:
            pairs = list(kaldiio.load_ark(str(path)))
        vectors = _stack([np.asarray(v, np.float32) for _, v in pairs])
    except (OSError, ValueError, RuntimeError, EOFError) as error:
        raise EmbeddingFileError(f"{path} is no archive of embeddings: {error}") from error
    record = _kaldi_policy_path(path)
    policy = _policy_from(record.read_text(encoding="utf-8")) if record.is_file() else None
    return Embeddings([key for key, _ in pairs], vectors, policy)


def _stack(vectors: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)


def join_embeddings(parts: Iterable[Embeddings], order: Sequence[str], policy: EmbeddingPolicy) -> Embeddings:
    """All rows of ``parts`` in the given order of ids; ids that no part has are left out, a later part wins."""
    rows: dict[str, np.ndarray] = {}
    for part in parts:
        rows.update(zip(part.ids, part.vectors, strict=True))
    ids = [i for i in order if i in rows]
    return Embeddings(ids, _stack([rows[i] for i in ids]), policy)
