"""The table behind every manifest: Arrow rows, looked up by id."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hyperion_lite.core.config import nearest
from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests import arrow_tools
from hyperion_lite.data.manifests.arrow_cache import UNREADABLE, CachedTable, open_cached
from hyperion_lite.data.manifests.columns import ColumnRules, normalise
from hyperion_lite.data.manifests.id_index import IdIndex
from hyperion_lite.data.manifests.open_table import CACHED_ROWS, open_table
from hyperion_lite.data.manifests.table_io import write_table

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T", bound="InfoTable")
_SMALL_COLUMN = 1 << 16


class InfoTable:
    """Rows with an ``id`` each and any other columns. Immutable: operations give new tables.

    Large files are memory-mapped, so that worker processes share rows and index; see :mod:`.arrow_cache`.

    Args:
        table: rows; columns are renamed and converted as the rules of the class say.
        file: where the rows come from, for messages and relative paths.

    Raises:
        ManifestError: a required column is missing, an id is empty or occurs twice, a value is no number.
    """

    rules: ClassVar[ColumnRules] = ColumnRules("table")

    def __init__(self, table: pa.Table, file: str | os.PathLike[str] | None = None) -> None:
        origin = None if file is None else os.fspath(file)
        self._set(normalise(table, self.rules, origin, infer=False), origin, None)
        self._check()

    def _set(self, table: pa.Table, file: str | None, cached: CachedTable | None) -> None:
        self._table = table
        self._file = file
        self._cached = cached
        self._index: IdIndex | None = cached.index if cached else None
        self._numbers: dict[str, np.ndarray] = dict(cached.numbers) if cached else {}
        self._columns = {name: table.column(name) for name in table.column_names}

    def _check(self) -> None:
        """Checks at construction; subclasses add theirs."""
        if self.rules.unique_id and not (self._cached is not None and self._cached.distinct):
            duplicates = self.id_index.duplicates(self._columns["id"])
            if duplicates:
                row, first = duplicates[0]
                raise ManifestError(
                    f"{self.where}id {self.ids[row]!r} occurs in rows {first + 1} and {row + 1} of a {self.rules.kind}"
                    + (f"; {len(duplicates)} rows repeat an id in all" if len(duplicates) > 1 else "")
                )

    @classmethod
    def _wrap(cls: type[_T], table: pa.Table, file: str | None = None, cached: CachedTable | None = None) -> _T:
        # for rows that were checked before: parts of a table, mapped copies
        self = cls.__new__(cls)
        self._set(table, file, cached)
        return self

    # --- making

    @classmethod
    def from_file(cls: type[_T], path: str | os.PathLike[str], sep: str | None = None, cache: bool = True) -> _T:
        """Read CSV, TSV, Parquet or Arrow; the content decides, not the name.

        Args:
            path: the file.
            sep: separator of a text file; by default from name and header.
            cache: large files are converted once into a memory-mapped copy; ``False`` reads them into memory.

        Raises:
            FileNotFoundError: no such file.
            ManifestError: malformed; names file and row.
        """
        opened = open_table(Path(path), cls.rules, cls.__name__, sep, cache)
        self = cls._wrap(opened.table, os.fspath(path), opened.cached)
        self._check()
        return self

    load = from_file

    @classmethod
    def from_arrow(cls: type[_T], table: pa.Table, file: str | os.PathLike[str] | None = None) -> _T:
        """Wrap an Arrow table."""
        return cls(table, file)

    @classmethod
    def from_pandas(cls: type[_T], frame: pd.DataFrame, file: str | os.PathLike[str] | None = None) -> _T:
        """Copy a DataFrame; an index called ``id`` becomes the column of that name."""
        if frame.index.name is not None and frame.index.name not in frame.columns:
            frame = frame.reset_index()
        try:
            table = pa.Table.from_pandas(frame, preserve_index=False)
        except pa.ArrowException as error:
            raise ManifestError(f"a column mixes types: {'; '.join(map(str, error.args))}") from error
        return cls(table.replace_schema_metadata(None), file)

    @classmethod
    def from_rows(cls: type[_T], rows: Iterable[Mapping[str, Any]], file: str | os.PathLike[str] | None = None) -> _T:
        """Build from mappings of column to value; columns missing in a row are missing values."""
        listed = list(rows)
        names = list(dict.fromkeys(name for row in listed for name in row))
        if not listed:
            names = list(cls.rules.required)
        columns: dict[str, pa.Array] = {}
        for name in names:
            try:
                columns[name] = pa.array([row.get(name) for row in listed])
            except (pa.ArrowException, UnicodeEncodeError) as error:
                raise ManifestError(f"column {name!r} cannot be stored: {error}") from error
        return cls(pa.table(columns), file)

    # --- rows and columns

    @property
    def where(self) -> str:
        """``"file: "`` for messages, or nothing."""
        return f"{self._file}: " if self._file else ""

    @property
    def file(self) -> str | None:
        """The file the rows come from."""
        return self._file

    @property
    def table(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._table

    @property
    def column_names(self) -> list[str]:
        """Names of all columns, ``id`` first."""
        return list(self._columns)

    @property
    def ids(self) -> arrow_tools.TextColumn:
        """The ids in row order: a sequence of ``str`` made on demand."""
        return arrow_tools.TextColumn(self._columns["id"])

    @property
    def id_index(self) -> IdIndex:
        """Index of the ids."""
        if self._index is None:
            self._index = IdIndex.build(self._columns["id"])
        return self._index

    def __len__(self) -> int:
        return self._table.num_rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._find(id) >= 0

    def __getitem__(self, id: str) -> dict[str, Any]:
        return self.row(self.index(id))

    def row(self, row: int) -> dict[str, Any]:
        """Row number ``row`` (from 0) as a new dictionary."""
        row = range(len(self))[row]
        return {name: self._value(name, row) for name in self._columns}

    def values(self, row: int, names: Iterable[str]) -> list[Any]:
        """The values of some columns in row number ``row``, which must be one."""
        return [self._value(name, row) for name in names]

    @property
    def is_mapped(self) -> bool:
        """Whether the rows lie in a memory-mapped file that processes share."""
        return self._cached is not None

    def get(self, id: str, name: str) -> Any:
        """One value."""
        self._column(name)
        return self._value(name, self.index(id))

    def _value(self, name: str, row: int) -> Any:
        reader = self._cached.rows if self._cached is not None else None
        if reader is not None and reader.can_read(name):
            return reader.value(name, row)
        return self._columns[name][row].as_py()

    def _find(self, id: str) -> int:
        if self._cached is not None and self._cached.rows is not None:
            return self._cached.rows.find(id)
        return self.id_index.find_one(id, self._columns["id"])

    def index(self, id: str) -> int:
        """Row of ``id``, from 0.

        Raises:
            KeyError: unknown.
        """
        row = self._find(str(id))
        if row < 0:
            raise KeyError(self._unknown([str(id)]))
        return row

    def indices(self, ids: Iterable[str] | pa.ChunkedArray) -> np.ndarray:
        """Rows (len(ids),) int64 of many ids at once.

        Raises:
            KeyError: some are unknown; names the first.
        """
        wanted = arrow_tools.id_column(ids)
        rows = self.find(wanted)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            raise KeyError(self._unknown([wanted[int(i)].as_py() for i in missing[:3]], len(missing)))
        return rows

    def find(self, ids: Iterable[str] | pa.ChunkedArray) -> np.ndarray:
        """As :meth:`indices`, with -1 for unknown ids."""
        rows = self.id_index.find(arrow_tools.id_column(ids), self._columns["id"])
        if self._cached is not None:
            self._cached.maps.release()
        return rows

    def _unknown(self, ids: Sequence[str], count: int = 1) -> str:
        hint = nearest(ids[0], self.ids) if len(self) <= 10_000 else ""
        more = f" and {count - 1} more ids" if count > 1 else ""
        return f"{self.where}no row {ids[0]!r}{more} in this {self.rules.kind} of {len(self)} rows{hint}"

    def has(self, name: str) -> bool:
        """Whether there is a column ``name``."""
        return name in self._columns

    def _column(self, name: str) -> pa.ChunkedArray:
        if name not in self._columns:
            raise KeyError(
                f"{self.where}no column {name!r}{nearest(name, self._columns)}; columns: {self.column_names}"
            )
        return self._columns[name]

    def column(self, name: str) -> np.ndarray:
        """A column (rows,) as a numpy array: numbers as a read-only view where possible, text as an object array of ``str``.

        For text columns of large tables use :meth:`codes` (categories) or :attr:`ids`.

        Raises:
            KeyError: no such column.
        """
        column = self._column(name)
        if name not in self._numbers:
            values = arrow_tools.to_numpy(column)
            if values.dtype == object and len(values) > _SMALL_COLUMN:
                return values
            self._numbers[name] = values
        return self._numbers[name]

    def codes(self, name: str) -> tuple[np.ndarray, list[str]]:
        """A column of categories, such as the speaker, as int32 codes (rows,), -1 for missing, and the sorted list of categories."""
        return arrow_tools.codes_of(self._column(name))

    def unique(self, name: str) -> list[str]:
        """The different values of a column as sorted strings, missing ones left out."""
        return sorted(v for v in pc.unique(arrow_tools.to_text(self._column(name))).to_pylist() if v is not None)

    # --- new tables from this one

    def take(self: _T, rows: np.ndarray | Sequence[int]) -> _T:
        """The rows with these numbers, in that order; a number must not occur twice where ids are unique."""
        taken = self._wrap(arrow_tools.take_rows(self._table, np.asarray(rows, np.int64)), self._file)
        if len(taken) >= CACHED_ROWS:
            # made here once, it is shared with forked workers; each of them would make its own otherwise
            taken._index = IdIndex.build(taken._columns["id"])
        return taken

    def filter(
        self: _T,
        ids: Iterable[str] | None = None,
        *,
        by: str | None = None,
        values: Iterable[Any] | None = None,
        predicate: Callable[[dict[str, Any]], bool] | None = None,
        keep: bool = True,
    ) -> _T:
        """The rows with these ids, with these ``values`` in column ``by``, or for which ``predicate(row)`` holds; row order is kept.

        Args:
            ids: ids to keep; each must exist.
            by: column that ``values`` are compared with, as text.
            values: accepted values.
            predicate: called with each row as a dictionary.
            keep: ``False`` gives the other rows.

        Raises:
            KeyError: an id or the column does not exist.
            ValueError: not exactly one criterion was given.
        """
        if sum(x is not None for x in (ids, by, predicate)) != 1 or (by is None) != (values is None):
            raise ValueError("filter needs exactly one of: ids, by with values, predicate")
        mask = np.zeros(len(self), bool)
        if ids is not None:
            mask[self.indices(ids)] = True
        elif by is not None and values is not None:
            accepted = pa.array([str(v) for v in values], pa.string())
            mask = pc.is_in(arrow_tools.to_text(self._column(by)), value_set=accepted).to_numpy().astype(bool)
        elif predicate is not None:
            mask = np.fromiter((bool(predicate(self.row(i))) for i in range(len(self))), bool, len(self))
        return self.take(np.flatnonzero(mask == keep))

    def sort(self: _T, by: str = "id", descending: bool = False) -> _T:
        """Sorted by a column."""
        order = pc.sort_indices(self._table, [(by, "descending" if descending else "ascending")])
        return self.take(order.to_numpy())

    def split(self: _T, part: int, num_parts: int, group_by: str | None = None) -> _T:
        """Part ``part`` (from 0) of ``num_parts`` of like size; with ``group_by``, rows of one group stay together.

        Raises:
            ValueError: no such part.
        """
        if num_parts < 1 or not 0 <= part < num_parts:
            raise ValueError(f"part must be in 0 ... {num_parts - 1}, found {part}")
        if group_by is None:
            bounds = len(self) * np.arange(num_parts + 1) // num_parts
            return self.take(np.arange(bounds[part], bounds[part + 1]))
        codes, values = self.codes(group_by)
        if len(codes) and codes.min() < 0:
            raise ManifestError(f"{self.where}row {int(np.argmin(codes)) + 1} has no {group_by!r} to split by")
        # whole groups in order, each to the part in which the middle of its rows falls
        counts = np.bincount(codes, minlength=len(values))
        middle = np.cumsum(counts) - counts / 2
        owner = np.minimum((middle * num_parts / max(1, len(self))).astype(int), num_parts - 1)
        return self.take(np.flatnonzero(owner[codes] == part))

    @classmethod
    def concatenate(cls: type[_T], tables: Sequence[_T]) -> _T:
        """The rows of several tables; a column that a table lacks is missing in its rows.

        Raises:
            ManifestError: an id occurs twice, or a column holds text in one table and numbers in another.
        """
        if not tables:
            raise ValueError("nothing to concatenate")
        try:
            joined = pa.concat_tables([t.table for t in tables], promote_options="permissive")
        except pa.ArrowException as error:
            raise ManifestError(f"the columns of {[t.file for t in tables]} do not fit together: {error}") from error
        return cls(joined, None)

    def with_column(self: _T, name: str, values: Any) -> _T:
        """With a column added or replaced; ``values`` has one entry a row."""
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
        if len(array) != len(self):
            raise ValueError(f"{len(array)} values for {len(self)} rows in column {name!r}")
        columns = {**self._columns, name: arrow_tools.as_chunked(array)}
        table = normalise(pa.table(columns), self.rules, self._file, infer=False)
        return self._wrap(table, self._file) if name != "id" else type(self)(table, self._file)

    def without_columns(self: _T, names: Iterable[str]) -> _T:
        """Without some columns."""
        dropped = list(names)
        for name in dropped:
            self._column(name)
        return type(self)._wrap(self._table.drop_columns(dropped), self._file)

    # --- out

    def save(self, path: str | os.PathLike[str], sep: str | None = None) -> None:
        """Write by suffix: ``.csv``, ``.tsv``, ``.parquet``, ``.arrow``. The file appears complete or not at all."""
        write_table(self._table, path, sep)

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with a column ``id``; a copy."""
        return self._table.to_pandas()

    def equals(self, other: InfoTable) -> bool:
        """Same class, same columns, same rows in the same order."""
        if type(self) is not type(other) or self._table.schema != other._table.schema or len(self) != len(other):
            return False
        return all(arrow_tools.same_column(column, other._columns[name]) for name, column in self._columns.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows; {', '.join(self.column_names)})"

    def __getstate__(self) -> dict[str, Any]:
        if self._cached is not None:
            return {"file": self._file, "folder": self._cached.folder}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        return {"file": self._file, "rows": sink.getvalue().to_pybytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "rows" in state:
            self._set(pa.ipc.open_stream(pa.py_buffer(state["rows"])).read_all(), state["file"], None)
            return
        try:
            cached = open_cached(state["folder"])
        except UNREADABLE as error:
            raise ManifestError(
                f"{state['file']}: its memory-mapped copy {state['folder']} is gone or damaged, as when the manifest "
                "changed while it was in use; start again"
            ) from error
        self._set(cached.table, state["file"], cached)
