"""Tables in files: CSV, TSV, Parquet, Arrow."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hyperion_lite.core.atomic import atomic_file
from hyperion_lite.core.errors import ManifestError

TableFormat = Literal["text", "parquet", "arrow"]

_ARROW_SUFFIXES = frozenset({".arrow", ".feather", ".ipc"})
_PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
_BLOCK_BYTES, _MAX_BLOCK_BYTES = 1 << 24, 1 << 30
_MAGIC: dict[bytes, TableFormat] = {b"PAR1": "parquet", b"ARROW1": "arrow"}


def table_format(path: Path) -> TableFormat:
    """The format of an existing file, by its first bytes: a wrong suffix does not matter.

    Raises:
        FileNotFoundError: no such file.
        ManifestError: a folder.
    """
    if path.is_dir():
        raise ManifestError(f"{path} is a folder, a table file was expected")
    if not path.is_file():
        raise FileNotFoundError(f"no manifest {path}")
    with open(path, "rb") as file:
        head = file.read(6)
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    return "text"


def separator_of(path: Path, header: str) -> str:
    """The separator of a text table: a tab where the name ends in ``.tsv`` or the header holds tabs and no commas."""
    if path.suffix.lower() == ".tsv" or ("\t" in header and "," not in header):
        return "\t"
    return ","


class TextHeader(NamedTuple):
    """First lines of a text table: names of the columns, separator, and how many lines stand before the first row."""

    names: list[str]
    sep: str
    num_lines: int


def read_header(path: Path, sep: str | None = None) -> TextHeader:
    """Column names and separator of a text table; empty lines before the header are passed over.

    Raises:
        ManifestError: empty, or not text.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            number, line = next(((n, line) for n, line in enumerate(file, 1) if line.strip()), (0, ""))
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path}: is not UTF-8 text, Parquet or Arrow ({error.reason} at byte {error.start})"
        ) from error
    if not number:
        raise ManifestError(f"{path}: is empty; a header line with the names of the columns was expected")
    sep = sep or separator_of(path, line)
    return TextHeader(next(csv.reader([line], delimiter=sep)), sep, number)


def read_text(path: Path, sep: str | None = None, on_bad_row: Callable[[int, str], None] | None = None) -> pa.Table:
    """Read CSV or TSV; every column is text without the spaces around it, an empty field is missing.

    Args:
        path: UTF-8 text whose first line names the columns.
        sep: separator; by default from the name and the header.
        on_bad_row: called with the number of the row, from 1, and a description for rows with too few or too many fields, which are
            then left out; without it they are an error.

    Raises:
        ManifestError: names file and line.
    """
    import pyarrow.csv as pa_csv

    names, sep, num_lines = read_header(path, sep)
    if len(set(names)) < len(names):
        raise ManifestError(f"{path}: a column name occurs twice: {names}")

    def handle(row: Any) -> str:
        assert on_bad_row is not None
        on_bad_row(
            int(row.number or 0) - num_lines,
            f"{row.actual_columns} fields, expected {row.expected_columns}: {row.text[:80]!r}",
        )
        return "skip"

    def parse(newlines: bool) -> Any:
        handler = handle if on_bad_row and not newlines else None
        return pa_csv.ParseOptions(delimiter=sep, invalid_row_handler=handler, newlines_in_values=newlines)

    convert = pa_csv.ConvertOptions(
        column_types={name: pa.string() for name in names}, null_values=[""], strings_can_be_null=True
    )
    # row numbers are known only where one thread reads
    read = pa_csv.ReadOptions(
        use_threads=on_bad_row is None, block_size=_BLOCK_BYTES, column_names=names, skip_rows=num_lines
    )
    try:
        return _stripped(pa_csv.read_csv(path, read, parse(False), convert))
    except pa.ArrowInvalid as error:
        # the second: no line break after the header
        if "Empty CSV" in str(error) or "Could not skip initial" in str(error):
            return pa.table({name: pa.array([], pa.string()) for name in names})
        try:
            # slower, but a quoted text may hold a line break, and a line may be longer than a block
            read.block_size = min(max(_BLOCK_BYTES, path.stat().st_size + 1), _MAX_BLOCK_BYTES)
            return _stripped(pa_csv.read_csv(path, read, parse(True), convert))
        except pa.ArrowInvalid:
            raise ManifestError(f"{path}: {error}") from error


def _stripped(table: pa.Table) -> pa.Table:
    # people align columns with spaces, or write one after each comma; no value differs from another in them alone
    columns = {}
    for name in table.column_names:
        text = pc.ascii_trim_whitespace(table.column(name))
        columns[name] = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    return pa.table(columns)


def open_parquet(path: Path) -> Any:
    """Open a Parquet file.

    Raises:
        ManifestError: damaged.
    """
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(f"{path}: is no readable Parquet file: {error}") from error


def read_arrow(path: Path) -> pa.Table:
    """Memory-map an Arrow IPC file (as written by :func:`write_table`; also Feather, which is unpacked if compressed).

    Raises:
        ManifestError: damaged.
    """
    try:
        return pa.ipc.open_file(pa.memory_map(str(path), "r")).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(f"{path}: is no readable Arrow file: {error}") from error


def read_table(path: Path, sep: str | None = None) -> pa.Table:
    """Read any of the formats into memory (Arrow: mapped)."""
    kind = table_format(path)
    if kind == "arrow":
        return read_arrow(path)
    if kind == "parquet":
        return open_parquet(path).read()
    return read_text(path, sep)


def write_table(table: pa.Table, path: str | os.PathLike[str], sep: str | None = None) -> None:
    """Write by suffix: ``.parquet``, ``.arrow``/``.feather``/``.ipc``, ``.tsv``, and CSV for all others. Appears complete or not at all.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    with atomic_file(target) as temporary:
        if suffix in _PARQUET_SUFFIXES:
            import pyarrow.parquet as pq

            pq.write_table(table, temporary)
        elif suffix in _ARROW_SUFFIXES:
            with pa.ipc.new_file(str(temporary), table.schema) as writer:
                writer.write_table(table)
        else:
            _write_text(table, temporary, sep or ("\t" if suffix == ".tsv" else ","))


def _write_text(table: pa.Table, path: Path, sep: str) -> None:
    import pyarrow.csv as pa_csv

    header = _header_line(table.column_names, sep)
    for style in ("none", "needed"):
        try:
            with open(path, "wb") as file:
                file.write(header.encode())
                options = pa_csv.WriteOptions(include_header=False, delimiter=sep, quoting_style=style)
                pa_csv.write_csv(table, file, options)
            return
        except pa.ArrowInvalid:
            # a value that holds the separator, a quote or a line break: the second style quotes text
            if style == "needed":
                raise


def _header_line(names: Sequence[str], sep: str) -> str:
    import io

    buffer = io.StringIO()
    csv.writer(buffer, delimiter=sep, lineterminator="\n").writerow(names)
    return buffer.getvalue()
