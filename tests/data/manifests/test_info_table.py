"""Tables by id: reading, types, look-up, and the operations that make new tables."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests import ClassInfo, RecordingSet, SegmentSet, id_index
from hyperion_lite.data.manifests.arrow_tools import take
from hyperion_lite.data.manifests.id_index import IdIndex, hash_one, hash_text

SEGMENTS = """id,recording,start,duration,speaker,snr
seg1,rec1,0.0,2.5,spk1,10
seg2,rec1,2.5,3.0,spk2,20
seg3,rec2,0.5,1.5,spk1,5
"""

ids_strategy = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=0, max_size=12), unique=True
)


@pytest.fixture
def segments(tmp_path: Path) -> SegmentSet:
    (tmp_path / "segments.csv").write_text(SEGMENTS)
    return SegmentSet.from_file(tmp_path / "segments.csv")


class TestReading:
    @pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "arrow"])
    def test_every_format_gives_the_same_table_back(self, segments: SegmentSet, tmp_path: Path, suffix: str) -> None:
        segments.save(tmp_path / f"again.{suffix}")
        again = SegmentSet.from_file(tmp_path / f"again.{suffix}")
        assert again.equals(segments)
        assert again.file == str(tmp_path / f"again.{suffix}")

    def test_the_content_decides_not_the_suffix(self, segments: SegmentSet, tmp_path: Path) -> None:
        segments.save(tmp_path / "s.parquet")
        (tmp_path / "s.parquet").rename(tmp_path / "s.csv")
        assert SegmentSet.from_file(tmp_path / "s.csv").equals(segments)

    def test_other_spellings_of_the_columns(self, tmp_path: Path) -> None:
        (tmp_path / "s.csv").write_text("segmentid,recordingid,start,duration\na,r,0,1\n")
        assert SegmentSet.from_file(tmp_path / "s.csv")["a"] == {
            "id": "a",
            "recording": "r",
            "start": 0.0,
            "duration": 1.0,
        }
        (tmp_path / "r.csv").write_text("recordingid,filename,sample_rate,duration\nr,x.wav,16000,1\n")
        row = RecordingSet.from_file(tmp_path / "r.csv")["r"]
        assert row == {"id": "r", "storage_path": "x.wav", "sample_freq": 16000, "duration": 1.0}

    def test_ids_and_speakers_that_look_like_numbers_stay_text(self, tmp_path: Path) -> None:
        (tmp_path / "s.csv").write_text("id,duration,speaker,age,code\n001,1,7,30,01\n1,2,8,40,02\n")
        table = SegmentSet.from_file(tmp_path / "s.csv")
        assert list(table.ids) == ["001", "1"]
        assert table["001"] == {"id": "001", "duration": 1.0, "speaker": "7", "age": 30, "code": "01"}

    def test_numeric_ids_of_a_data_frame_become_text(self) -> None:
        table = SegmentSet.from_pandas(pd.DataFrame({"id": [1, 2], "duration": [1, 2], "speaker": [10, 20]}))
        assert list(table.ids) == ["1", "2"]
        assert table.column("duration").dtype == np.float64
        assert table.codes("speaker")[1] == ["10", "20"]

    def test_quotes_separators_and_unicode_in_values(self, tmp_path: Path) -> None:
        table = SegmentSet.from_rows([{"id": "a,b", "text": 'say "hé", then'}, {"id": "ñ", "text": "two\nlines"}])
        table.save(tmp_path / "s.csv")
        assert SegmentSet.from_file(tmp_path / "s.csv").equals(table)

    def test_byte_order_mark_and_windows_line_ends(self, tmp_path: Path) -> None:
        (tmp_path / "s.csv").write_bytes(b"\xef\xbb\xbfid,duration\r\na,1.5\r\nb,2\r\n")
        assert SegmentSet.from_file(tmp_path / "s.csv").column("duration").tolist() == [1.5, 2.0]

    def test_empty_fields_are_missing(self, tmp_path: Path) -> None:
        (tmp_path / "s.csv").write_text("id,start,duration,speaker,age\na,,,,\nb,1,2,x,3\n")
        table = SegmentSet.from_file(tmp_path / "s.csv")
        assert np.isnan(table.duration[0]) and table.start.tolist() == [0.0, 1.0]
        codes, speakers = table.codes("speaker")
        assert codes.tolist() == [-1, 0] and speakers == ["x"]
        assert table["a"]["age"] is None and np.isnan(table.column("age")[0])

    def test_a_header_alone_is_an_empty_table(self, tmp_path: Path) -> None:
        (tmp_path / "s.csv").write_text("id,duration\n")
        table = SegmentSet.from_file(tmp_path / "s.csv")
        assert len(table) == 0 and list(table.ids) == [] and "a" not in table

    def test_an_index_called_id_and_leftovers_of_pandas(self, tmp_path: Path) -> None:
        frame = pd.DataFrame({"duration": [1.0, 2.0]}, index=pd.Index(["a", "b"], name="id"))
        assert list(SegmentSet.from_pandas(frame).ids) == ["a", "b"]
        frame.reset_index().to_csv(tmp_path / "s.csv")
        assert SegmentSet.from_file(tmp_path / "s.csv").column_names == ["id", "duration"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "is empty"),
            ("speaker,duration\nx,1\n", "needs a column 'id'"),
            ("id,duration\na,1\nb,2\na,3\n", "'a' occurs in rows 1 and 3"),
            ("id,duration\na,1\nb,soon\n", "row 2: duration 'soon' is not a number"),
            ("id,duration\na,1\n,2\n", "row 2: 'id' is empty"),
            ("id,duration\na,1\nb,2,3\n", "Expected 2 columns, got 3"),
            ("id,id\na,b\n", "'id'|twice"),
            ("id,segmentid,segment_id\na,b,c\n", None),
        ],
    )
    def test_malformed_tables_name_file_and_row(self, tmp_path: Path, content: str, message: str | None) -> None:
        path = tmp_path / "bad.csv"
        path.write_text(content)
        if message is None:
            assert SegmentSet.from_file(path).column_names == ["id", "segmentid", "segment_id"]
            return
        with pytest.raises(ManifestError, match=message) as caught:
            SegmentSet.from_file(path)
        assert "bad.csv" in str(caught.value)

    @pytest.mark.parametrize("content", [b"\x00\xff\xfe\x01binary", b"PAR1 broken", b"ARROW1\x00\x00broken"])
    def test_files_that_are_no_tables(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.csv").write_bytes(content)
        with pytest.raises(ManifestError, match=r"x\.csv"):
            SegmentSet.from_file(tmp_path / "x.csv")

    def test_missing_files_and_folders(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="none"):
            SegmentSet.from_file(tmp_path / "none.csv")
        with pytest.raises(ManifestError, match="folder"):
            SegmentSet.from_file(tmp_path)


class TestLookUp:
    def test_rows_values_and_indices(self, segments: SegmentSet) -> None:
        assert segments["seg2"] == {
            "id": "seg2",
            "recording": "rec1",
            "start": 2.5,
            "duration": 3.0,
            "speaker": "spk2",
            "snr": 20,
        }
        assert segments.get("seg3", "speaker") == "spk1"
        assert segments.index("seg3") == 2
        assert segments.indices(["seg3", "seg1", "seg3"]).tolist() == [2, 0, 2]
        assert segments.find(["seg3", "zzz"]).tolist() == [2, -1]
        assert "seg1" in segments and "seg" not in segments and 3 not in segments
        assert segments.recording_id("seg3") == "rec2"

    def test_unknown_ids_and_columns_name_the_nearest(self, segments: SegmentSet) -> None:
        for call in (
            lambda: segments["seg9"],
            lambda: segments.indices(["seg1", "seg9"]),
            lambda: segments.index("seg9"),
        ):
            with pytest.raises(KeyError, match=r"segments\.csv.*'seg9'.*did you mean"):
                call()
        with pytest.raises(KeyError, match="'speakr', did you mean 'speaker'"):
            segments.column("speakr")

    def test_ids_are_a_sequence(self, segments: SegmentSet) -> None:
        ids = segments.ids
        assert ids == ["seg1", "seg2", "seg3"] and ids != ["seg1"]
        assert (ids[0], ids[-1], ids[1:], ids[::2], len(ids)) == ("seg1", "seg3", ["seg2", "seg3"], ["seg1", "seg3"], 3)
        assert "seg2" in ids and list(reversed(ids)) == ["seg3", "seg2", "seg1"]
        assert np.asarray(ids).tolist() == list(ids)
        with pytest.raises(IndexError):
            ids[3]

    def test_a_number_column_is_a_view(self, segments: SegmentSet) -> None:
        duration = segments.column("duration")
        assert duration.dtype == np.float64 and not duration.flags.writeable
        assert np.shares_memory(duration, segments.column("duration"))

    @given(ids_strategy, st.integers(0, 5))
    def test_every_id_is_found_in_its_row_and_no_other(self, ids: list[str], chunk: int) -> None:
        column = pa.chunked_array([ids[:chunk], ids[chunk:]], type=pa.string())
        index = IdIndex.build(column)
        assert index.find(column, column).tolist() == list(range(len(ids)))
        assert [index.find_one(i, column) for i in ids] == list(range(len(ids)))
        for other in ("", "a", "\x00", "a" * 13):
            if other not in ids:
                assert index.find_one(other, column) == -1
                assert index.find(pa.chunked_array([[other]]), column).tolist() == [-1]
        assert index.duplicates(column) == []

    @given(st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=20))
    def test_duplicates_are_the_rows_that_repeat_an_earlier_id(self, ids: list[str]) -> None:
        column = pa.chunked_array([ids], type=pa.string())
        index = IdIndex.build(column)
        expected = [(row, ids.index(id)) for row, id in enumerate(ids) if ids.index(id) < row]
        assert index.duplicates(column) == expected
        for id in set(ids):
            assert index.find_all(id, column).tolist() == [row for row, other in enumerate(ids) if other == id]

    def test_equal_hashes_of_different_ids_do_not_mislead(self) -> None:
        column = pa.chunked_array([["a", "b", "c"]])
        index = IdIndex.from_hashes(np.full(3, hash_one("b"), np.uint64))
        assert index.find_one("b", column) == 1
        assert index.find(pa.chunked_array([["b"]]), column).tolist() == [1]
        assert index.duplicates(column) == []

    @given(st.lists(st.text(max_size=30), min_size=1, max_size=30))
    def test_hashes_of_one_and_of_many_agree(self, texts: list[str]) -> None:
        texts = [t.encode("utf-8", "ignore").decode() for t in texts]
        sliced = pa.chunked_array([pa.array(["zz", *texts, "zz"])]).slice(1, len(texts))
        assert hash_text(sliced).tolist() == [hash_one(t) for t in texts]

    @given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40) | st.integers(2**63, 2**63 + 40), max_size=50))
    def test_the_order_of_hashes_is_the_stable_one(self, values: list[int]) -> None:
        hashes = np.array(values, np.uint64)
        expected = np.argsort(hashes, kind="stable")
        index = IdIndex.from_hashes(hashes)
        assert index.rows.tolist() == expected.tolist() and index.hashes.tolist() == sorted(values)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(id_index, "_MANY_TIES", 0)
            assert IdIndex.from_hashes(hashes).rows.tolist() == expected.tolist()

    def test_hashes_of_blocks_and_of_long_ids(self) -> None:
        texts = ["x" * 300_000, "", *[f"id{i}" for i in range(70_000)], "y" * 200_000]
        hashes = hash_text(pa.chunked_array([texts]))
        assert len(np.unique(hashes)) == len(texts)
        assert hashes[[0, 1, 2, -1]].tolist() == [hash_one(texts[i]) for i in (0, 1, 2, -1)]


class TestOperations:
    def test_filter(self, segments: SegmentSet) -> None:
        assert segments.filter(["seg3", "seg1"]).ids == ["seg1", "seg3"]
        assert segments.filter(by="speaker", values=["spk1"]).ids == ["seg1", "seg3"]
        assert segments.filter(by="snr", values=[20]).ids == ["seg2"]
        assert segments.filter(predicate=lambda row: row["duration"] < 2.6, keep=False).ids == ["seg2"]
        with pytest.raises(KeyError, match="seg9"):
            segments.filter(["seg9"])
        with pytest.raises(ValueError, match="exactly one"):
            segments.filter()
        with pytest.raises(ValueError, match="exactly one"):
            segments.filter(by="speaker")

    @given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 6))
    def test_parts_of_a_split_are_the_whole_and_groups_stay_together(self, groups: list[int], num_parts: int) -> None:
        table = SegmentSet(
            pa.table({"id": [f"s{i}" for i in range(len(groups))], "speaker": [f"p{g}" for g in groups]})
        )
        for group_by in (None, "speaker"):
            parts = [table.split(i, num_parts, group_by) for i in range(num_parts)] if len(table) else []
            assert sorted(i for p in parts for i in p.ids) == sorted(table.ids)
            if group_by:
                owners = [(s, n) for n, p in enumerate(parts) for s in p.unique("speaker")]
                assert len({s for s, _ in owners}) == len(owners)
            elif parts:
                assert max(len(p) for p in parts) - min(len(p) for p in parts) <= 1

    def test_a_split_needs_a_part_that_exists(self, segments: SegmentSet) -> None:
        with pytest.raises(ValueError, match=r"0 \.\.\. 1"):
            segments.split(2, 2)

    def test_concatenate_fills_missing_columns_and_refuses_repeated_ids(self, segments: SegmentSet) -> None:
        other = SegmentSet.from_rows([{"id": "new", "language": "fi"}])
        joined = SegmentSet.concatenate([segments, other])
        assert joined.ids == ["seg1", "seg2", "seg3", "new"]
        assert joined["new"]["speaker"] is None and joined["seg1"]["language"] is None
        with pytest.raises(ManifestError, match="seg1"):
            SegmentSet.concatenate([segments, segments])

    def test_sort_and_columns(self, segments: SegmentSet) -> None:
        assert segments.sort("duration").ids == ["seg3", "seg1", "seg2"]
        assert segments.sort("id", descending=True).ids == ["seg3", "seg2", "seg1"]
        more = segments.with_column("lang", ["a", "b", "c"])
        assert more.get("seg2", "lang") == "b" and not segments.has("lang")
        assert not more.without_columns(["lang"]).has("lang")
        with pytest.raises(ValueError, match="2 values for 3 rows"):
            segments.with_column("lang", ["a", "b"])

    def test_a_pickled_table_is_the_same(self, segments: SegmentSet) -> None:
        again = pickle.loads(pickle.dumps(segments))
        assert again.equals(segments) and again.index("seg3") == 2 and again.file == segments.file

    @given(st.lists(st.integers(0, 99), max_size=60), st.lists(st.integers(0, 100), max_size=4))
    def test_take_over_chunks(self, rows: list[int], cuts: list[int]) -> None:
        values = [f"v{i}" if i % 7 else None for i in range(100)]
        bounds = [0, *sorted(cuts), 100]
        column = pa.chunked_array([values[a:b] for a, b in itertools.pairwise(bounds)], type=pa.string())
        assert take(column, np.array(rows, np.int64)).to_pylist() == [values[r] for r in rows]


class TestSegmentSet:
    def test_an_end_column_becomes_a_duration_and_minus_one_is_the_end(self, tmp_path: Path) -> None:
        (tmp_path / "s.csv").write_text("id,recording,start,end\na,r,1,3.5\nb,r,2,-1\n")
        table = SegmentSet.from_file(tmp_path / "s.csv")
        assert table.duration[0] == 2.5 and np.isnan(table.duration[1])

    def test_without_a_recording_column_the_id_is_the_recording(self) -> None:
        table = SegmentSet.from_rows([{"id": "a"}])
        assert table.recording_id("a") == "a" and table.recording_ids().to_pylist() == ["a"]

    def test_from_recordings(self) -> None:
        recordings = RecordingSet.from_rows(
            [{"id": "r", "storage_path": "x.wav", "sample_freq": 8000, "duration": 2.0, "speaker": "s"}]
        )
        row = SegmentSet.from_recordings(recordings)["r"]
        assert row == {"id": "r", "recording": "r", "start": 0.0, "duration": 2.0, "speaker": "s"}


class TestRecordingSet:
    def test_relative_paths_are_beside_the_manifest_then_in_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data, work = tmp_path / "data", tmp_path / "work"
        for folder in (data, work):
            (folder / "wav").mkdir(parents=True)
        (data / "wav" / "a.wav").touch()
        (work / "wav" / "a.wav").touch()
        (work / "wav" / "b.wav").touch()
        (work / "wav" / "c.ark").touch()
        content = "id,storage_path\na,wav/a.wav\nb,wav/b.wav\nc,wav/c.ark:12\nd,/abs/d.wav\ne,wav/none.wav\nf,cat x |\n"
        (data / "recordings.csv").write_text(content)
        monkeypatch.chdir(work)
        table = RecordingSet.from_file(data / "recordings.csv")
        found = {i: table.recording(i)["storage_path"] for i in table.ids}
        assert found == {
            "a": str(data / "wav/a.wav"),
            "b": "wav/b.wav",
            "c": "wav/c.ark:12",
            "d": "/abs/d.wav",
            "e": str(data / "wav/none.wav"),
            "f": "cat x |",
        }

    def test_saved_elsewhere_the_paths_still_lead_to_the_files(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        (tmp_path / "a" / "x.wav").touch()
        (tmp_path / "a" / "r.csv").write_text("id,storage_path\nx,x.wav\n")
        table = RecordingSet.from_file(tmp_path / "a" / "r.csv")
        table.save(tmp_path / "b" / "r.csv")
        table.save(tmp_path / "a" / "same.csv")
        assert RecordingSet.from_file(tmp_path / "b" / "r.csv")["x"]["storage_path"] == str(tmp_path / "a" / "x.wav")
        assert RecordingSet.from_file(tmp_path / "a" / "same.csv")["x"]["storage_path"] == "x.wav"
        joined = RecordingSet.concatenate([table])
        assert joined["x"]["storage_path"] == str(tmp_path / "a" / "x.wav")

    def test_the_recordings_of_some_segments(self) -> None:
        recordings = RecordingSet.from_rows([{"id": f"r{i}", "storage_path": f"{i}.wav"} for i in range(4)])
        segments = SegmentSet.from_rows(
            [{"id": "a", "recording": "r3"}, {"id": "b", "recording": "r1"}, {"id": "c", "recording": "r3"}]
        )
        assert RecordingSet.from_segments(segments, recordings).ids == ["r1", "r3"]


class TestClassInfo:
    def test_indices_follow_the_column_or_the_rows(self, tmp_path: Path) -> None:
        (tmp_path / "c.csv").write_text("id,class_idx,weights\nb,1,3\na,0,1\n")
        table = ClassInfo.from_file(tmp_path / "c.csv")
        assert (table.class_idx("a"), table.class_idx("b"), table.class_ids) == (0, 1, ["a", "b"])
        assert table.class_idx_of(["b", "a", "b"]).tolist() == [1, 0, 1]
        assert table.weights.tolist() == [0.25, 0.75]
        assert ClassInfo.from_ids(["z", "y"]).class_idx("y") == 1

    def test_from_segments(self, segments: SegmentSet) -> None:
        table = ClassInfo.from_segments(segments)
        assert table.class_ids == ["spk1", "spk2"] and table.num_classes == 2
        assert table.weights.tolist() == [0.5, 0.5]

    def test_weights(self) -> None:
        table = ClassInfo.from_ids(["a", "b"]).with_weights([1.0, 4.0])
        np.testing.assert_allclose(table.exponent_weights(0.5).weights, [1 / 3, 2 / 3])
        np.testing.assert_allclose(table.exponent_weights(0.0).weights, [0.5, 0.5])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("id,class_idx\na,0\nb,2\n", r"0 \.\.\. 1.*missing: \[1\]"),
            ("id,class_idx\na,0\nb,0\n", "each once"),
            ("id,class_idx\na,0\nb,\n", "each once"),
            ("id,class_idx\na,0\nb,0.5\n", "'0.5' is not a number|0.5"),
            ("id,weights\na,1\nb,-1\n", "'b': weight"),
            ("id\na\na\n", "occurs in rows"),
        ],
    )
    def test_bad_tables(self, tmp_path: Path, content: str, message: str) -> None:
        (tmp_path / "c.csv").write_text(content)
        with pytest.raises(ManifestError, match=message):
            ClassInfo.from_file(tmp_path / "c.csv")

    def test_unknown_classes(self) -> None:
        with pytest.raises(KeyError, match="'c'"):
            ClassInfo.from_ids(["a", "b"]).class_idx("c")
