from __future__ import annotations

import gc
import logging
import pickle
import traceback
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import torch
from torch.utils.data import DataLoader

from hyperion_lite.core.errors import AudioFileError, ConfigError, ManifestError
from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.data.audio_dataset import AudioDataset
from hyperion_lite.data.keys import ChunkKey, SegmentKey
from hyperion_lite.data.manifests import HyperDataset, RecordingSet, SegmentSet
from hyperion_lite.data.segment_audio import SegmentRangeError
from tests.data.audio_files import waveform, write_recordings, write_table

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FS = 8000
LENGTHS = [8000, 12000, 16000, 9001]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Four recordings; five segments of three speakers, the last one a part of a recording."""
    rows = [
        {"id": f"seg{i}", "recording": f"rec{i}", "start": 0.0, "duration": n / FS, "speaker": f"spk{i % 3}", "age": 20 + i,
         "score": 0.5 * i, "text": f"t{i}"}
        for i, n in enumerate(LENGTHS)
    ]  # fmt: skip
    rows.append({**rows[2], "id": "part", "start": 0.5, "duration": 1.0, "speaker": "spk2"})
    return {
        "recordings_file": write_recordings(tmp_path, LENGTHS),
        "segments_file": write_table(tmp_path / "segments.csv", rows),
    }


@pytest.fixture
def noisy(tmp_path: Path) -> list[dict]:
    noise = write_recordings(tmp_path / "noise", [3000, 40000], prefix="noise", seed=50)
    return [
        {"type": "noise", "recordings_file": noise, "snr": [0, 20]},
        {"type": "gain", "prob": 0.5},
        {"type": "speed", "prob": 0.5},
        {"type": "chunk_drop", "prob": 0.5},
    ]


def test_items_hold_what_the_tables_say(files):
    dataset = AudioDataset(
        **files, class_names=["speaker"], extra_attrs=["age"], return_segment_info=["score", "text", "speaker"]
    )
    assert len(dataset) == 5 and list(dataset.ids) == ["seg0", "seg1", "seg2", "seg3", "part"]
    item = dataset["seg1"]
    assert item.pop("audio").numpy() == pytest.approx(waveform(1, 12000), abs=1e-7)
    assert item == {"id": "seg1", "sample_freq": FS, "speaker": 1, "age": 21, "score": 0.5, "text": "t1"}
    assert type(item["sample_freq"]) is int and type(item["speaker"]) is int
    audio = dataset["seg1"]["audio"]
    assert audio.dtype == torch.float32 and audio.ndim == 1
    assert torch.equal(dataset["part"]["audio"], dataset["seg2"]["audio"][4000:12000])


def test_nothing_but_what_was_asked_for_is_returned(files):
    assert set(AudioDataset(**files)["seg0"]) == {"id", "sample_freq", "audio"}


def test_ranges_are_exact_in_samples(files):
    dataset = AudioDataset(**files)
    whole = dataset["part"]["audio"]
    for start, duration in [(0.0, 0.25), (0.125, 0.5), (0.75, 0.25), (0.1001, 0.3), (0, 1)]:
        first, count = round(start * FS), round(duration * FS)
        chunk = dataset[("part", start, duration)]["audio"]
        assert torch.equal(chunk, whole[first : first + count]) and len(chunk) == count


def test_a_range_may_leave_its_segment_by_a_millisecond_and_keeps_its_length(files):
    dataset = AudioDataset(**files)
    whole = dataset["part"]["audio"]
    assert torch.equal(dataset[("part", 0.5009, 0.5)]["audio"], whole[4000:])
    assert torch.equal(dataset[("part", -0.0009, 0.5)]["audio"], whole[:4000])
    assert torch.equal(dataset[("part", 0.0, 1.0009)]["audio"], whole)


@pytest.mark.parametrize(
    "key",
    [("part", 0.6, 0.5), ("part", -0.1, 0.5), ("part", 2.0, 0.1), ("part", 0.1, 0.0), ("part", 0.1, -0.5),
     ("part", float("nan"), 0.5), ("part", 0.0, float("inf")), ("part", 0.1, 0.00001)],
)  # fmt: skip
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_range_outside_the_segment_is_an_error(files, key, on_error):
    with pytest.raises(SegmentRangeError, match=r"'part'.*(range|shorter than one sample)") as raised:
        AudioDataset(**files, on_error=on_error)[key]
    assert isinstance(raised.value, ValueError)


def test_keys_of_every_kind(files):
    dataset = AudioDataset(**files)
    assert (
        dataset[1]["id"]
        == dataset[np.int64(-4)]["id"]
        == dataset["seg1"]["id"]
        == dataset[np.str_("seg1")]["id"]
        == "seg1"
    )
    batch = dataset[["seg1", ("seg2", 0.5, 0.25), 3, SegmentKey("seg0", 1, 2, True), ChunkKey("seg2", 0.5, 0.25)]]
    assert [item["id"] for item in batch] == ["seg1", "seg2", "seg3", "seg0", "seg2"]
    assert torch.equal(batch[1]["audio"], batch[4]["audio"])
    assert [item.get("repeat") for item in batch] == [None, None, None, True, False]
    assert all(type(item["id"]) is str for item in batch)
    assert dataset[[]] == []
    assert [item["id"] for item in dataset] == list(dataset.ids)


@pytest.mark.parametrize("key", [1.5, ("seg0", 1), ("seg0", "a", 1), ("seg0", "seg1", "seg2"), None, True, {"seg0"}])
def test_other_keys_are_type_errors_that_say_what_a_key_is(files, key):
    with pytest.raises(TypeError, match="no key"):
        AudioDataset(**files)[key]


def test_unknown_ids_and_rows(files):
    dataset = AudioDataset(**files, on_error="skip")
    with pytest.raises(KeyError, match=r"seg9"):
        dataset["seg9"]
    with pytest.raises(KeyError, match=r"seg9"):
        dataset[["seg0", ("seg9", 0, 1)]]
    with pytest.raises(IndexError, match="5"):
        dataset[5]


def test_padding_on_demand(files):
    dataset = AudioDataset(**files, aug_cfgs=[{"type": "gain", "gain_db": 6}], return_orig=True)
    item = dataset[ChunkKey("part", 0.0, 1.0, pad_to=1.5)]
    assert len(item["audio"]) == len(item["audio_orig"]) == 12000
    assert not item["audio"][8000:].any() and torch.equal(item["audio_orig"][:8000], dataset["part"]["audio_orig"])


def test_without_segments_every_recording_is_one(files):
    dataset = AudioDataset(recordings_file=files["recordings_file"])
    assert list(dataset.ids) == ["rec0", "rec1", "rec2", "rec3"] and len(dataset["rec3"]["audio"]) == 9001


def test_rate_scale_and_channels(files, tmp_path):
    assert len(AudioDataset(**files, target_sample_freq=16000)["seg3"]["audio"]) == 18002
    assert AudioDataset(**files, target_sample_freq=16000)["seg3"]["sample_freq"] == 16000
    scaled = AudioDataset(**files, wav_scale=32768.0)["seg0"]["audio"]
    assert torch.equal(scaled, AudioDataset(**files)["seg0"]["audio"] * 32768)
    stereo = np.stack([waveform(0, 4000), waveform(1, 4000)], axis=1)
    sf.write(tmp_path / "stereo.wav", stereo, FS)
    table = write_table(tmp_path / "stereo.csv", [{"id": "s", "storage_path": str(tmp_path / "stereo.wav")}])
    with pytest.raises(AudioFileError, match=r"channel_policy"):
        AudioDataset(table)["s"]
    assert AudioDataset(table, channel_policy=1)["s"]["audio"].numpy() == pytest.approx(stereo[:, 1], abs=1e-4)
    assert AudioDataset(table, channel_policy="mean")["s"]["audio"].numpy() == pytest.approx(stereo.mean(1), abs=1e-4)


def test_empty_audio_is_an_error(tmp_path):
    sf.write(tmp_path / "empty.wav", np.zeros(0), FS)
    table = write_table(tmp_path / "r.csv", [{"id": "nothing", "storage_path": str(tmp_path / "empty.wav")}])
    with pytest.raises(AudioFileError, match=r"nothing.*empty\.wav.*0 samples"):
        AudioDataset(table)["nothing"]


def test_class_tables_give_the_indices(files, tmp_path):
    speakers = write_table(tmp_path / "spk.csv", [{"id": f"spk{i}", "class_idx": 2 - i} for i in range(3)])
    ages = write_table(tmp_path / "ages.csv", [{"id": str(age), "class_idx": i} for i, age in enumerate(range(20, 24))])
    expected = {"speaker": 1, "age": 1}
    for class_files in ([speakers, ages], {"speaker": speakers, "age": ages}):
        dataset = AudioDataset(**files, class_names=["speaker", "age"], class_files=class_files)
        item = dataset["seg1"]
        assert {name: item[name] for name in expected} == expected
    assert dataset.num_classes("speaker") == 3 and set(dataset.class_infos) == {"speaker", "age"}
    assert AudioDataset(**files, class_names=["age"], class_files={"age": ages})["seg3"]["age"] == 3


def test_labels_that_have_no_index_are_found_at_once(files, tmp_path):
    table = write_table(tmp_path / "spk.csv", [{"id": "spk0", "class_idx": 0}, {"id": "spk1", "class_idx": 1}])
    with pytest.raises(ManifestError, match=r"segments\.csv.*'speaker'.*spk\.csv.*'spk2'"):
        AudioDataset(**files, class_names=["speaker"], class_files=[table])
    rows = [{"id": "a", "recording": "rec0", "speaker": "x"}, {"id": "b", "recording": "rec0", "speaker": ""}]
    segments = write_table(tmp_path / "unlabelled.csv", rows)
    with pytest.raises(ManifestError, match=r"no 'speaker'.*'b'"):
        AudioDataset(files["recordings_file"], segments, class_names=["speaker"])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"extra_attrs": ["agee"]}, KeyError, "did you mean 'age'"),
        ({"class_names": ["speakr"]}, KeyError, "did you mean 'speaker'"),
        ({"class_names": ["speaker"], "class_files": []}, ConfigError, "class_files"),
        ({"class_names": ["speaker"], "class_files": {"age": "x.csv"}}, ConfigError, "'age'"),
        ({"class_names": ["speaker"], "class_files": ["missing.csv"]}, FileNotFoundError, "missing.csv"),
        ({"extra_attrs": ["id"]}, ConfigError, "'id'"),
        ({"return_segment_info": ["audio_orig"]}, ConfigError, "'audio_orig'"),
        ({"class_names": ["audio_aug_1"]}, ConfigError, "'audio_aug_1'"),
        ({"num_augs": 2}, ConfigError, "aug_cfgs"),
        ({"num_augs": 0}, ConfigError, "num_augs"),
        ({"on_error": "ignore"}, ConfigError, "on_error"),
        ({"channel_policy": "left"}, ConfigError, "channel_policy"),
        ({"aug_cfgs": "missing.yaml"}, FileNotFoundError, "missing.yaml"),
        ({"aug_cfgs": [{"type": "speed", "new_classes": ["speaker"]}]}, ConfigError, "'speaker'"),
        (
            {"aug_cfgs": [{"type": "speed", "new_classes": ["speaker"]}], "class_names": ["speaker"], "num_augs": 2},
            ConfigError,
            "one view",
        ),
        ({"time_durs_file": "missing.csv"}, FileNotFoundError, "missing.csv"),
    ],
)
def test_options_that_cannot_be_are_refused(files, options, error, match):
    with pytest.raises(error, match=match):
        AudioDataset(**files, **options)


def test_a_data_set_needs_tables():
    with pytest.raises(ConfigError, match="recordings_file"):
        AudioDataset()
    with pytest.raises(ConfigError, match="did you mean 'recordings_file'"):
        AudioDataset.from_config({"recording_file": "x.csv"})


def test_a_data_set_file_names_tables_and_classes(files, tmp_path):
    write_table(tmp_path / "spk.csv", [{"id": f"spk{i}", "class_idx": 2 - i} for i in range(3)])
    (tmp_path / "dataset.yaml").write_text(
        "recordings: rec_recordings.csv\nsegments: segments.csv\nclasses: {speaker: spk.csv}\n"
    )
    for dataset in (
        AudioDataset(dataset_path=str(tmp_path), class_names=["speaker"]),
        AudioDataset(dataset=HyperDataset.load(tmp_path / "dataset.yaml"), class_names=["speaker"]),
    ):
        assert dataset["seg0"]["speaker"] == 2 and torch.equal(
            dataset["part"]["audio"], AudioDataset(**files)["part"]["audio"]
        )
    with pytest.raises(ConfigError, match="not both"):
        AudioDataset(dataset_path=str(tmp_path), dataset=HyperDataset.load(tmp_path))


def test_labels_may_be_numbers_but_not_fractions(tmp_path):
    recordings = write_recordings(tmp_path, [4000])
    rows = [
        {"id": "a", "recording": "rec0", "kind": 10, "level": 0.5},
        {"id": "b", "recording": "rec0", "kind": 2, "level": 1.0},
    ]
    segments = write_table(tmp_path / "s.csv", rows)
    dataset = AudioDataset(recordings, segments, class_names=["kind"])
    assert [dataset[i]["kind"] for i in "ab"] == [dataset.class_infos["kind"].class_idx(str(k)) for k in (10, 2)]
    with pytest.raises(ManifestError, match=r"'level'.*fractions"):
        AudioDataset(recordings, segments, class_names=["level"])
    flags = SegmentSet.from_rows([{"id": i, "recording": "rec0", "male": i == "a"} for i in "ab"])
    dataset = AudioDataset(dataset=HyperDataset(flags, RecordingSet.from_file(recordings)), class_names=["male"])
    assert (dataset["a"]["male"], dataset["b"]["male"]) == (1, 0)


def test_missing_numbers_are_nan_in_one_type(tmp_path):
    recordings = write_recordings(tmp_path, [4000])
    rows = [{"id": "a", "recording": "rec0", "age": 30}, {"id": "b", "recording": "rec0", "age": ""}]
    dataset = AudioDataset(recordings, write_table(tmp_path / "s.csv", rows), extra_attrs=["age"])
    assert type(dataset["a"]["age"]) is float and np.isnan(dataset["b"]["age"])


def test_a_segment_of_an_unknown_recording_is_named(files, tmp_path):
    segments = write_table(tmp_path / "s.csv", [{"id": "a", "recording": "rec7"}])
    with pytest.raises(ManifestError, match=r"s\.csv.*'a'.*'rec7'"):
        AudioDataset(files["recordings_file"], segments)["a"]


def test_durations_from_another_table(files, tmp_path):
    durations = write_table(
        tmp_path / "durs.csv", [{"id": i, "duration": 0.25} for i in ("part", "seg3", "seg2", "seg1", "seg0")]
    )
    dataset = AudioDataset(**files, time_durs_file=durations)
    assert len(dataset["part"]["audio"]) == 2000 and torch.equal(
        dataset["part"]["audio"], AudioDataset(**files)["part"]["audio"][:2000]
    )
    short = write_table(tmp_path / "short.csv", [{"id": "part", "duration": 0.25}])
    with pytest.raises(ManifestError, match=r"short\.csv.*'seg0'"):
        AudioDataset(**files, time_durs_file=short)


def test_the_configuration_rebuilds_the_data_set(files, noisy):
    dataset = AudioDataset(**files, class_names=["speaker"], aug_cfgs=noisy, seed=5, wav_scale=2.0)
    config = dataset.get_config()
    twin = AudioDataset.from_config(config)
    assert twin.get_config() == config and "dataset" not in config
    assert torch.equal(twin["seg0"]["audio"], dataset["seg0"]["audio"])


def test_options_on_a_command_line(files):
    parser = ArgumentParser()
    AudioDataset.add_class_args(parser, "data")
    args = [f"--data.{key.replace('_', '-')}={value}" for key, value in files.items()]
    parsed = parser.parse_args(
        [*args, "--data.class_names=[speaker]", "--data.aug_cfgs=a.yaml", "--data.channel_policy=0"]
    )
    assert parsed.data.aug_cfgs == "a.yaml" and parsed.data.channel_policy == 0
    options = {**parsed.data.as_dict(), "aug_cfgs": None}
    assert AudioDataset.from_config(options)["seg1"]["speaker"] == 1
    assert AudioDataset.filter_args(seed=3, num_epochs=2) == {"seed": 3}


def test_batches_are_sorted_and_aligned(files):
    dataset = AudioDataset(**files, class_names=["speaker"], extra_attrs=["text"])
    batch = dataset.collate(dataset[["seg0", "seg2", ("seg1", 0, 0.5)]])
    assert batch["id"] == ["seg2", "seg0", "seg1"] and batch["audio_lengths"].tolist() == [16000, 8000, 4000]
    assert batch["speaker"].tolist() == [2, 0, 1] and batch["text"] == ["t2", "t0", "t1"]
    assert batch["sample_freq"].tolist() == [FS] * 3 and not batch["audio"][2, 4000:].any()


# --- augmentation


def bits(item: dict) -> bytes:
    return item["audio"].numpy().tobytes()


def test_what_is_drawn_depends_on_seed_epoch_segment_and_occurrence_alone(files, noisy):
    dataset = AudioDataset(**files, aug_cfgs=noisy, seed=1)
    base = bits(dataset[SegmentKey("seg0", 3, 1)])
    dataset["seg1"], dataset[SegmentKey("seg0", 4, 1)]
    torch.manual_seed(99), np.random.seed(99)
    assert (
        bits(dataset[SegmentKey("seg0", 3, 1)])
        == base
        == bits(AudioDataset(**files, aug_cfgs=noisy, seed=1)[SegmentKey("seg0", 3, 1)])
    )
    others = [
        bits(dataset[SegmentKey("seg0", 4, 1)]),
        bits(dataset[SegmentKey("seg0", 3, 2)]),
        bits(AudioDataset(**files, aug_cfgs=noisy, seed=2)[SegmentKey("seg0", 3, 1)]),
    ]
    assert len({base, *others}) == 4


def test_plain_keys_take_the_epoch_that_was_set(files, noisy):
    dataset = AudioDataset(**files, aug_cfgs=noisy)
    first = bits(dataset["seg0"])
    assert first == bits(dataset[SegmentKey("seg0", 0, 0)])
    dataset.set_epoch(7)
    assert dataset.epoch == 7 and bits(dataset["seg0"]) == bits(dataset[SegmentKey("seg0", 7, 0)]) != first
    assert bits(dataset[SegmentKey("seg0", 0, 0)]) == first


def test_validation_data_is_augmented_alike_in_every_epoch(files, noisy):
    dataset = AudioDataset(**files, aug_cfgs=noisy, is_val=True)
    assert bits(dataset[SegmentKey("seg0", 5)]) == bits(dataset[SegmentKey("seg0", 0)])


def test_views_and_the_original(files, noisy):
    dataset = AudioDataset(
        **files, aug_cfgs=[noisy, [{"type": "gain", "prob": 0.0}]], num_augs=2, return_orig=True, return_aug_info=True
    )
    item = dataset["seg0"]
    names = ["audio", "audio_aug_1", "audio_aug_2", "audio_aug_3", "audio_orig"]
    assert [name for name in item if name.startswith("audio")] == names
    assert torch.equal(item["audio_orig"], AudioDataset(**files)["seg0"]["audio"])
    assert not torch.equal(item["audio"][:6000], item["audio_aug_1"][:6000])
    assert torch.equal(item["audio_aug_2"], item["audio_orig"]) and item["aug_info"][2] == {}
    item["audio_aug_2"].zero_()
    assert item["audio_orig"].any() and item["audio_aug_3"].any()
    batch = dataset.collate([item, dataset["seg1"]])
    assert batch["audio_orig_lengths"].tolist() == [12000, 8000] and len(batch["aug_info"]) == 2


def test_speeds_make_new_classes(files):
    config = [{"type": "speed", "speeds": [1.0, 0.9, 1.1], "new_classes": ["speaker"]}]
    dataset = AudioDataset(**files, class_names=["speaker"], extra_attrs=["age"], aug_cfgs=config, return_aug_info=True)
    assert dataset.num_classes("speaker") == 9
    seen = set()
    for epoch in range(20):
        item = dataset[SegmentKey("seg1", epoch)]
        speed = item["aug_info"][0]["speed"]["speed"]
        assert item["speaker"] == 1 + 3 * [1.0, 0.9, 1.1].index(speed) and item["age"] == 21
        assert len(item["audio"]) == round(12000 / speed)
        seen.add(speed)
    assert seen == {0.9, 1.0, 1.1}


KEYS = [
    [SegmentKey(f"seg{i}", e, o), ChunkKey(f"seg{(i + 1) % 4}", 0.1, 0.5, e, o)]
    for e in range(2)
    for o in range(2)
    for i in range(4)
]


@pytest.mark.parametrize("workers", [2, 4])
def test_batches_are_bit_identical_for_any_number_of_workers(files, noisy, workers):
    dataset = AudioDataset(**files, class_names=["speaker"], aug_cfgs=noisy)
    alone = list(DataLoader(dataset, batch_sampler=KEYS, collate_fn=dataset.collate))
    many = list(
        DataLoader(dataset, batch_sampler=KEYS, collate_fn=dataset.collate, num_workers=workers, prefetch_factor=3)
    )
    assert len(alone) == len(many) == len(KEYS)
    for a, b in zip(alone, many, strict=True):
        assert a.keys() == b.keys() and a["id"] == b["id"]
        assert all(torch.equal(a[k], b[k]) for k in a if isinstance(a[k], torch.Tensor))
    assert len({a["audio"].numpy().tobytes() for a in alone}) == len(alone)


def test_workers_started_by_spawn_and_kept_alive_see_the_epoch(files, noisy):
    dataset = AudioDataset(**files, aug_cfgs=noisy)
    loader = DataLoader(
        dataset,
        sampler=["seg0", "seg1"],
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert [bits(item) for item in loader] == [bits(dataset[SegmentKey(s, epoch)]) for s in ("seg0", "seg1")]


def test_a_pickled_copy_gives_the_same_items(files, noisy):
    dataset = AudioDataset(**files, class_names=["speaker"], aug_cfgs=noisy)
    dataset.set_epoch(2)
    copy = pickle.loads(pickle.dumps(dataset))
    assert bits(copy["seg0"]) == bits(dataset["seg0"]) and copy.get_config() == dataset.get_config()


def test_reading_leaves_nothing_behind(files, noisy):
    dataset = AudioDataset(**files, class_names=["speaker"], extra_attrs=["text"], aug_cfgs=noisy, return_orig=True)

    def held(epoch: int) -> tuple[int, int]:
        for key in KEYS:
            dataset.collate(dataset[[SegmentKey(key[0], epoch), *key[1:]]])
        gc.collect()
        return len(gc.get_objects()), len(pickle.dumps(dataset))

    held(0)
    (objects, size), (objects_later, size_later) = held(1), held(2)
    assert size_later == size and objects_later - objects < 50


# --- files that cannot be read


@pytest.fixture
def broken(files, tmp_path) -> dict[str, str]:
    (tmp_path / "wav" / "rec1.wav").write_bytes(b"<html>not audio</html>")
    return files


def test_an_unreadable_file_is_an_error(broken):
    with pytest.raises(AudioFileError, match=r"seg1.*rec1\.wav"):
        AudioDataset(**broken)["seg1"]


def test_errors_of_workers_keep_their_class_and_message(broken):
    dataset = AudioDataset(**broken)
    for key, kind, message in (
        ("seg1", AudioFileError, r"seg1.*rec1\.wav"),
        (("part", 0.9, 0.2), SegmentRangeError, r"'part'.*tolerance"),
    ):
        with pytest.raises(kind, match=message) as raised:
            list(DataLoader(dataset, sampler=[key], batch_size=None, num_workers=1))
        # else the garbage collector ends the workers, and waits five seconds for each
        traceback.clear_frames(raised.tb)


def test_skip_replaces_deterministically_counts_and_says_so(broken, caplog):
    dataset = AudioDataset(**broken, class_names=["speaker"], on_error="skip", seed=3)
    with caplog.at_level(logging.WARNING):
        items = [dataset[SegmentKey("seg1", epoch)] for epoch in range(8)]
    assert dataset.num_skipped == 8
    assert "'seg1'" in caplog.text and "rec1.wav" in caplog.text
    twin = AudioDataset(**broken, class_names=["speaker"], on_error="skip", seed=3)
    assert [i["id"] for i in items] == [twin[SegmentKey("seg1", epoch)]["id"] for epoch in range(8)]
    assert len({i["id"] for i in items}) > 1 and "seg1" not in {i["id"] for i in items}
    for item in items:
        assert item["speaker"] == dataset[item["id"]]["speaker"] and torch.equal(
            item["audio"], dataset[item["id"]]["audio"]
        )


def test_a_replaced_range_keeps_its_duration(broken):
    dataset = AudioDataset(**broken, on_error="skip")
    items = [dataset[ChunkKey("seg1", 0.2, 1.1, epoch)] for epoch in range(6)]
    assert all(len(item["audio"]) == 8800 and item["id"] in ("seg2", "seg3") for item in items)
    assert dataset.num_skipped == 6


def test_skips_of_workers_are_counted(broken):
    dataset = AudioDataset(**broken, on_error="skip")
    keys = [[SegmentKey("seg1", epoch)] for epoch in range(6)]
    single = [batch["id"] for batch in DataLoader(dataset, batch_sampler=keys, collate_fn=dataset.collate)]
    workers = [
        batch["id"] for batch in DataLoader(dataset, batch_sampler=keys, collate_fn=dataset.collate, num_workers=2)
    ]
    assert single == workers and dataset.num_skipped == 12


def test_when_nothing_can_be_read_the_first_error_is_raised(tmp_path):
    table = write_table(
        tmp_path / "r.csv",
        [{"id": f"r{i}", "storage_path": str(tmp_path / f"{i}.wav"), "duration": 1} for i in range(3)],
    )
    with pytest.raises(AudioFileError, match=r"r0.*0\.wav"):
        AudioDataset(table, on_error="skip")["r0"]
