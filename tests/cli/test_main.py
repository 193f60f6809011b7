"""The command as a whole: what it imports, how it fails."""

import subprocess
import sys

import pytest

from hyperion_lite._version import __version__
from hyperion_lite.cli.main import COMMANDS, main


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0
    assert f"hyperion-lite {command}" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys):
    assert main(["extrct"]) == 2
    assert "did you mean 'extract'" in capsys.readouterr().err


def test_no_command_is_wrong_use():
    with pytest.raises(SystemExit) as done:
        main([])
    assert done.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere", "--input", "."], "no audio files"),
        (["--model", "nowhere", "--input", "nowhere"], "no input at nowhere"),
        (["--model", "nowhere", "--input", "a.txt"], "no model at nowhere"),
        (["--model", "a.txt", "--input", "a.txt"], "a.txt"),
        (["--model", "nowhere", "--input", "a.txt", "--device", "cuda"], "no CUDA device"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "a.txt").write_text("x.wav\n")
    assert main(["extract", *arguments, "--output", "out.npz"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("hyperion-lite extract: error: ") and message in error
    assert "Traceback" not in error


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "hyperion_lite", "--version"], capture_output=True, text=True, check=True
    )
    assert __version__ in done.stdout
