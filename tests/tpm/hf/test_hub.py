"""Only rank 0 downloads, the others wait, and nobody waits for ever."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path

import huggingface_hub
import pytest
import torch.distributed as dist

from hyperion_lite.tpm.hf import HFWav2Vec2
from hyperion_lite.tpm.hf.hub import fetch_from_hub
from tests.tpm.hf.small_encoders import save_original


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


def _fetch(rank: int, size: int, port: int, folder: Path, log: Path, fail: bool, results: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    huggingface_hub.snapshot_download = FakeHub(folder, log, fail=fail)
    try:
        result = str(fetch_from_hub("some/encoder"))
    except (FileNotFoundError, ValueError) as error:
        result = f"{type(error).__name__}: {error}"
    (results / str(rank)).write_text(result)
    dist.destroy_process_group()


@pytest.mark.parametrize("fail", [False, True])
def test_two_ranks(tmp_path, fail):
    folder, results = tmp_path / "cache", tmp_path / "results"
    folder.mkdir()
    results.mkdir()
    (folder / "model.safetensors").touch()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_fetch, args=(rank, 2, port, folder, tmp_path / "log", fail, results))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0]
    calls = (tmp_path / "log").read_text().splitlines()
    assert len(calls) == 1
    answers = [(results / str(rank)).read_text() for rank in range(2)]
    if fail:
        assert answers[0].startswith("FileNotFoundError") and "no route to the hub" in answers[0]
        assert "rank 0 could not fetch" in answers[1] and "no route to the hub" in answers[1]
    else:
        assert answers == [str(folder)] * 2
