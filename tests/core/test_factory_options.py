from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import ClassVar

import pytest

from hyperion_lite.core.config import Configurable
from hyperion_lite.core.errors import ConfigError
from hyperion_lite.core.factory_options import at_least, checked_options, choose, fraction, positive
from hyperion_lite.core.schedule_state import check_state_keys, report_changes


class SieveFactory(Configurable):
    config_method: ClassVar[str] = "create"

    @staticmethod
    def create(
        width: float = 1.0, count: int | None = None, widths: float | list[float] = 0.0, fine: bool = False
    ) -> None:
        """Nothing."""


def test_numbers_as_text_become_numbers() -> None:
    options = {"width": "1e-3", "count": "12", "widths": [1e-3, 2.0], "fine": True}
    assert checked_options(SieveFactory, options, {}) == {
        "width": 0.001,
        "count": 12,
        "widths": [0.001, 2.0],
        "fine": True,
    }
    assert type(checked_options(SieveFactory, {"width": 3}, {})["width"]) is float
    assert checked_options(SieveFactory, {"count": None}, {}) == {"count": None}


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'widht', did you mean 'width'"):
        checked_options(SieveFactory, {}, {"widht": 3})
    with pytest.raises(ConfigError, match="count"):
        checked_options(SieveFactory, {"count": 1.5}, {})
    with pytest.raises(ConfigError, match=r"unknown mesh 'fin', did you mean 'fine'\? .*fine, coarse"):
        choose("mesh", "fin", ["fine", "coarse"])


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_ranges(value: float) -> None:
    for check in (lambda v: at_least("x", v, 0), lambda v: positive("x", v), lambda v: fraction("x", v)):
        with pytest.raises(ConfigError, match="x must be"):
            check(value)
        assert check(0.5) == 0.5
    assert at_least("x", 0, 0) == 0
    with pytest.raises(ConfigError, match="above 0"):
        positive("x", 0)


def test_state_keys() -> None:
    assert check_state_keys("Slope", {"a": 1, "b": 2}, ["b", "a"]) is None
    assert check_state_keys("Slope", {"a": 1, "c": 2}, ["b", "a"]) == (
        "the state of a schedule does not fit Slope: it lacks b and has c, which Slope does not know."
    )


def test_changed_options_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report_changes(SimpleNamespace(a=1, b=2), {"a": 1.0, "b": 2}, ["a", "b"])
        assert caplog.text == ""
        report_changes(SimpleNamespace(a=1, b=2), {"a": 1, "b": 3}, ["a", "b"])
    assert "b 3 (configured 2)" in caplog.text and "a 1" not in caplog.text
