"""A file that is no checkpoint ended in "wrong size: expected 4254413747647032608", "invalid load key 'v'" or "operand 118".

Right: the message says what it is: cut off, the pointer of a large-file store, a web page, an archive inside an archive.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hyperion_lite import HyperTorchModel
from hyperion_lite.cli.main import main
from hyperion_lite.pth import PthError, open_pth
from tests.pth.handmade import Entry, checkpoint, legacy, make_zip
from tests.pth.saving import saved

GOOD = saved({"weight": torch.arange(1000.0)})
FILES = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 46\n", "Git-LFS pointer"),
    "page": (b"<!DOCTYPE html>\n<html><title>Sign in</title></html>", "HTML"),
    "json": (b'{"error": "Repository not found"}', "JSON"),
    "archive in an archive": (make_zip([Entry(b"model.pth", checkpoint())]), "within a zip"),
    "half": (GOOD[: len(GOOD) // 2], "truncated"),
    "without its last bytes": (GOOD[:-10], "truncated"),
    "half of the older format": (legacy()[:-9], "truncated"),
    "nothing": (b"", "empty"),
}


@pytest.mark.parametrize("name", FILES)
def test_every_entrance_says_so(tmp_path: Path, capsys, name: str) -> None:
    content, message = FILES[name]
    path = tmp_path / "model.pth"
    path.write_bytes(content)
    with pytest.raises(PthError, match=message) as direct:
        open_pth(path)
    with pytest.raises(ValueError, match=message) as through_a_model:
        HyperTorchModel.auto_load(path)
    for error in (direct, through_a_model):
        assert "model.pth" in str(error.value)
    assert main(["pth", "info", str(path)]) == 2
    assert message in capsys.readouterr().err
