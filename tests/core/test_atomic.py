"""What is published appears complete or not at all."""

import os

import pytest

from hyperion_lite.core import atomic
from hyperion_lite.core.atomic import atomic_directory, atomic_file, is_temporary, remove_temporaries


class Interrupted(Exception):
    pass


def test_a_file_replaces_the_old_one_only_when_complete(tmp_path):
    target = tmp_path / "x.bin"
    target.write_text("old")
    with pytest.raises(Interrupted), atomic_file(target) as temporary:
        temporary.write_text("half")
        raise Interrupted
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.bin"]
    with atomic_file(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["x.bin"]


def test_a_new_file_has_the_usual_mode(tmp_path):
    with atomic_file(tmp_path / "a") as temporary:
        temporary.write_text("x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"), atomic_file(tmp_path / "nowhere" / "x"):
        pass


def test_a_directory_is_exchanged_as_a_whole(tmp_path):
    target = tmp_path / "model"
    for content in ("one", "two"):
        with atomic_directory(target) as folder:
            (folder / "f").write_text(content)
        assert (target / "f").read_text() == content
        assert os.listdir(tmp_path) == ["model"]
    with pytest.raises(Interrupted), atomic_directory(target) as folder:
        (folder / "f").write_text("three")
        raise Interrupted
    assert (target / "f").read_text() == "two"
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("exchange", [True, False])
def test_the_old_directory_survives_a_failing_rename(tmp_path, monkeypatch, exchange):
    target = tmp_path / "model"
    with atomic_directory(target) as folder:
        (folder / "f").write_text("old")
    real = os.rename

    def rename(source, destination):
        if str(destination) == str(target) and (atomic.TEMPORARY_MARK + "old-") not in str(source):
            raise OSError("no space left on device")
        real(source, destination)

    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda a, b: False)
    else:

        def fail(a, b):
            raise OSError("no space left on device")

        monkeypatch.setattr(atomic, "_exchange", fail)
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="no space"), atomic_directory(target) as folder:
        (folder / "f").write_text("new")
    assert (target / "f").read_text() == "old"


def test_left_over_temporaries_are_found_and_removed(tmp_path):
    (tmp_path / f"x{atomic.TEMPORARY_MARK}1").write_text("")
    (tmp_path / f"y{atomic.TEMPORARY_MARK}2").mkdir()
    (tmp_path / "keep").write_text("")
    assert is_temporary(f"x{atomic.TEMPORARY_MARK}1") and not is_temporary("keep")
    assert len(remove_temporaries(tmp_path)) == 2
    assert os.listdir(tmp_path) == ["keep"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_keeps_pointing_where_it_did(tmp_path, kind):
    real, link = tmp_path / "real", tmp_path / "link"
    if kind == "file":
        real.write_text("old")
        link.symlink_to(real)
        with atomic_file(link) as temporary:
            temporary.write_text("new")
        assert real.read_text() == "new"
    else:
        real.mkdir()
        link.symlink_to(real, target_is_directory=True)
        with atomic_directory(link) as temporary:
            (temporary / "content").write_text("new")
        assert (real / "content").read_text() == "new"
    assert link.is_symlink() and sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_devices_and_pipes_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="no regular file"), atomic_file(tmp_path / "pipe"):
        pass
    assert not (tmp_path / "pipe").is_file() and os.listdir(tmp_path) == ["pipe"]


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with atomic_file(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    import subprocess
    import sys

    code = (
        "import os, signal, sys; from hyperion_lite.core.atomic import atomic_file, atomic_directory\n"
        "with atomic_file('x') as a, atomic_directory('d') as b:\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert len(os.listdir(tmp_path)) == 2
    with atomic_file(tmp_path / "other"):
        pass
    assert len(os.listdir(tmp_path)) == 3
    with atomic_file(tmp_path / "x"), atomic_directory(tmp_path / "d"):
        assert len(os.listdir(tmp_path)) == 3
    assert sorted(os.listdir(tmp_path)) == ["d", "other", "x"]
