from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from hyperion_lite.core.errors import ConfigError
from hyperion_lite.data.augment import Augmenter, AugmentPipeline, Occasion, load_pipelines
from hyperion_lite.data.augment.base import augmenters
from tests.data.audio_files import waveform, write_recordings, write_table

FS = 8000
X = waveform(0, 4000)
GAIN = {"type": "gain", "gain_db": [-10, 10]}
CHUNKS = {"type": "chunk_drop"}


def occasion(**changes) -> Occasion:
    return Occasion(**{"seed": 1, "epoch": 0, "item_id": "seg", **changes})


def test_all_types_of_the_documentation_are_known():
    names = {"noise", "music", "babble", "reverb", "speed", "codec", "gain", "freq_drop", "chunk_drop", "one_of"}
    assert names <= set(augmenters)


def test_an_augmenter_draws_the_same_whatever_stands_beside_it():
    alone = AugmentPipeline([GAIN])(X, FS, occasion()).info["gain"]
    beside = AugmentPipeline([{"type": "freq_drop"}, GAIN, CHUNKS])(X, FS, occasion()).info["gain"]
    renamed = AugmentPipeline([{**GAIN, "name": "volume"}])(X, FS, occasion()).info["volume"]
    assert alone == beside != renamed


@pytest.mark.parametrize("change", [{"seed": 2}, {"epoch": 1}, {"item_id": "seh"}, {"occurrence": 1}, {"view": 1}])
def test_every_part_of_the_occasion_counts(change):
    pipeline = AugmentPipeline([GAIN])
    assert pipeline(X, FS, occasion(**change)).info != pipeline(X, FS, occasion()).info
    assert pipeline(X, FS, occasion(**change)).info == pipeline(X, FS, occasion(**change)).info


def test_probabilities_are_kept():
    pipeline = AugmentPipeline(
        [{**GAIN, "name": n, "prob": p} for n, p in (("never", 0), ("some", 0.3), ("always", 1))]
    )
    applied = [set(pipeline(X[:10], FS, occasion(epoch=e)).info) for e in range(400)]
    rates = {n: np.mean([n in a for a in applied]) for n in pipeline.names}
    assert rates["never"] == 0 and rates["always"] == 1 and abs(rates["some"] - 0.3) < 0.08


def test_augmenters_are_applied_in_order_and_the_input_is_kept():
    x = X.copy()
    x.flags.writeable = False
    result = AugmentPipeline([CHUNKS, {"type": "gain", "gain_db": 20}])(x, FS, occasion())
    expected = x.copy()
    for start, stop in result.info["chunk_drop"]["chunks"]:
        expected[start:stop] = 0
    assert np.array_equal(result.audio, expected * np.float32(10))
    assert list(result.info) == ["chunk_drop", "gain"]


def test_one_of_chooses_by_weight():
    parts = [{**GAIN, "name": "a", "weight": 3}, {**GAIN, "name": "b"}, {**GAIN, "name": "c", "weight": 0}]
    pipeline = AugmentPipeline([{"type": "one_of", "augmenters": parts}])
    chosen = [pipeline(X[:10], FS, occasion(epoch=e)).info["one_of"]["chosen"] for e in range(400)]
    assert set(chosen) == {"a", "b"} and abs(chosen.count("a") / 400 - 0.75) < 0.07


def test_new_classes_come_through_a_choice():
    speed = {"type": "speed", "speeds": [0.9, 1.1], "new_classes": ["speaker"]}
    pipeline = AugmentPipeline([{"type": "one_of", "augmenters": [speed]}])
    assert pipeline.new_classes == ["speaker"] and pipeline.class_multiplier == 3
    assert {pipeline(X, FS, occasion(epoch=e)).class_shift for e in range(20)} == {1, 2}
    with pytest.raises(ConfigError, match=r"'speed'.*'again'.*new classes"):
        AugmentPipeline([speed, {**speed, "name": "again"}])


