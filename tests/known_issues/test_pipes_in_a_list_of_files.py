"""A line ``utt some command |`` of a ``wav.scp`` was run by a shell: a list of files executed whatever its author liked.

Right: such lines are refused, at every entrance, unless the caller allowed them.
"""

from __future__ import annotations

import pytest

from hyperion_lite.cli.main import main
from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.audio_errors import PipeRefusedError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.extraction.inputs import list_utterances
from tests.data.audio_files import write_recordings, write_table
from tests.models.small_models import build


@pytest.fixture
def mark(tmp_path):
    """A file that the commands below would create."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "executed"
    (tmp_path / "data" / "wav.scp").write_text(f"utt touch {path} |\n")
    (tmp_path / "data" / "utt2spk").write_text("utt spk\n")
    yield path
    assert not path.exists()


def test_reader_and_data_set(mark, tmp_path) -> None:
    with pytest.raises(PipeRefusedError, match="shell command"):
        AudioReader().read(f"touch {mark} |")
    row = {"id": "utt", "storage_path": f"touch {mark} |", "sample_freq": 16000, "duration": 1.0}
    dataset = AudioDataset(write_table(tmp_path / "recordings.csv", [row]))
    with pytest.raises(PipeRefusedError, match="'utt'"):
        dataset["utt"]


def test_extraction(mark, tmp_path, capsys) -> None:
    scp = tmp_path / "data" / "wav.scp"
    with pytest.raises(ValueError, match="must not run a shell"):
        list_utterances(scp)
    build("wav2-basic-strided").save(tmp_path / "m.pth")
    out = ["--output", str(tmp_path / "o.npz"), "--quiet"]
    assert main(["extract", "--model", str(tmp_path / "m.pth"), "--input", str(scp), *out]) != 0


def test_preparation(mark, tmp_path, capsys) -> None:
    command = ["prepare", "kaldi", str(tmp_path / "data"), str(tmp_path / "out"), "--no-progress"]
    assert main(command) == 2
    assert "shell command" in capsys.readouterr().err


def test_who_allows_it_gets_it(tmp_path) -> None:
    write_recordings(tmp_path, [800])
    path = tmp_path / "wav" / "rec0.wav"
    assert AudioReader(allow_pipes=True).read(f"cat {path} |").audio.size == 800
