"""A segment that ends 5 ms after its recording was an error, or a silently short item; an end of -1 was taken as a time.

Right: a small excess is cut at the end, a larger one is an error that names the recording and both numbers, and -1 means the end.
"""

from __future__ import annotations

import pytest

from hyperion_lite.cli.main import main
from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.audio_errors import AudioRangeError
from hyperion_lite.data.audio_reader import AudioReader
from tests.data.audio_files import write_recordings, write_table

RATE = 8000


def test_the_reader_cuts_a_little_and_names_the_rest(tmp_path) -> None:
    write_recordings(tmp_path, [RATE])
    path = tmp_path / "wav" / "rec0.wav"
    reader = AudioReader()
    assert reader.read(path, 0.5, 0.505).audio.size == RATE // 2
    assert reader.read(path, 0.5, end=-1).audio.size == RATE // 2
    with pytest.raises(AudioRangeError, match=r"'seg': .*ends 0\.3 s past the end, the recording lasts 1 s"):
        reader.read(path, 0.5, 0.8, id="seg")


@pytest.mark.parametrize(("excess", "code"), [(0.005, 0), (0.3, 2)])
def test_tables_are_checked_with_the_same_tolerance(tmp_path, capsys, excess: float, code: int) -> None:
    recordings = write_recordings(tmp_path, [RATE])
    row = {"id": "seg", "recording": "rec0", "start": 0.5, "duration": 0.5 + excess}
    segments = write_table(tmp_path / "segments.csv", [row])
    assert main(["prepare", "validate", "--recordings", recordings, "--segments", segments, "--no-progress"]) == code
    assert ("'seg': ends at 1.3 s, the recording at 1 s" in capsys.readouterr().out) == bool(code)


def test_an_end_of_minus_one_in_a_table(tmp_path) -> None:
    recordings = write_recordings(tmp_path, [RATE])
    row = {"id": "seg", "recording": "rec0", "start": 0.25, "end": -1}
    dataset = AudioDataset(recordings, write_table(tmp_path / "segments.csv", [row]))
    assert dataset["seg"]["audio"].numel() == RATE * 3 // 4