def test_files_name_paths_relative_to_themselves(tmp_path, monkeypatch):
    write_recordings(tmp_path / "sub" / "data", [3000], FS, "noise")
    entry = {"type": "noise", "snr": 10, "recordings_file": "data/noise_recordings.csv"}
    config = {"augmenters": [{"type": "one_of", "augmenters": [entry]}, {**entry, "name": "second"}]}
    (tmp_path / "sub" / "augment.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    for path in ("sub/augment.yaml", tmp_path / "sub" / "augment.yaml"):
        result = AugmentPipeline.load(path)(X, FS, occasion())
        assert result.info["second"]["source"] == "noise0" == result.info["one_of"]["source"]


def test_data_sets_name_pipelines_in_several_ways(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(yaml.safe_dump({"augmenters": [GAIN]}))
    second.write_text(yaml.safe_dump([CHUNKS, GAIN]))

    def names(config):
        return [pipeline.names for pipeline in load_pipelines(config)]

    assert names(None) == names([]) == []
    assert names(str(first)) == [["gain"]]
    assert names([str(first), second]) == [["gain"], ["chunk_drop", "gain"]]
    assert names([CHUNKS, GAIN]) == [["chunk_drop", "gain"]]
    assert names({"augmenters": [GAIN]}) == [["gain"]]
    assert names([{"type": "one_of", "augmenters": [GAIN]}, CHUNKS]) == [["one_of", "chunk_drop"]]
    with pytest.raises(ConfigError, match=r"'type'.*'typ'"):
        load_pipelines([{"typ": "gain"}])
    assert names([[GAIN], {"augmenters": [CHUNKS]}, str(first)]) == [["gain"], ["chunk_drop"], ["gain"]]


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ([], "list of augmenters"),
        ("gain", "list of augmenters"),
        (["gain"], "augmenter 1.*mapping"),
        ([{"typ": "gain"}], "'type'.*'typ'"),
        ([{"type": "gane"}], "did you mean 'gain'.*known: .*chunk_drop"),
        ([GAIN, {"type": "chunk_drop", "num_chunk": 3}], "augmenter 2.*'num_chunk', did you mean 'num_chunks'"),
        ([{**GAIN, "porb": 0.5}], "'porb', did you mean 'prob'"),
        ([{**GAIN, "weight": 0.5}], "unknown key 'weight'"),
        ([{**GAIN, "prob": 1.5}], "prob"),
        ([{**GAIN, "prob": float("nan")}], "prob"),
        ([{**GAIN, "prob": "often"}], "prob.*'often'"),
        ([{**GAIN, "name": 3}], "name"),
        ([GAIN, GAIN], "augmenter 2.*called 'gain'"),
        ([{"type": "gain", "gain_db": "loud", "name": "vol"}], "'vol'.*gain_db"),
        ([{"type": "gain", "gain_db": [3, 1]}], "gain_db.*low <= high"),
        ([{"type": "one_of", "augmenters": [{**GAIN, "prob": 0.5}]}], "one_of.*'prob'"),
        ([{"type": "one_of", "augmenters": [{**GAIN, "weight": 0}]}], "one_of.*weights"),
        ([{"type": "one_of", "augmenters": []}], "one_of.*list"),
        ([{"type": "one_of"}], "'augmenters'"),
        ([{"type": "noise"}], "noise.*dataset_path"),
    ],
)
def test_mistakes_are_named_with_their_place(entries, match):
    with pytest.raises(ConfigError, match=match):
        AugmentPipeline(entries)


def test_mistakes_in_files_name_the_file(tmp_path):
    path = tmp_path / "bad.yaml"
    for text, match in [
        ("augmenters: [{type: gane}]", "gane"),
        ("augmentors: []", "did you mean 'augmenters'"),
        ("a: [", "not YAML"),
        ("", "list"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"(?s)bad\.yaml.*{match}"):
            AugmentPipeline.load(path)


def test_the_configuration_is_not_changed_and_rebuilds_the_pipeline():
    config = [{"type": "one_of", "augmenters": [dict(GAIN), dict(CHUNKS)]}, dict(GAIN)]
    before = repr(config)
    pipeline = AugmentPipeline(config, base_folder="/somewhere")
    assert repr(config) == before
    twin = AugmentPipeline.from_config(pipeline.get_config())
    assert twin(X, FS, occasion()).info == pipeline(X, FS, occasion()).info


def test_the_shipped_configuration_is_valid(tmp_path):
    path = Path(__file__).parents[3] / "configs" / "augment.yaml"
    for name in ("rir", "noise", "music", "voices"):
        table = write_recordings(tmp_path / name, [2000, 3000], FS, name, scale=0.1)
        segments = write_table(tmp_path / name / "segments.csv", [{"id": f"{name}{i}"} for i in range(2)])
        entries = {"recordings": Path(table).name, "segments": Path(segments).name}
        (tmp_path / name / "dataset.yaml").write_text(yaml.safe_dump(entries))
    (tmp_path / "augment.yaml").write_text(path.read_text())
    pipeline = AugmentPipeline.load(tmp_path / "augment.yaml")
    seen: set[str] = set()
    for epoch in range(60):
        result = pipeline(X, FS, occasion(epoch=epoch))
        assert np.isfinite(result.audio).all() and result.audio.size >= 1
        seen |= set(result.info)
    assert seen == set(pipeline.names)


def test_a_type_of_ones_own_is_registered_by_its_name():
    class Flip(Augmenter):
        type_name = "flip_for_this_test"

        def __call__(self, audio, sample_freq, rng):
            return -audio, {}

    assert np.array_equal(AugmentPipeline([{"type": "flip_for_this_test"}])(X, FS, occasion()).audio, -X)
