"""Opens a manifest file in the cheapest way: small ones into memory, large ones through their memory-mapped copy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hyperion_lite.data.manifests.arrow_cache import BATCH_ROWS, CachedTable, build_cached, find_cached
from hyperion_lite.data.manifests.columns import ColumnRules, normalise
from hyperion_lite.data.manifests.table_io import open_parquet, read_arrow, read_text, table_format

logger = logging.getLogger(__name__)

CACHED_ROWS = 100_000
"""Parquet and Arrow tables with at least so many rows are used through a memory-mapped copy."""

CACHED_TEXT_BYTES = 1 << 23
"""Text tables of at least this size are used through a memory-mapped copy."""


class OpenedTable(NamedTuple):
    """Rows with the names and types of a manifest, and the mapped copy they come from, if any."""

    table: pa.Table
    cached: CachedTable | None


def open_table(path: Path, rules: ColumnRules, kind: str, sep: str | None = None, cache: bool = True) -> OpenedTable:
    """Read ``path`` as a manifest.

    Args:
        path: CSV, TSV, Parquet or Arrow.
        rules: the columns of the manifest.
        kind: name of its class.
        sep: separator of a text file.
        cache: use a memory-mapped copy for large files.
    """
    format_ = table_format(path)
    kind_key = kind if sep is None else f"{kind}.{ord(sep[0])}"
    if format_ == "text":
        large = path.stat().st_size >= CACHED_TEXT_BYTES
    else:
        source = open_parquet(path) if format_ == "parquet" else read_arrow(path)
        num_rows = source.metadata.num_rows if format_ == "parquet" else len(source)
        large = num_rows >= CACHED_ROWS
    if cache and large and rules.unique_id:
        found = find_cached(path, kind_key)
        if found is not None:
            return OpenedTable(found.table, found)
    if format_ == "text":
        whole = normalise(read_text(path, sep), rules, str(path))
        num_rows = len(whole)
    if cache and large and rules.unique_id:

        def make_batches() -> Iterator[pa.Table]:
            return iter([whole]) if format_ == "text" else _normalised(source, rules, str(path))

        built = build_cached(path, kind_key, make_batches, num_rows)
        if built is not None:
            return OpenedTable(built.table, built)
        logger.warning("%s: no folder can take its memory-mapped copy; it is held in the memory of each process", path)
    if format_ == "text":
        return OpenedTable(whole, None)
    return OpenedTable(
        normalise(source.read() if format_ == "parquet" else source, rules, str(path), infer=False), None
    )


def _normalised(source: Any, rules: ColumnRules, file: str) -> Iterator[pa.Table]:
    if isinstance(source, pa.Table):
        pieces: Iterator[pa.RecordBatch] = iter(source.to_batches(max_chunksize=BATCH_ROWS))
    else:
        pieces = source.iter_batches(batch_size=BATCH_ROWS)
    for piece in pieces:
        if piece.num_rows:
            yield normalise(pa.Table.from_batches([piece]), rules, file, infer=False)
