"""Levels of loggers by Kafka's names; the exchanges with Apache Kafka are in compat_tests/wire."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kbroker.config.loggers import check_levels, levels, set_levels
from kbroker.config.model import InvalidConfig
from kbroker.config.operations import Op

NAME = "kbroker.config.loggers"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, package, own = (logging.getLogger(name) for name in ("", "kbroker", NAME))
    before = [root.level, package.level, own.level]
    yield
    for each, level in zip((root, package, own), before, strict=True):
        each.setLevel(level)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("TRACE", 5),
        ("DEBUG", logging.DEBUG),
        ("INFO", logging.INFO),
        ("WARN", logging.WARNING),
        ("ERROR", logging.ERROR),
        ("FATAL", logging.CRITICAL),
    ],
)
def test_levels_have_kafkas_names(name: str, level: int) -> None:
    set_levels([("root", Op.SET, name), (NAME, Op.DELETE, None)])
    assert logging.root.level == level
    assert levels()["root"] == levels()[NAME] == name


def test_a_level_between_two_is_told_as_the_one_that_lets_through_no_more() -> None:
    logging.root.setLevel(25)
    assert levels()["root"] == "WARN"
    logging.root.setLevel(60)
    assert levels()["root"] == "FATAL"


def test_a_level_is_set_and_inherited_again() -> None:
    set_levels([("root", Op.SET, "ERROR"), (NAME, Op.SET, "DEBUG")])
    assert levels()[NAME] == "DEBUG"
    set_levels([(NAME, Op.DELETE, None)])
    assert levels()[NAME] == "ERROR"


def test_only_this_packages_loggers_are_listed() -> None:
    logging.getLogger("kbroker_of_somebody_else")
    others = {name for name in levels() if name.partition(".")[0] != "kbroker"}
    assert others <= {"root", "kafka.authorizer.logger"}
    with pytest.raises(InvalidConfig, match="Logger kbroker_of_somebody_else does not exist!"):
        check_levels([("kbroker_of_somebody_else", Op.SET, "INFO")])
