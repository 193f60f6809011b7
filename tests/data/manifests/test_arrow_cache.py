"""The memory-mapped copy of large manifests: where it is, when it is stale, and what it costs a process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hyperion_lite.core.atomic import TEMPORARY_MARK
from hyperion_lite.core.errors import ManifestError
from hyperion_lite.data.manifests import SegmentSet, arrow_cache, open_table
from hyperion_lite.data.manifests.arrow_cache import CACHE_VARIABLE, FOLDER_NAME

ROWS, LARGE_ROWS = 1000, 250_000


def make_table(rows: int = ROWS) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "id": [f"spk{i % 50:03d}-utt{i:08d}" for i in numbers],
            "recording": [None if i % 97 == 0 else f"rec{i // 3}é" for i in numbers],
            "start": (numbers % 3) * 4.0,
            "duration": pa.array(np.where(numbers % 11 == 0, np.nan, 2.0 + numbers % 7)),
            "speaker": [f"spk{i % 50:03d}" for i in numbers],
            "age": pa.array([None if i % 5 == 0 else int(i) for i in numbers], pa.int64()),
            "quality": pa.array((numbers % 100).astype(np.int16)),
            "clean": pa.array(numbers % 2 == 0),
        }
    )


@pytest.fixture(autouse=True)
def small_tables_are_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(open_table, "CACHED_ROWS", 100)
    monkeypatch.setattr(open_table, "CACHED_TEXT_BYTES", 100)
    monkeypatch.setattr(open_table, "BATCH_ROWS", 300)
    monkeypatch.setattr(arrow_cache, "BATCH_ROWS", 300)
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    pq.write_table(make_table(), tmp_path / "data" / "segments.parquet")
    return tmp_path / "data" / "segments.parquet"


def copies(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv", "arrow"])
def test_a_mapped_table_is_the_table(path: Path, suffix: str) -> None:
    plain = SegmentSet.from_file(path, cache=False)
    plain.save(path.parent / f"s.{suffix}")
    for _ in range(2):
        mapped = SegmentSet.from_file(path.parent / f"s.{suffix}")
        assert mapped._cached is not None
        assert len(mapped) == ROWS and mapped.ids == plain.ids
        assert mapped["spk007-utt00000007"] == plain["spk007-utt00000007"]
        np.testing.assert_array_equal(mapped.column("duration"), plain.column("duration"))
        np.testing.assert_array_equal(mapped.column("age"), plain.column("age"))


def test_single_rows_read_from_the_file_equal_those_of_the_table(path: Path) -> None:
    plain, mapped = SegmentSet.from_file(path, cache=False), SegmentSet.from_file(path)
    for row in range(ROWS):
        expected, found = plain.row(row), mapped.row(row)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == value or (value != value and found[name] != found[name])
        assert mapped.index(expected["id"]) == row
    assert mapped.row(-1) == plain.row(-1)
    with pytest.raises(IndexError):
        mapped.row(ROWS)
    with pytest.raises(KeyError):
        mapped.index("spk000-utt")


def test_a_column_of_ends_is_turned_into_durations_in_the_copy(path: Path) -> None:
    rows = "".join(f"s{i},r,{i}.5,{i + 2 if i % 2 else -1}\n" for i in range(200))
    (path.parent / "ends.csv").write_text("id,recording,start,end\n" + rows)
    table = SegmentSet.from_file(path.parent / "ends.csv")
    assert table._cached is not None and table.row(3)["duration"] == 1.5
    assert np.isnan(table.duration[::2]).all() and (table.duration[1::2] == 1.5).all()


def test_numbers_are_views_of_the_file(path: Path) -> None:
    start = SegmentSet.from_file(path).column("start")
    assert isinstance(start, np.ndarray) and not start.flags.writeable and not start.flags.owndata


def test_the_copy_is_beside_the_file_and_is_used_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SegmentSet.from_file(path)
    assert len(copies(path.parent / FOLDER_NAME)) == 1
    monkeypatch.setattr(open_table, "build_cached", lambda *a: pytest.fail("made again"))
    assert len(SegmentSet.from_file(path)) == ROWS


def test_a_changed_file_gets_a_new_copy_and_the_old_one_goes(path: Path) -> None:
    SegmentSet.from_file(path)
    before = copies(path.parent / FOLDER_NAME)
    pq.write_table(make_table(500), path)
    assert len(SegmentSet.from_file(path)) == 500
    after = copies(path.parent / FOLDER_NAME)
    assert len(after) == 1 and after != before


def test_a_change_that_keeps_size_and_time_is_seen(path: Path) -> None:
    table = make_table()
    target = path.parent / "s.csv"
    SegmentSet(table).save(target)
    stat = target.stat()
    SegmentSet.from_file(target)
    content = target.read_text().replace("spk001-utt00000001", "spk001-utt0000000X", 1)
    target.write_text(content)
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert target.stat().st_size == stat.st_size
    assert "spk001-utt0000000X" in SegmentSet.from_file(target)


def test_a_folder_that_cannot_be_written_leaves_the_copy_in_the_user_cache(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # for the super-user no folder is read-only: a file in the place of the cache folder refuses everybody
    (path.parent / FOLDER_NAME).write_text("in the way")
    table = SegmentSet.from_file(path)
    assert table._cached is not None
    assert len(copies(tmp_path / "user-cache" / "hyperion_lite" / "manifests")) == 1
    monkeypatch.setattr(open_table, "build_cached", lambda *a: pytest.fail("made again"))
    assert SegmentSet.from_file(path).ids == table.ids


def test_where_nothing_can_be_written_the_table_is_held_in_memory(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path.parent / FOLDER_NAME).write_text("in the way")
    (tmp_path / "user-cache").write_text("in the way")
    table = SegmentSet.from_file(path)
    assert table._cached is None and table.index("spk003-utt00000003") == 3
    assert "held in the memory" in caplog.text


def test_the_environment_can_name_the_folder(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "mine"))
    SegmentSet.from_file(path)
    assert len(copies(tmp_path / "mine" / "manifests")) == 1
    assert not (path.parent / FOLDER_NAME).exists()


def open_and_count(path: Path, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    table = SegmentSet.from_file(path)
    queue.put((len(table), table._cached is not None, table.index("spk007-utt00000007")))


def test_processes_that_open_a_manifest_at_once_share_one_copy(path: Path) -> None:
    # forked, so that the small thresholds of this module hold in them too
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=open_and_count, args=(path, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [queue.get(timeout=60) for _ in processes] == [(ROWS, True, 7)] * 4
    for process in processes:
        process.join()
    assert len(copies(path.parent / FOLDER_NAME)) == 1


def test_a_copy_that_another_process_finished_first_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_cache, "fcntl", None)
    original, calls, nested = arrow_cache._write, [], []

    def slow(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        calls.append(arguments)
        if len(calls) == 1:
            nested.append(SegmentSet.from_file(path))

    monkeypatch.setattr(arrow_cache, "_write", slow)
    assert SegmentSet.from_file(path).ids == nested[0].ids
    assert len(copies(path.parent / FOLDER_NAME)) == 1


def test_a_full_disk_leaves_the_copy_to_the_next_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = arrow_cache._write

    def full(folder: Path, *rest: object) -> None:
        original(folder, *rest)  # type: ignore[arg-type]
        if folder.is_relative_to(path.parent):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrow_cache, "_write", full)
    assert SegmentSet.from_file(path)._cached is not None
    assert copies(path.parent / FOLDER_NAME) == []
    assert len(copies(tmp_path / "user-cache" / "hyperion_lite" / "manifests")) == 1


def test_an_unfinished_copy_is_not_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(arrow_cache.IdIndex, "save", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            SegmentSet.from_file(path)
    assert copies(path.parent / FOLDER_NAME) == []
    assert len(SegmentSet.from_file(path)) == ROWS


def test_faults_are_found_on_the_way_through_the_copy(path: Path) -> None:
    table = make_table()
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)
    for _ in range(2):
        with pytest.raises(ManifestError, match=r"segments\.parquet.*occurs in rows 1 and 1001"):
            SegmentSet.from_file(path)


def test_a_pickled_table_holds_the_place_of_the_copy_only(path: Path) -> None:
    table = SegmentSet.from_file(path)
    sent = pickle.dumps(table)
    assert len(sent) < 1000
    again = pickle.loads(sent)
    assert again.ids == table.ids and again["spk007-utt00000007"] == table["spk007-utt00000007"]
    pq.write_table(make_table(10), path)
    SegmentSet.from_file(path, cache=False)
    pq.write_table(make_table(500), path)
    SegmentSet.from_file(path)
    with pytest.raises(ManifestError, match="changed while it was in use"):
        pickle.loads(sent)


def private_and_resident() -> tuple[float, float]:
    fields: dict[str, float] = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        fields[name.rstrip(":")] = float(value) / 1024
    return fields["Private_Clean"] + fields["Private_Dirty"], fields["Rss"]


def look_up(manifest: SegmentSet, rows: int, seed: int, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    numbers = np.random.default_rng(seed).integers(0, rows, 2000)
    manifest.row(0)
    before = private_and_resident()
    good = sum(manifest[f"spk{i % 50:03d}-utt{i:08d}"]["speaker"] == f"spk{i % 50:03d}" for i in numbers.tolist())
    after = private_and_resident()
    queue.put((good, after[0] - before[0], after[1] - before[1]))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    pq.write_table(make_table(LARGE_ROWS), path)
    return path


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_share_a_large_manifest(large: Path, method: str) -> None:
    manifest = SegmentSet.from_file(large)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    workers = [context.Process(target=look_up, args=(manifest, LARGE_ROWS, seed, queue)) for seed in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    size = sum(f.stat().st_size for f in (large.parent / FOLDER_NAME).rglob("*") if f.is_file()) / 2**20
    assert size > 20
    for good, private, resident in results:
        assert good == 2000
        assert private < 8
        # a forked process first maps the libraries it touches, which also count as resident
        assert resident < 12 or method == "fork"


@pytest.mark.parametrize("damage", ["cut", "emptied", "overwritten", "gone"])
def test_a_damaged_copy_is_made_again(path: Path, damage: str) -> None:
    whole = SegmentSet.from_file(path).to_pandas()
    (copy,) = (path.parent / FOLDER_NAME).iterdir()
    for name in sorted(file.name for file in copy.iterdir()):
        file = copy / name
        content = file.read_bytes()
        # a new file, as the old one is mapped
        file.unlink()
        if damage != "gone":
            file.write_bytes(
                {"cut": content[: len(content) // 2], "emptied": b"", "overwritten": b"\xfe" * 999}[damage]
            )
        opened = SegmentSet.from_file(path)
        assert opened.to_pandas().equals(whole)
        assert opened["spk007-utt00000007"]["speaker"] == "spk007"
        assert copies(path.parent / FOLDER_NAME) == [copy.name]


def test_a_damaged_copy_that_cannot_be_replaced_is_left_alone(path: Path, tmp_path: Path) -> None:
    SegmentSet.from_file(path)
    (copy,) = (path.parent / FOLDER_NAME).iterdir()
    (copy / "table.arrow").unlink()
    (copy / "table.arrow").write_bytes(b"no table")
    folder = path.parent / FOLDER_NAME
    folder.chmod(0o500)
    copy.chmod(0o500)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write everywhere")
        assert len(SegmentSet.from_file(path)) == ROWS
        assert (copy / "table.arrow").read_bytes() == b"no table"
    finally:
        folder.chmod(0o700)
        copy.chmod(0o700)


def test_what_a_killed_process_left_is_removed(path: Path) -> None:
    SegmentSet.from_file(path)
    folder = path.parent / FOLDER_NAME
    (copy,) = folder.iterdir()
    name, other = copy.name, f"segments.parquet-SegmentSet-{'0' * 20}"
    for leftover in (f"{name}{TEMPORARY_MARK}a", f"{other}{TEMPORARY_MARK}old", f"{other}{TEMPORARY_MARK}new"):
        (folder / leftover).mkdir()
        (folder / leftover / "table.arrow").write_bytes(b"half")
    os.utime(folder / f"{other}{TEMPORARY_MARK}old", (0, 0))
    (copy / "complete.json").unlink()
    assert len(SegmentSet.from_file(path)) == ROWS
    # another process may be at work for another state of the file
    assert copies(folder) == sorted([name, f"{other}{TEMPORARY_MARK}new"])
