"""Samplers by type name."""

from __future__ import annotations

from typing import Any

import pytest

from hyperion_lite.core.parser import ArgumentParser
from hyperion_lite.data.seg_sampler import SegSampler
from hyperion_lite.data.seg_sampler_factory import SegSamplerFactory
from tests.contracts.sampler_tester import fake_dataset, plain

ALL_OPTIONS = {
    "min_chunk_length": 2.0,
    "max_chunk_length": 4.0,
    "max_batch_length": 100.0,
    "shuffle": True,
    "class_name": "speaker",
    "num_buckets": 4,
    "num_segs_per_class": 2,
    "seed": 5,
}


@pytest.mark.parametrize("sampler_type", list(SegSamplerFactory.sampler_types))
def test_one_document_of_options_makes_every_type(sampler_type: str) -> None:
    options = SegSamplerFactory.filter_args(sampler_type=sampler_type, learning_rate=0.1, **ALL_OPTIONS)
    assert "learning_rate" not in options
    sampler = SegSamplerFactory.create(fake_dataset(), **options)
    assert type(sampler) is SegSamplerFactory.sampler_types[sampler_type]
    assert sampler.seed == 5 and len(sampler) > 1
    assert plain(sampler) == plain(type(sampler)(fake_dataset(), **sampler.get_config()))


def test_base_sampler_in_either_spelling() -> None:
    for name in ("base_sampler", "base_sampler_type"):
        sampler = SegSamplerFactory.create(
            fake_dataset(), "seg_chunk_sampler", **{name: "bucketing_seg_sampler"}, **ALL_OPTIONS
        )
        assert sampler.get_config()["base_sampler"] == "bucketing_seg_sampler"
        assert SegSamplerFactory.filter_args(**{name: "x"}) == {name: "x"}


def test_older_spellings() -> None:
    sampler = SegSamplerFactory.create(fake_dataset(), "seg_sampler", batch_size=4)
    assert isinstance(sampler, SegSampler) and {len(b) for b in sampler} == {4, 1}
    chunks = SegSamplerFactory.create(
        fake_dataset(), "random_seg_chunk_sampler", iters_per_epoch=2, length_sampling_method="maximum", **ALL_OPTIONS
    )
    assert chunks.get_config()["num_chunks_per_seg_epoch"] == 2
    assert chunks.get_config()["length_sampling"] == "maximum"


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="unknown sampler_type 'seg_samplr', did you mean 'seg_sampler'"):
        SegSamplerFactory.create(fake_dataset(), sampler_type="seg_samplr")  # type: ignore[arg-type]
    for kind, base in (
        ("bucketing_seg_sampler", "random_seg_chunk_sampler"),
        ("bucketing_seg_sampler", "bucketing_seg_sampler"),
        ("seg_chunk_sampler", "class_weighted_random_seg_chunk_sampler"),
        ("seg_chunk_sampler", "seg_chunk_sampler"),
        ("seg_chunk_sampler", "nonsense"),
    ):
        with pytest.raises(ValueError, match="base sampler"):
            SegSamplerFactory.create(fake_dataset(), kind, base_sampler=base, **ALL_OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown sampler option 'max_batch_sise', did you mean 'max_batch_size'"):
        SegSamplerFactory.create(fake_dataset(), "seg_sampler", max_batch_sise=4)
    with pytest.raises(ValueError, match="needs min_chunk_length"):
        SegSamplerFactory.create(fake_dataset(), "random_seg_chunk_sampler", max_batch_size=4)


def test_command_line_options() -> None:
    parser = ArgumentParser(exit_on_error=False)
    SegSamplerFactory.add_class_args(parser, prefix="sampler")
    parsed = parser.parse_args(
        [
            "--sampler.sampler-type",
            "bucketing_seg_sampler",
            "--sampler.max_batch_length",
            "90",
            "--sampler.shuffle",
            "true",
        ]
    )
    options = SegSamplerFactory.filter_args(**parsed.sampler)
    sampler = SegSamplerFactory.create(fake_dataset(), **options)
    assert sampler.get_config()["max_batch_length"] == 90.0 and sampler.shuffle
    for sampler_class in SegSamplerFactory.sampler_types.values():
        other = ArgumentParser(exit_on_error=False)
        sampler_class.add_class_args(other, "s")
        assert "s.max_batch_size" in other.option_names()


@pytest.mark.parametrize(
    ("sampler_type", "options"),
    [
        ("seg_sampler", {"shuffle": True}),
        ("bucketing_seg_sampler", {"shuffle": True}),
        ("seg_chunk_sampler", {"shuffle": True, "min_chunk_length": 2.0}),
        ("class_weighted_random_seg_chunk_sampler", {"min_chunk_length": 2.0, "class_name": "speaker"}),
    ],
)
def test_training_without_any_limit_has_no_batches_of_one(sampler_type: str, options: dict[str, Any]) -> None:
    sampler = SegSamplerFactory.create(fake_dataset(31), sampler_type=sampler_type, **options)
    assert min(len(batch) for batch in sampler) >= 2
    assert len(next(iter(SegSamplerFactory.create(fake_dataset(31), sampler_type="seg_sampler")))) == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"max_batch_size": 2.5}, "max_batch_size must be a whole number, got 2.5"),
        ({"max_batch_size": True}, "max_batch_size must be a whole number"),
        ({"max_batch_size": "8"}, "max_batch_size must be a whole number, got '8'"),
        ({"max_batch_length": "60"}, "max_batch_length must be a number"),
        ({"max_batches_per_epoch": 3.5}, "max_batches_per_epoch must be a whole number"),
        ({"length_name": "speaker"}, "column 'speaker' of .* does not hold numbers"),
        ({"weight_exponent": float("nan")}, "weight_exponent must be a finite number"),
    ],
)
def test_options_of_the_wrong_kind_are_named(option: dict[str, Any], message: str) -> None:
    options = {"min_chunk_length": 2.0, "max_batch_size": 8, "class_name": "speaker", **option}
    with pytest.raises(ValueError, match=message):
        SegSamplerFactory.create(fake_dataset(), **options)


def test_what_is_no_state_is_refused() -> None:
    sampler = SegSamplerFactory.create(fake_dataset(), sampler_type="seg_sampler", max_batch_size=8)
    state = sampler.state_dict()
    for wrong in (None, 5, [], {**state, "limits": {}}, {**state, "limits": None}, {**state, "config": None}):
        with pytest.raises(ValueError, match="state"):
            sampler.load_state_dict(wrong)


@pytest.mark.parametrize("sampler_type", [["seg_sampler"], {"a": 1}, 3, None])
def test_a_type_that_is_no_text_is_an_unknown_type(sampler_type: object) -> None:
    with pytest.raises(ValueError, match=r"unknown sampler_type.*known: "):
        SegSamplerFactory.create(None, sampler_type=sampler_type)  # type: ignore[arg-type]
