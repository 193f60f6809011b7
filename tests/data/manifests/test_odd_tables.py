"""Tables as other programs, and hands, write them."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests import EnrollmentMap, SegmentSet, TrialKey, TrialNdx, VADSet, table_io
from hyperion_lite.data.manifests.hyper_dataset import HyperDataset
from hyperion_lite.data.manifests.problems import Problem, read_loosely
from hyperion_lite.data.manifests.validate import validate_dataset


def write(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [(".5", 0.5), ("+1.5", 1.5), ("1.", 1.0), ("01.50", 1.5), ("1E-1", 0.1), ("-.5e1", -5.0), ("Infinity", math.inf)],
)
def test_every_way_to_write_a_number(tmp_path: Path, text: str, value: float) -> None:
    assert SegmentSet.from_file(write(tmp_path, f"id,duration\na,{text}\n")).duration[0] == value


@pytest.mark.parametrize("text", ["", "NaN", "nan", "NA", "N/A", "null", "None"])
def test_every_way_to_write_no_number(tmp_path: Path, text: str) -> None:
    assert math.isnan(SegmentSet.from_file(write(tmp_path, f"id,duration\na,{text}\n")).duration[0])


@pytest.mark.parametrize("text", ["x", "1,5", "1.5s", ".", "+", "1e", "--1", "0x10", "1_000"])
def test_what_is_no_number_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ManifestError, match=r"row 1: duration .* is not a number"):
        SegmentSet.from_file(write(tmp_path, f'id,duration\na,"{text}"\n'))


@pytest.mark.parametrize("content", ["id,duration", "id,duration\n", "\n\r\nid,duration\n", "\ufeffid,duration\r\n"])
def test_a_header_without_rows_is_an_empty_table(tmp_path: Path, content: str) -> None:
    table = SegmentSet.from_file(write(tmp_path, content))
    assert len(table) == 0 and table.column_names == ["id", "duration"]


def test_empty_lines_before_the_header_are_passed_over(tmp_path: Path) -> None:
    assert SegmentSet.from_file(write(tmp_path, "\n  \nid,duration\na,1\n")).ids == ["a"]


def test_a_line_longer_than_a_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_io, "_BLOCK_BYTES", 1000)
    text = "x" * 5000
    table = SegmentSet.from_file(write(tmp_path, f"id,text\na,b\nc,{text}\nd,e\n"))
    assert table.get("c", "text") == text and table.ids == ["a", "c", "d"]


@pytest.mark.parametrize("values", [pa.array([1, 2], pa.timestamp("s")), pa.array([[1.0], [2.0]])])
def test_a_column_that_cannot_be_numbers_is_named(tmp_path: Path, values: pa.Array) -> None:
    pq.write_table(pa.table({"id": ["a", "b"], "duration": values}), tmp_path / "s.parquet")
    with pytest.raises(ManifestError, match=r"s.parquet: column 'duration' must hold numbers"):
        SegmentSet.from_file(tmp_path / "s.parquet")


def test_a_column_of_several_types_is_named() -> None:
    with pytest.raises(ManifestError, match="column 'x'"):
        SegmentSet.from_rows([{"id": "a", "x": 1}, {"id": "b", "x": "text"}])
    with pytest.raises(ManifestError, match="column x"):
        SegmentSet.from_pandas(pd.DataFrame({"id": ["a", "b"], "x": [1, "text"]}))


def test_text_that_utf8_cannot_hold_is_simply_not_there() -> None:
    assert "\ud800" not in SegmentSet.from_rows([{"id": "a"}])


@pytest.mark.parametrize("kind", [TrialKey, TrialNdx, EnrollmentMap])
def test_lists_that_are_not_utf8_are_named(tmp_path: Path, kind: type) -> None:
    with pytest.raises(ManifestError, match=r"list.txt:2: not UTF-8"):
        kind.from_file(write(tmp_path, "m a target\nmü a target\n".encode("latin-1"), "list.txt"))


def test_a_header_of_a_list_is_not_an_entry(tmp_path: Path) -> None:
    trials = write(tmp_path, "\nmodelid segmentid\nm a\n", "trials.txt")
    assert list(TrialNdx.from_file(trials)) == [("m", "a")]
    key = write(tmp_path, "modelid segmentid targettype\nm a target\n", "key.txt")
    assert TrialKey.from_file(key).target.tolist() == [True]
    models = write(tmp_path, "modelid\tsegmentid\nm\ta\n", "enroll.txt")
    assert EnrollmentMap.from_file(models).pairs == [("m", "a")]
    with pytest.raises(ManifestError, match="no trial after its header"):
        TrialNdx.from_file(write(tmp_path, "modelid segmentid\n", "none.txt"))


def test_white_space_around_the_columns_of_a_list(tmp_path: Path) -> None:
    path = write(tmp_path, "modelid, segmentid, targettype\nm,a,target\n")
    assert list(TrialKey.from_file(path)) == [("m", "a")]


@pytest.mark.parametrize("interval", [",1", "0,", "0,-1", "inf,1"])
def test_speech_needs_a_start_and_a_duration(tmp_path: Path, interval: str) -> None:
    path = write(tmp_path, f"id,start,duration\na,0,1\na,{interval}\n", "vad.csv")
    with pytest.raises(ManifestError, match=r"vad.csv: row 2: 'a': an interval needs"):
        VADSet.from_file(path)
    problems = validate_dataset(HyperDataset(SegmentSet.from_rows([{"id": "a"}]), vad=path), progress=False)
    assert [problem.row for problem in problems] == [2]


def test_spaces_around_cells_do_not_count(tmp_path: Path) -> None:
    table = SegmentSet.from_file(write(tmp_path, "id , duration, speaker\n a , 1.5 , x y \nb,  ,\t007\n"))
    assert list(table.ids) == ["a", "b"] and table["a"]["speaker"] == "x y" and table["b"]["speaker"] == "007"
    assert table.duration[0] == 1.5 and math.isnan(table.duration[1])


def test_rows_are_counted_from_the_header_whatever_stands_before_it(tmp_path: Path) -> None:
    path = write(tmp_path, "\n\nid,duration\na,1\nb\n\nc,x\n", "segments.csv")
    problems: list[Problem] = []
    loose = read_loosely(SegmentSet, path, "segments", problems)
    assert loose is not None and loose.row_numbers.tolist() == [1, 3]
    assert [(problem.kind, problem.row) for problem in problems] == [("malformed row", 2), ("bad value", 3)]
