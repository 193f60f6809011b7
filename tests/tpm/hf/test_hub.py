"""Only rank 0 downloads, the others wait, and nobody waits for ever."""

from __future__ import annotations

import os
from pathlib import Path

import huggingface_hub
import pytest

from hyperion_lite.tpm.hf import HFWav2Vec2
from hyperion_lite.tpm.hf.hub import fetch_from_hub
from tests.tpm.hf.small_encoders import save_original
from tests.two_ranks import in_two_ranks


class FakeHub:
    """In place of ``snapshot_download``: one repository, in a local folder."""

    def __init__(self, folder: Path, log: Path, pickled: bool = False, fail: bool = False) -> None:
        self.folder, self.log, self.pickled, self.fail = folder, log, pickled, fail

    def __call__(self, repository, revision, cache_dir, force_download, allow_patterns):
        with self.log.open("a") as log:
            log.write(f"{os.getpid()} {repository}@{revision} {' '.join(allow_patterns)}\n")
        if self.fail:
            raise ConnectionError("no route to the hub")
        return str(self.folder)


def test_a_name_that_is_no_directory_is_an_id_on_the_hub(tmp_path, monkeypatch):
    folder = save_original("wav2vec2-group", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", FakeHub(folder, tmp_path / "log"))
    HFWav2Vec2(pretrained_model_path="some/encoder", revision="v2")
    calls = (tmp_path / "log").read_text().splitlines()
    assert len(calls) == 1 and "some/encoder@v2" in calls[0]
    assert "model.safetensors" in calls[0] and ".bin" not in calls[0]
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    fetch_from_hub("some/encoder")
    assert "pytorch_model.bin" in (tmp_path / "log").read_text().splitlines()[-1]


def test_what_the_hub_does_not_have_is_not_found(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", FakeHub(tmp_path, tmp_path / "log", fail=True))
    with pytest.raises(FileNotFoundError, match=r"'some/encoder'.*no such local directory.*no route"):
        HFWav2Vec2(pretrained_model_path="some/encoder")


def fetch(rank: int, folder: Path, log: Path, fail: bool) -> str:
    huggingface_hub.snapshot_download = FakeHub(folder, log, fail=fail)
    try:
        return str(fetch_from_hub("some/encoder"))
    except (FileNotFoundError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("fail", [False, True])
def test_two_ranks(tmp_path, fail):
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    answers = in_two_ranks(fetch, folder, tmp_path / "log", fail)
    calls = (tmp_path / "log").read_text().splitlines()
    assert len(calls) == 1
    if fail:
        assert answers[0].startswith("FileNotFoundError") and "no route to the hub" in answers[0]
        assert "rank 0 could not fetch" in answers[1] and "no route to the hub" in answers[1]
    else:
        assert answers == [str(folder)] * 2
