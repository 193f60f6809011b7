"""A checkpoint of a few kilobytes took a gigabyte: a slice was saved, and with it the whole storage it looks into.

Right: the bytes that no tensor refers to are counted and shown, and taking the tensors out leaves them behind.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from hyperion_lite.cli.main import main
from hyperion_lite.pth import open_pth, to_safetensors


def test_unreferenced_bytes_are_reported_and_left_behind(tmp_path: Path, capsys) -> None:
    path = tmp_path / "slice.pth"
    torch.save({"slice": torch.zeros(1_000_000)[1000:1010], "whole": torch.ones(5)}, path)
    unused = 4 * (1_000_000 - 10)
    with open_pth(path) as file:
        assert file.metadata["unreferenced_bytes"] == unused
    assert main(["pth", "info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unreferenced_bytes"] == unused
    assert main(["pth", "info", str(path)]) == 0
    assert "unreferenced" in capsys.readouterr().out
    to_safetensors(path, tmp_path / "slice.safetensors")
    assert (tmp_path / "slice.safetensors").stat().st_size < 1000
