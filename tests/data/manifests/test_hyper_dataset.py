"""Data sets: the YAML, importers, validation split, VAD."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from hyperion_lite.core.errors import AudioFileError, ManifestError
from hyperion_lite.data.audio_errors import PipeRefusedError
from hyperion_lite.data.audio_reader import AudioReader
from hyperion_lite.data.manifests import (
    ClassInfo,
    EnrollmentMap,
    HyperDataset,
    RecordingSet,
    SegmentSet,
    TrialKey,
    TrialNdx,
    VADSet,
    split_validation,
)
from tests.data.odd_audio import RATE, write_wav


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    for speaker in ("ann", "bob"):
        (root / speaker / "day 1").mkdir(parents=True)
        for i in range(2):
            write_wav(root / speaker / "day 1" / f"u{i}.wav", 0.5 + 0.25 * i)
    return root


def make_dataset() -> HyperDataset:
    recordings = RecordingSet.from_rows(
        [{"id": f"r{i}", "storage_path": f"/data/r{i}.wav", "sample_freq": RATE, "duration": 4.0} for i in range(4)]
    )
    segments = SegmentSet.from_rows(
        [
            {"id": f"s{i}", "recording": f"r{i // 2}", "start": 2.0 * (i % 2), "duration": 2.0, "speaker": f"p{i % 3}"}
            for i in range(8)
        ]
    )
    return HyperDataset(
        segments,
        recordings,
        {"speaker": ClassInfo.from_segments(segments)},
        {"main": EnrollmentMap.from_mapping({"m": ["s0", "s1"]})},
        {"main": TrialKey.from_pairs([("m", "s2", True)]), "blind": TrialNdx.from_pairs([("m", "s3")])},
        VADSet.from_intervals({"s0": np.array([[0.0, 1.0]])}),
        "a test",
    )


class TestYaml:
    @pytest.mark.parametrize("format_", ["csv", "tsv", "parquet", "arrow"])
    def test_saved_and_loaded_by_folder_or_file(self, tmp_path: Path, format_: str) -> None:
        dataset = make_dataset()
        file = dataset.save(tmp_path / "out", format_)
        for path in (tmp_path / "out", file, str(file)):
            again = HyperDataset.load(path)
            assert again.segments.equals(dataset.segments)
            assert again.recordings is not None and dataset.recordings is not None
            assert again.recordings.equals(dataset.recordings)
            assert again.classes["speaker"].class_ids == ["p0", "p1", "p2"]
            assert list(again.enrollments["main"]) == [("m", "s0"), ("m", "s1")]
            assert isinstance(again.trials["main"], TrialKey) and type(again.trials["blind"]) is TrialNdx
            assert again.vad is not None and again.vad.intervals("s0").tolist() == [[0.0, 1.0]]
            assert again.description == "a test" and len(again) == 8

    def test_paths_are_relative_to_the_yaml(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make_dataset().save(tmp_path / "a")
        (tmp_path / "a").rename(tmp_path / "b")
        monkeypatch.chdir("/")
        assert len(HyperDataset.load(tmp_path / "b").segments) == 8

    def test_keys_of_the_original_toolkit_are_accepted(self, tmp_path: Path) -> None:
        (tmp_path / "s.csv").write_text("id\na\n")
        (tmp_path / "dataset.yaml").write_text(
            "segments: s.csv\nsparse_trials: false\ntable_sep: ','\nfeatures: {x: y}\n"
        )
        assert HyperDataset.load(tmp_path).segments.ids == ["a"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("segmets: s.csv\n", "'segmets', did you mean 'segments'"),
            ("recordings: r.csv\n", "needs a key `segments`"),
            ("- a\n", "a mapping"),
            ("segments: [a, b]\n", "segments must name a file"),
            ("segments: s.csv\nclasses: [a]\n", "classes must map names"),
            ("a: [\n", "is no YAML"),
        ],
    )
    def test_malformed_yaml(self, tmp_path: Path, content: str, message: str) -> None:
        (tmp_path / "dataset.yaml").write_text(content)
        with pytest.raises(ManifestError, match=message):
            HyperDataset.load(tmp_path)

    def test_missing_files(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"dataset\.yaml"):
            HyperDataset.load(tmp_path)
        (tmp_path / "dataset.yaml").write_text("segments: none.csv\n")
        with pytest.raises(FileNotFoundError, match=r"none\.csv"):
            HyperDataset.load(tmp_path).segments
        with pytest.raises(ValueError, match="format"):
            make_dataset().save(tmp_path, "xlsx")


class TestParts:
    def test_filter_split_and_concatenate_keep_recordings_and_segments_together(self) -> None:
        dataset = make_dataset()
        part = dataset.filter(["s0", "s7"])
        assert part.segments.ids == ["s0", "s7"] and part.recordings is not None and part.recordings.ids == ["r0", "r3"]
        assert part.classes["speaker"].class_ids == ["p0", "p1", "p2"]
        halves = [dataset.split(i, 2) for i in range(2)]
        joined = HyperDataset.concatenate(halves)
        assert sorted(joined.segments.ids) == sorted(dataset.segments.ids)
        assert joined.recordings is not None and joined.recordings.ids == ["r0", "r1", "r2", "r3"]
        with pytest.raises(ManifestError, match="some have not"):
            HyperDataset.concatenate([dataset, HyperDataset(SegmentSet.from_rows([{"id": "x"}]))])

    def test_validation_sets(self) -> None:
        train, validation = make_dataset().split_validation(0.3, "speaker")
        assert set(train.segments.unique("speaker")).isdisjoint(validation.segments.unique("speaker"))
        assert len(train) + len(validation) == 8
        assert train.classes["speaker"].num_classes == 3

    @given(st.lists(st.integers(0, 5), min_size=2, max_size=40), st.floats(0.05, 0.9), st.integers(0, 5))
    def test_a_split_by_utterance_leaves_each_class_in_training(
        self, speakers: list[int], fraction: float, seed: int
    ) -> None:
        segments = SegmentSet.from_rows([{"id": f"s{i}", "speaker": f"p{s}"} for i, s in enumerate(speakers)])
        if len(set(speakers)) == len(speakers):
            with pytest.raises(ValueError, match="none can be held back"):
                split_validation(segments, fraction, "utterance", seed)
            return
        train, validation = split_validation(segments, fraction, "utterance", seed)
        assert sorted([*train.ids, *validation.ids]) == sorted(segments.ids)
        assert set(train.unique("speaker")) == set(segments.unique("speaker"))
        assert 1 <= len(validation) <= max(1, round(fraction * len(speakers)))

    @given(st.integers(2, 30), st.floats(0.02, 0.98), st.integers(0, 5))
    def test_a_split_by_group_keeps_groups_whole(self, count: int, fraction: float, seed: int) -> None:
        segments = SegmentSet.from_rows(
            [{"id": f"s{i}", "recording": f"r{i % 7}", "speaker": f"p{i % 5}"} for i in range(count)]
        )
        for by in ("speaker", "recording"):
            train, validation = split_validation(segments, fraction, by, seed)
            assert set(train.unique(by)).isdisjoint(validation.unique(by))
            assert len(train) and len(validation) and len(train) + len(validation) == count

    def test_the_choice_depends_on_ids_and_seed_not_on_row_order(self) -> None:
        rows = [{"id": f"s{i}", "speaker": f"p{i % 9}"} for i in range(90)]
        there, back = SegmentSet.from_rows(rows), SegmentSet.from_rows(rows[::-1])
        for by in ("utterance", "speaker"):
            held = set(split_validation(there, 0.3, by, 1)[1].ids)
            assert held == set(split_validation(back, 0.3, by, 1)[1].ids)
            assert held != set(split_validation(there, 0.3, by, 2)[1].ids)

    def test_splits_that_cannot_be(self) -> None:
        one = SegmentSet.from_rows([{"id": "a", "speaker": "p"}, {"id": "b", "speaker": "p"}])
        with pytest.raises(ValueError, match="at least 2"):
            split_validation(one, 0.5, "speaker")
        with pytest.raises(ValueError, match="between 0 and 1"):
            split_validation(one, 1.0)
        with pytest.raises(KeyError, match="'language'"):
            split_validation(one, 0.5, "language")


class TestFolder:
    def test_speakers_ids_and_lengths(self, corpus: Path) -> None:
        dataset = HyperDataset.from_folder(corpus, progress=False)
        assert dataset.segments.ids == ["ann-day_1-u0", "ann-day_1-u1", "bob-day_1-u0", "bob-day_1-u1"]
        assert dataset.segments["bob-day_1-u1"] == {
            "id": "bob-day_1-u1",
            "recording": "bob-day_1-u1",
            "start": 0.0,
            "duration": 0.75,
            "speaker": "bob",
        }
        assert dataset.recordings is not None
        recording = dataset.recordings.recording("ann-day_1-u0")
        assert len(AudioReader().read(recording).audio) == RATE // 2 and recording["sample_freq"] == RATE
        assert dataset.classes["speaker"].class_ids == ["ann", "bob"]

    def test_speaker_levels(self, corpus: Path) -> None:
        assert HyperDataset.from_folder(corpus, speaker_level=-1, progress=False).segments.unique("speaker") == [
            "day 1"
        ]
        assert not HyperDataset.from_folder(corpus, speaker_level=None, progress=False).segments.has("speaker")
        write_wav(corpus / "loose.wav", 0.1)
        with pytest.raises(ManifestError, match=r"loose\.wav: no folder at level 0"):
            HyperDataset.from_folder(corpus, progress=False)

    def test_files_of_one_name_keep_their_suffix_and_clashes_are_named(self, corpus: Path) -> None:
        soundfile.write(corpus / "ann" / "x.flac", np.zeros(100), RATE)
        soundfile.write(corpus / "ann" / "x.wav", np.zeros(100), RATE)
        assert {"ann-x.flac", "ann-x.wav"} < set(HyperDataset.from_folder(corpus, progress=False).segments.ids)
        (corpus / "ann-day 1").mkdir()
        write_wav(corpus / "ann-day 1" / "u0.wav", 0.1)
        with pytest.raises(ManifestError, match="would both have the id"):
            HyperDataset.from_folder(corpus, progress=False)

    def test_all_bad_files_are_named_at_once_or_left_out(self, corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
        (corpus / "ann" / "empty.wav").touch()
        (corpus / "bob" / "page.wav").write_text("<html>")
        soundfile.write(corpus / "bob" / "none.wav", np.zeros(0), RATE)
        with pytest.raises(
            AudioFileError, match=r"(?s)3 recordings.*empty\.wav.*none\.wav.*0 samples.*page\.wav.*HTML"
        ):
            HyperDataset.from_folder(corpus, progress=False)
        dataset = HyperDataset.from_folder(corpus, progress=False, skip_bad=True)
        assert len(dataset.segments) == 4 and caplog.text.count("left out") == 3

    def test_hidden_files_and_loops_of_links(self, corpus: Path) -> None:
        (corpus / "ann" / "._u0.wav").touch()
        (corpus / "ann" / "loop").symlink_to(corpus)
        assert len(HyperDataset.from_folder(corpus, progress=False).segments) == 4

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no audio files"):
            HyperDataset.from_folder(tmp_path)
        with pytest.raises(FileNotFoundError, match="no folder"):
            HyperDataset.from_folder(tmp_path / "x")


@pytest.fixture
def kaldi(corpus: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "kaldi"
    folder.mkdir()
    wavs = {"recA": corpus / "ann" / "day 1" / "u1.wav", "recB": corpus / "bob" / "day 1" / "u0.wav"}
    (folder / "wav.scp").write_text("".join(f"{k} {v}\n" for k, v in wavs.items()))
    (folder / "segments").write_text("uttA1 recA 0.0 0.25\nuttA2 recA 0.25 -1\nuttB1 recB 0.1 0.5\n")
    (folder / "utt2spk").write_text("uttA1 ann\nuttA2 ann\nuttB1 bob\n")
    (folder / "spk2gender").write_text("ann f\nbob m\n")
    (folder / "utt2lang").write_text("uttA1 en\nuttB1 fi\n")
    return folder


class TestKaldi:
    def test_a_folder_with_segments(self, kaldi: Path) -> None:
        dataset = HyperDataset.from_kaldi(kaldi, progress=False)
        segments = dataset.segments
        assert segments["uttA1"] == {
            "id": "uttA1",
            "recording": "recA",
            "start": 0.0,
            "duration": 0.25,
            "speaker": "ann",
            "language": "en",
            "gender": "f",
        }
        assert segments["uttA2"]["duration"] == pytest.approx(0.5), "an end of -1 is the end of the recording"
        assert segments["uttA2"]["language"] is None
        assert dataset.classes["speaker"].class_ids == ["ann", "bob"]
        assert dataset.recordings is not None
        recording = dataset.recordings.recording("recA")
        assert len(AudioReader().read(recording, 0.25, segments["uttA2"]["duration"]).audio) == RATE // 2

    def test_a_folder_without_segments(self, kaldi: Path) -> None:
        (kaldi / "segments").unlink()
        (kaldi / "utt2spk").write_text("recA ann\nrecB bob\n")
        segments = HyperDataset.from_kaldi(kaldi, progress=False).segments
        assert segments.ids == ["recA", "recB"] and segments.column("duration").tolist() == [0.75, 0.5]

    def test_lengths_that_reco2dur_gives_are_not_read(self, kaldi: Path) -> None:
        (kaldi / "reco2dur").write_text("recA 0.7\nrecB 0.5\n")
        segments = HyperDataset.from_kaldi(kaldi, read_durations=False).segments
        assert segments["uttA2"]["duration"] == pytest.approx(0.45)

    def test_pipes_are_refused_and_not_run(self, kaldi: Path) -> None:
        mark = kaldi / "ran"
        with open(kaldi / "wav.scp", "a") as file:
            file.write(f"recC touch {mark} |\n")
        with pytest.raises(PipeRefusedError, match="1 entries are shell commands"):
            HyperDataset.from_kaldi(kaldi, progress=False)
        assert not mark.exists()

    def test_pipes_run_where_allowed(self, kaldi: Path, corpus: Path) -> None:
        with open(kaldi / "wav.scp", "a") as file:
            file.write(f"recC cat '{corpus}/ann/day 1/u0.wav' |\n")
        dataset = HyperDataset.from_kaldi(kaldi, allow_pipes=True, progress=False)
        assert dataset.recordings is not None and dataset.recordings["recC"]["duration"] == 0.5

    def test_vad_of_an_archive(self, kaldi: Path) -> None:
        kaldiio = pytest.importorskip("kaldiio")
        frames = np.array([0, 1, 1, 0, 1], np.float32)
        with kaldiio.WriteHelper(f"ark,scp:{kaldi}/vad.ark,{kaldi}/vad.scp") as writer:
            writer("uttA1", frames)
        vad = HyperDataset.from_kaldi(kaldi, progress=False).vad
        assert vad is not None
        np.testing.assert_allclose(vad.intervals("uttA1"), [[0.01, 0.03], [0.04, 0.05]])
        mask = vad.mask("uttA1", 900, RATE)
        assert np.flatnonzero(mask)[[0, -1]].tolist() == [160, 799] and mask.sum() == 480

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("wav.scp", "recA\n", r"wav\.scp:1: expected 2 fields"),
            ("wav.scp", "recA x.wav\nrecA y.wav\n", r"wav\.scp:2: 'recA' occurs twice"),
            ("segments", "u recA 0\n", r"segments:1: expected 4 fields"),
            ("segments", "u recA 0 end\n", "must be numbers"),
            ("segments", "u recZ 0 1\n", "'recZ', which wav.scp does not have"),
            ("utt2spk", "uttA1\n", r"utt2spk:1"),
            ("reco2dur", "recA long\n", "'long' is not a number"),
        ],
    )
    def test_malformed_files(self, kaldi: Path, file: str, content: str, message: str) -> None:
        (kaldi / file).write_text(content)
        with pytest.raises(ManifestError, match=message):
            HyperDataset.from_kaldi(kaldi, read_durations=False)

    def test_no_kaldi_folder(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"wav\.scp"):
            HyperDataset.from_kaldi(tmp_path)


class TestLhotse:
    RECORDING = {"id": "rec", "sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "sampling_rate": RATE}
    RECORDING = {**RECORDING, "num_samples": 2 * RATE, "duration": 2.0}
    SUPERVISION = {
        "id": "sup",
        "recording_id": "rec",
        "start": 0.5,
        "duration": 1.0,
        "channel": 0,
        "speaker": "ann",
        "language": "en",
    }

    def write(self, path: Path, *entries: object) -> Path:
        text = "".join(json.dumps(e) + "\n" for e in entries)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(json.dumps(entries) if path.suffix == ".json" else text)
        return path

    @pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "json"])
    def test_recordings_and_supervisions(self, tmp_path: Path, suffix: str) -> None:
        write_wav(tmp_path / "a.wav", 2.0)
        recordings = self.write(tmp_path / f"r.{suffix}", self.RECORDING)
        supervision = {**self.SUPERVISION, "custom": {"snr": 12.5, "tags": ["x"]}}
        dataset = HyperDataset.from_lhotse(recordings, self.write(tmp_path / f"s.{suffix}", supervision))
        assert dataset.segments["sup"] == {
            "id": "sup",
            "recording": "rec",
            "start": 0.5,
            "duration": 1.0,
            "snr": 12.5,
            "speaker": "ann",
            "language": "en",
        }
        assert dataset.recordings is not None
        assert dataset.recordings["rec"] == {
            "id": "rec",
            "storage_path": str(tmp_path / "a.wav"),
            "sample_freq": RATE,
            "duration": 2.0,
        }
        assert dataset.classes["speaker"].class_ids == ["ann"]
        whole = HyperDataset.from_lhotse(recordings)
        assert whole.segments["rec"]["duration"] == 2.0

    def test_cuts(self, tmp_path: Path) -> None:
        cut = {
            "id": "cut",
            "type": "MonoCut",
            "start": 0.25,
            "duration": 1.5,
            "channel": 0,
            "recording": self.RECORDING,
        }
        other = {**cut, "id": "cut2", "supervisions": [{**self.SUPERVISION, "speaker": "bob"}, self.SUPERVISION]}
        cuts = self.write(tmp_path / "cuts.jsonl", {**cut, "supervisions": [self.SUPERVISION]}, other)
        segments = HyperDataset.from_lhotse(cuts).segments
        assert segments["cut"]["speaker"] == "ann" and segments["cut"]["duration"] == 1.5
        assert segments["cut2"]["speaker"] is None and segments["cut2"]["language"] == "en"

    def test_the_channel_of_a_recording_of_several(self, tmp_path: Path) -> None:
        two = {**self.RECORDING, "sources": [{"type": "file", "channels": [0, 1], "source": "a.wav"}]}
        recordings = self.write(tmp_path / "r.jsonl", two)
        dataset = HyperDataset.from_lhotse(
            recordings, self.write(tmp_path / "s.jsonl", {**self.SUPERVISION, "channel": 1})
        )
        assert dataset.segments["sup"]["channel"] == 1

    def test_what_has_no_place_here(self, tmp_path: Path) -> None:
        mixed = {"id": "m", "type": "MixedCut", "tracks": []}
        url = {**self.RECORDING, "sources": [{"type": "url", "source": "http://x"}]}
        two = {**self.RECORDING, "sources": self.RECORDING["sources"] * 2}
        for entry, message in ((mixed, "MixedCut"), (url, "'url'"), (two, "2 sources")):
            with pytest.raises(ManifestError, match=rf":1: .*{message}"):
                HyperDataset.from_lhotse(self.write(tmp_path / "x.jsonl", entry))
        with pytest.raises(ManifestError, match=r"s\.jsonl:1: supervision 'sup' is of recording 'gone'"):
            HyperDataset.from_lhotse(
                self.write(tmp_path / "r.jsonl", self.RECORDING),
                self.write(tmp_path / "s.jsonl", {**self.SUPERVISION, "recording_id": "gone"}),
            )
        (tmp_path / "x.jsonl").write_text("{broken\n")
        with pytest.raises(ManifestError, match="is no JSON"):
            HyperDataset.from_lhotse(tmp_path / "x.jsonl")

    def test_commands(self, tmp_path: Path) -> None:
        command = {**self.RECORDING, "sources": [{"type": "command", "channels": [0], "source": "cat a.wav"}]}
        manifest = self.write(tmp_path / "r.jsonl", command)
        with pytest.raises(PipeRefusedError, match="shell command"):
            HyperDataset.from_lhotse(manifest)
        recordings = HyperDataset.from_lhotse(manifest, allow_pipes=True).recordings
        assert recordings is not None and recordings["rec"]["storage_path"] == "cat a.wav |"


class TestVad:
    def test_intervals_are_sorted_and_joined(self, tmp_path: Path) -> None:
        (tmp_path / "v.csv").write_text("segmentid,start,duration\na,1.0,0.5\nb,0,1\na,0.0,0.5\na,0.25,0.5\n")
        vad = VADSet.from_file(tmp_path / "v.csv")
        assert vad.intervals("a").tolist() == [[0.0, 0.75], [1.0, 1.5]]
        assert vad.mask("a", 16, 10).astype(int).tolist() == [1] * 8 + [0] * 2 + [1] * 5 + [0]
        with pytest.raises(KeyError, match="'c'"):
            vad.intervals("c")

    @given(st.lists(st.booleans(), min_size=1, max_size=60))
    def test_frames_of_an_array_file(self, tmp_path_factory: pytest.TempPathFactory, frames: list[bool]) -> None:
        folder = tmp_path_factory.mktemp("vad")
        np.save(folder / "a.npy", np.array(frames, np.float32))
        vad = VADSet.from_rows([{"id": "a", "storage_path": "a.npy", "frame_shift": 0.5}], folder / "v.csv")
        assert vad.mask("a", len(frames) * 2, 4).tolist() == [f for f in frames for _ in range(2)]

    def test_faults(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError, match="needs start and duration"):
            VADSet.from_rows([{"id": "a"}])
        with pytest.raises(ManifestError, match="occurs twice"):
            VADSet.from_rows([{"id": "a", "storage_path": "x"}, {"id": "a", "storage_path": "y"}])
        with pytest.raises(ManifestError, match="shell command"):
            VADSet.from_rows([{"id": "a", "storage_path": "cat x |"}]).intervals("a")
        np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
        with pytest.raises(ManifestError, match="no array of numbers"):
            VADSet.from_rows([{"id": "a", "storage_path": str(tmp_path / "o.npy")}]).intervals("a")
