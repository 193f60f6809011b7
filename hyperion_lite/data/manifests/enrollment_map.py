"""Which segments each enrolment model is made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.kaldi_io import text_lines
from hyperion_lite.data.manifests.table_io import read_table, table_format, write_table
from hyperion_lite.data.manifests.trial_io import (
    MODEL_NAMES,
    SEGMENT_NAMES,
    Faults,
    find_column,
    first_line,
    id_column,
    names_columns,
)


class EnrollmentMap:
    """Enrolment models and their segments, one or more each.

    Args:
        pairs: (model id, segment id), one entry a segment.
        file: where they come from, for messages.

    Raises:
        ManifestError: a pair occurs twice.
    """

    def __init__(
        self, pairs: Iterable[tuple[str, str]], file: str | os.PathLike[str] | None = None, check: bool = True
    ) -> None:
        self.file = None if file is None else os.fspath(file)
        self.pairs = [(str(model), str(segment)) for model, segment in pairs]
        self._models: dict[str, list[str]] = {}
        for model, segment in self.pairs:
            self._models.setdefault(model, []).append(segment)
        if check:
            seen: dict[tuple[str, str], int] = {}
            for row, pair in enumerate(self.pairs):
                if pair in seen:
                    raise ManifestError(f"{self._where}enrolment {pair} occurs in rows {seen[pair] + 1} and {row + 1}")
                seen[pair] = row

    @property
    def _where(self) -> str:
        return f"{self.file}: " if self.file else ""

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        sep: str | None = None,
        check: bool = True,
        faults: Faults | None = None,
    ) -> EnrollmentMap:
        """Read a table with ``modelid`` and ``segmentid``, or Kaldi's lines ``model segment [segment ...]``.

        Args:
            path: its file.
            sep: separator of a table.
            check: refuse repeated pairs.
            faults: if given, malformed rows are added to it, and stay in the map with the id ``""``.

        Raises:
            FileNotFoundError: no such file.
            ManifestError: malformed; names file and row.
        """
        target = Path(path)
        if table_format(target) == "text" and sep is None and not _is_table(target):
            return cls(_read_lines(target, faults), path, check)
        table = read_table(target, sep)
        table = table.rename_columns([name.strip() for name in table.column_names])
        model = find_column(table.column_names, (*MODEL_NAMES, "id", "speaker"))
        segment = find_column(table.column_names, tuple(name for name in SEGMENT_NAMES if name != model))
        if model is None or segment is None:
            raise ManifestError(
                f"{path}: an enrolment map needs columns modelid and segmentid; it has {table.column_names}"
            )
        models, segments = (id_column(table, name, target, faults).to_pylist() for name in (model, segment))
        return cls(zip(models, segments, strict=True), path, check)

    load = from_file

    @classmethod
    def from_mapping(cls, models: Mapping[str, Iterable[str]]) -> EnrollmentMap:
        """From model id -> segment ids."""
        return cls((model, segment) for model, segments in models.items() for segment in segments)

    @property
    def model_ids(self) -> list[str]:
        """Model ids in the order of their first occurrence."""
        return list(self._models)

    @property
    def segment_ids(self) -> list[str]:
        """Different segment ids in the order of their first occurrence."""
        return list(dict.fromkeys(segment for _, segment in self.pairs))

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.pairs)

    def __contains__(self, model: object) -> bool:
        return model in self._models

    def __getitem__(self, model: str) -> list[str]:
        """Segments of a model.

        Raises:
            KeyError: unknown model.
        """
        if model not in self._models:
            raise KeyError(f"{self._where}no enrolment model {model!r} among {len(self._models)}")
        return list(self._models[model])

    def filter(self, models: Iterable[str] | None = None, segments: Iterable[str] | None = None) -> EnrollmentMap:
        """The pairs of these models and segments; without either, of all."""
        model_set = None if models is None else set(models)
        segment_set = None if segments is None else set(segments)
        kept = (
            (model, segment)
            for model, segment in self.pairs
            if (model_set is None or model in model_set) and (segment_set is None or segment in segment_set)
        )
        return EnrollmentMap(kept, self.file)

    def split(self, part: int, num_parts: int) -> EnrollmentMap:
        """Part ``part`` (from 0) of ``num_parts``; the segments of one model stay together.

        Raises:
            ValueError: no such part.
        """
        if num_parts < 1 or not 0 <= part < num_parts:
            raise ValueError(f"part must be in 0 ... {num_parts - 1}, found {part}")
        models = self.model_ids
        return self.filter(models[len(models) * part // num_parts : len(models) * (part + 1) // num_parts])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a table by suffix (``.csv``, ``.tsv``, ``.parquet``, ``.arrow``)."""
        models, segments = [p[0] for p in self.pairs], [p[1] for p in self.pairs]
        write_table(
            pa.table({"modelid": pa.array(models, pa.string()), "segmentid": pa.array(segments, pa.string())}), path
        )

    def __repr__(self) -> str:
        return f"EnrollmentMap({len(self._models)} models; {len(self.pairs)} segments)"


def _is_table(path: Path) -> bool:
    first = first_line(path, "an enrolment map")
    return "," in first or (path.suffix.lower() == ".tsv" and "\t" in first)


def _read_lines(path: Path, faults: Faults | None) -> Iterator[tuple[str, str]]:
    row = 0
    for place, (number, line) in enumerate(text_lines(path)):
        fields = line.split()
        if len(fields) == 1:
            message = f"expected `model segment [segment ...]`, found {fields[0]!r} alone"
            if faults is None:
                raise ManifestError(f"{path}:{number}: {message}")
            faults.append((row + 1, message))
            fields.append("")
        if place == 0 and len(fields) == 2 and names_columns(fields):
            continue
        for segment in fields[1:]:
            row += 1
            yield fields[0], segment
