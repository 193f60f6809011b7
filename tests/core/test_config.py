"""The configuration mixin: what is recorded, checked, rebuilt and put on a command line."""

from __future__ import annotations

import copy
import enum
import inspect
import logging
import pathlib
from typing import Any, Literal

import numpy as np
import pytest
from torch import nn

from hyperion_lite.core.config import Configurable, check_config, to_plain
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.parser import ArgumentParser


class Part(Configurable, nn.Module):
    """A part.

    Args:
        frame_shift: milliseconds between frames.
        kind: which one.
        channels: one for all, or a list.
        act: activation.
    """

    def __init__(
        self,
        frame_shift: int,
        kind: Literal["x", "y"] = "x",
        channels: int | list[int] = 3,
        act: str | dict[str, Any] | None = "relu",
        rate: float = 0.5,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(frame_shift, 2)


class Base(Configurable, nn.Module):
    """Base.

    Args:
        encoder: an object that subclasses supply.
        num_classes: how many.
        margin: in radians.
    """

    def __init__(self, encoder: nn.Module, num_classes: int, margin: float = 0.3) -> None:
        super().__init__()
        self.encoder = encoder


class Whole(Base):
    nested_configs = {"part": Part}
    config_exclude = ("encoder",)

    def __init__(self, part: dict[str, Any] | Part, extra: dict[str, Any] | None = None, **kwargs: Any) -> None:
        part = part if isinstance(part, Part) else Part.from_config(part)
        super().__init__(encoder=part, **kwargs)
        self._update_config(part=part)


class Colour(enum.Enum):
    RED = "red"


def test_config_rebuilds_the_object_and_is_the_same_document():
    whole = Whole({"frame_shift": 3}, num_classes=4)
    config = whole.get_config()
    assert config == {
        "part": {"frame_shift": 3, "kind": "x", "channels": 3, "act": "relu", "rate": 0.5},
        "extra": None,
        "num_classes": 4,
        "margin": 0.3,
    }
    assert Whole(**config).get_config() == config
    assert Whole.from_config(config).get_config() == config
    assert copy.deepcopy(whole).get_config() == config


def test_arguments_are_neither_changed_nor_shared():
    given = {"frame_shift": 3, "channels": [1, 2]}
    before = copy.deepcopy(given)
    whole = Whole(given, num_classes=4)
    whole.get_config()["part"]["channels"].append(9)
    given["channels"].append(5)
    assert before == {"frame_shift": 3, "channels": [1, 2]}
    assert whole.get_config()["part"]["channels"] == [1, 2]


class Unrecorded(Configurable):
    """Holds what cannot be copied."""

    config_exclude = ("stream",)

    def __init__(self, stream: Any, size: int = 1) -> None:
        self.stream = stream


class UnrecordedToo(Unrecorded):
    config_exclude = ("other",)

    def __init__(self, other: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)


def test_what_a_class_excludes_its_subclasses_exclude_too(tmp_path):
    with (tmp_path / "x").open("w") as stream:
        assert UnrecordedToo(other=[stream], stream=[stream], size=2).get_config() == {"size": 2}


def test_class_name_in_a_configuration_is_checked():
    assert Part(class_name="Part", frame_shift=1).get_config()["frame_shift"] == 1
    with pytest.raises(ConfigError, match="'Other' was given to Part"):
        Part(class_name="Other", frame_shift=1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"part": {"frame_shft": 1}, "num_classes": 2}, "unknown key 'frame_shft', did you mean 'frame_shift'"),
        ({"part": {"frame_shift": 1}}, "missing key 'num_classes'"),
        ({"part": {"frame_shift": 1}, "num_classes": "many"}, "Whole.num_classes: expected int, got 'many'"),
        ({"part": {"frame_shift": 1, "kind": "z"}, "num_classes": 2}, "Whole.part.kind: expected"),
        ({"part": {"frame_shift": 1, "channels": [1, "a"]}, "num_classes": 2}, "Whole.part.channels"),
        ({"part": {"frame_shift": True}, "num_classes": 2}, "Whole.part.frame_shift"),
        ({"part": 3, "num_classes": 2}, "Whole.part"),
    ],
)
def test_wrong_configurations_are_refused_with_the_key(config, message):
    with pytest.raises(ConfigError, match=message):
        Whole.from_config(config)


def test_unknown_keys_of_a_model_file_are_one_warning(caplog):
    config = {"part": {"frame_shift": 1, "old": 1}, "num_classes": 2, "older": 3}
    with caplog.at_level(logging.WARNING):
        checked = check_config(Whole, config, on_unknown="warn")
    assert checked == {"part": {"frame_shift": 1}, "num_classes": 2}
    assert len(caplog.records) == 1
    assert "old" in caplog.text and "older" in caplog.text


def test_null_where_a_value_is_needed_is_the_default():
    assert check_config(Part, {"frame_shift": 3, "rate": None, "kind": None, "act": None}) == {
        "frame_shift": 3,
        "act": None,
    }
    with pytest.raises(ConfigError, match="frame_shift: expected a value, got null"):
        check_config(Part, {"frame_shift": None})


def test_filter_args_keeps_the_supported_keys():
    assert Whole.filter_args(part={}, margin=1.0, lr=0.1, encoder=None) == {"part": {}, "margin": 1.0}


def test_to_plain_reduces_what_has_a_plain_form():
    value = {"a": (1, np.float32(0.5)), "b": Colour.RED, "c": pathlib.PurePosixPath("/x"), 3: {1}}
    assert to_plain(value) == {"a": [1, 0.5], "b": "red", "c": "/x", "3": [1]}
    with pytest.raises(ConfigError, match=r"config.f holds a function"):
        to_plain({"f": test_to_plain_reduces_what_has_a_plain_form})


def test_signature_is_the_constructor():
    assert list(inspect.signature(Part).parameters) == ["frame_shift", "kind", "channels", "act", "rate"]


class TestParser:
    def make(self) -> ArgumentParser:
        parser = ArgumentParser(exit_on_error=False)
        Whole.add_class_args(parser, "model")
        return parser

    def test_nested_options_with_dashes_or_underscores(self):
        for option in ("--model.part.frame_shift", "--model.part.frame-shift"):
            args = self.make().parse_args([option, "7", "--model.num-classes=3"])
            assert args.model.part.frame_shift == 7
            assert args.model.num_classes == 3
            assert args.model.part.channels == 3

    def test_help_comes_from_the_docstring(self):
        assert "milliseconds between frames" in self.make().format_help()

    def test_an_unknown_option_is_reported_with_the_nearest(self):
        parser = ArgumentParser()
        Whole.add_class_args(parser, "model")
        with pytest.raises(SystemExit):
            parser.parse_args(["--model.part.frame_shift=1", "--model.num_classes=2", "--model.margn=1"])

    def test_nearest_is_in_the_message(self, capsys):
        parser = ArgumentParser()
        Whole.add_class_args(parser, "model")
        with pytest.raises(SystemExit):
            parser.parse_args(["--model.part.frame_shift=1", "--model.num_classes=2", "--model.margn=1"])
        assert "did you mean 'model.margin'" in capsys.readouterr().err

    def test_no_abbreviation(self):
        with pytest.raises(SystemExit):
            ArgumentParser().parse_args(["--hel"])
